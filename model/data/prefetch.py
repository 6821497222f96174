"""Items prepared ahead by a thread: while the model is busy with one batch, the next ones are read, collated and pinned."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Generic, TypeVar

import torch

from model.data.batch import Batch, pin

Item = TypeVar("Item")
_POLL_SECONDS = 0.1


def prefetched(batches: Iterable[Batch], device: torch.device) -> Prefetch[Batch]:
    """The batches, made ahead and pinned where `device` is a GPU. They are moved there by whoever runs the model."""
    return Prefetch(pin(batch, device) for batch in batches)


class Prefetch(Generic[Item]):
    """Iterate over `source` in a thread of its own, at most `depth` items ahead.

    An error of the source is raised where the item would have come. Use as a context manager: leaving ends the thread.
    """

    def __init__(self, source: Iterable[Item], depth: int = 4) -> None:
        self._queue: queue.Queue[tuple[bool, Item | BaseException | None]] = queue.Queue(maxsize=depth)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._fill, args=(source,), name="prefetch", daemon=True)
        self._thread.start()

    def _fill(self, source: Iterable[Item]) -> None:
        try:
            for item in source:
                if not self._put((True, item)):
                    return
            self._put((False, None))
        except BaseException as error:
            self._put((False, error))

    def _put(self, entry: tuple[bool, Item | BaseException | None]) -> bool:
        while not self._closed.is_set():
            with suppress(queue.Full):
                self._queue.put(entry, timeout=_POLL_SECONDS)
                return True
        return False

    def __iter__(self) -> Iterator[Item]:
        while True:
            more, item = self._queue.get()
            if isinstance(item, BaseException) and not more:
                raise item
            if not more:
                return
            yield item  # type: ignore[misc]

    def __enter__(self) -> Prefetch[Item]:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join()
