"""Events between machines by a directory that all of them share: one writer and one reader a box.

On a disk (NFS, Lustre, …) a box is a file that grows by whole lines. An object store has no files that grow: there it is a numbered
object for each batch of events.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from pipeline.core import storage
from pipeline.core.errors import DataError


class Outbox:
    """The writing end."""

    def __init__(self, path: str) -> None:
        """Args: path: of the box, without an ending."""
        self.path = path
        self._count = 0
        self._file = (
            os.open(f"{storage.filesystem(path)[1]}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            if _grows(path)
            else None
        )

    def send(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Append them, in order.

        Raises:
            OSError: the disk is full, or the directory is gone.
        """
        if not events:
            return
        content = "".join(f"{json.dumps(event)}\n" for event in events).encode()
        if self._file is None:
            storage.write_bytes(f"{self.path}/{self._count:08d}.jsonl", content)
            self._count += 1
            return
        while content:
            content = content[os.write(self._file, content) :]

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


class Inbox:
    """The reading end; the box need not be there yet."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._place = 0  # bytes, or objects, that were read
        self._pending = b""

    def read(self) -> list[dict[str, Any]]:
        """What was written since the last call. A line that is still being written is left for the next."""
        content = self._pending + (self._from_file() if _grows(self.path) else self._from_store())
        *lines, self._pending = content.split(b"\n")
        return [json.loads(line) for line in lines]

    def _from_file(self) -> bytes:
        _look_anew(storage.filesystem(self.path)[1])
        try:
            # opened anew each time: NFS looks for what others have written when a file is opened
            with open(f"{storage.filesystem(self.path)[1]}.jsonl", "rb") as stream:
                stream.seek(self._place)
                found = stream.read()
        except FileNotFoundError:
            return b""
        self._place += len(found)
        return found

    def _from_store(self) -> bytes:
        found = b""
        while storage.exists(name := f"{self.path}/{self._place:08d}.jsonl"):
            found += storage.read_text(name).encode()
            self._place += 1
        return found


def _grows(path: str) -> bool:
    return storage.is_local(path)


def put(path: str, content: Mapping[str, Any]) -> None:
    """A small file that is there whole or not at all."""
    storage.write_bytes(path, json.dumps(content).encode())


def get(path: str) -> dict[str, Any] | None:
    """What `put` has put; None: nothing, yet."""
    if _grows(path):
        _look_anew(storage.filesystem(path)[1])
    try:
        found: dict[str, Any] = json.loads(storage.read_text(path))
    except DataError:  # there is no such file
        return None
    return found


def _look_anew(file: str) -> None:
    """NFS remembers for half a minute that a file was not there; opening its directory makes it look."""
    with suppress(OSError):
        os.close(os.open(os.path.dirname(file), os.O_RDONLY))


def peek(path: str) -> str:
    """A small file's content, as far as it is there."""
    try:
        if _grows(path):
            with open(storage.filesystem(path)[1], encoding="ascii") as stream:
                return stream.read()
        return storage.read_text(path)
    except (OSError, DataError):
        return ""
