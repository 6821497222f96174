"""Asynchronous checkpoints: every rank copies its shard to host memory, and a thread writes it.

  save_async  every rank: wait for the previous save, copy its share of weights and optimizer
              state (training is paused), return
  thread      every rank: write and sync its files; exchange hashes or errors with the others
              rank 0: then config, tokenizer, state.json; finally `checkpoint.json`, which
              completes the checkpoint; prune older ones
  wait        every rank: until the save is complete

The threads have a process group of their own, so that saves and steps never wait for each other.
All ranks learn the result of each save: if one rank cannot write, all fail with its message. A kill
at any time leaves a directory without `checkpoint.json`, which is ignored and removed by the next
session. The copy is complete before the next step starts, so the checkpoint is exactly that step's.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from cloze.core import storage
from cloze.core.artifacts import checkpoint_files, checkpoints
from cloze.core.artifacts.artifact import FileEntry
from cloze.core.errors import ClozeError, SupersededError, remedy
from cloze.core.humanize import format_duration
from cloze.model import checkpoint
from cloze.model.tensors import part_name, to_saved_dtype, write_tensors
from cloze.model.train.distributed import SAVING_TIMEOUT, World
from cloze.model.train.engines.protocol import Engine
from cloze.model.train.resume import state
from cloze.model.train.spec.progress import RunInfo, TrainerState

LINGER_SECONDS = 60.0  # time that a failing training gives a running save

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A rank's copy of a step's state in host memory.

    Attributes:
        state: contents of `state.json`.
        milestones: milestones, which are not pruned.
        weights: this rank's share, by name.
        optimizer: this rank's tensors and tensor slices.
        shapes: whole shapes of the sliced tensors.
        datasets: of a mixture: see `checkpoint.Metadata`.
    """

    step: int
    state: bytes
    milestones: frozenset[int]
    weights: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    datasets: Sequence[Mapping[str, Any]] = ()


class CheckpointSaver:
    """Saves the checkpoints of one training. Every rank calls all methods in the same order.

    Args:
        path: directory of the training; checkpoints are below it.
        saved: metadata of the model.
        run: metadata of the training.
        keep: number of newest checkpoints to keep.
        sync: flushes the log lines to disk.
    """

    def __init__(
        self, path: str, world: World, *, saved: checkpoint.Metadata, run: RunInfo, keep: int,
        sync: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self._path, self._world, self._saved, self._run = path, world, saved, run
        self._keep, self._sync = keep, sync
        self._thread: threading.Thread | None = None
        self._deadline = 0.0  # of the running save
        self._error: BaseException | None = None
        self._landed: deque[tuple[int, float]] = deque()  # the thread appends
        self.written = 0
        self.seconds = 0.0  # from the copy to `checkpoint.json`, over all saves

    @property
    def failed(self) -> bool:
        """True if a save failed or hangs: the next `save_async` or `wait` raises, on all ranks."""
        is_late = self._thread is not None and time.monotonic() > self._deadline
        return self._error is not None or (is_late and not self._is_done())

    def _is_done(self, seconds: float = 0.0) -> bool:
        if self._thread is not None:
            self._thread.join(seconds)
        return self._thread is None or not self._thread.is_alive()

    def pop_completed(self) -> list[tuple[int, float]]:
        """Return newly completed steps since the last call, each with its seconds."""
        return [self._landed.popleft() for _ in range(len(self._landed))]

    def save_async(
        self,
        progress: TrainerState,
        milestones: frozenset[int],
        engine: Engine,
        datasets: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Copy this step's state and start to write it; return as soon as training may continue.

        Raises:
            ClozeError: the previous save failed.
            SupersededError: another launch has taken over.
        """
        # One save at a time: host memory holds one copy, and the last one's error is raised here.
        self.wait()
        # No rank may write before the leftovers are removed.
        self._world.decide_on_rank_zero(lambda: self._make_room(progress.step))
        weights = copy_to_host((name, to_saved_dtype(tensor)) for name, tensor in engine.weights())
        shapes: dict[str, tuple[int, ...]] = {}

        def pieces() -> Iterable[tuple[str, Tensor]]:
            for piece in engine.optimizer_state():
                if piece.whole:
                    yield piece.name, piece.values.view(piece.shape)
                else:
                    shapes[piece.name] = piece.shape
                    yield piece.key, piece.values

        optimizer = copy_to_host(pieces())
        # Copies are asynchronous: the thread must not write what has not arrived.
        if self._world.device.type == "cuda":
            torch.cuda.synchronize(self._world.device)
        snapshot = Snapshot(
            step=progress.step,
            state=state.content(progress, self._run),
            milestones=milestones,
            weights=weights,
            optimizer=optimizer,
            shapes=shapes,
            datasets=datasets,
        )
        self._thread = threading.Thread(
            target=self._write, args=(snapshot,), name="cloze-save", daemon=True
        )
        self._deadline = time.monotonic() + SAVING_TIMEOUT.total_seconds()
        self._thread.start()

    def _make_room(self, step: int) -> int:
        """Remove the leftovers of an interrupted save."""
        directory = self._directory(step)
        with self._world.fence.locked():
            if storage.list_names(directory):
                checkpoint.clear(directory)
        return 0

    def wait(self) -> None:
        """Wait until nothing is being written.

        Raises:
            ClozeError: a rank could not write its shard, or writes it for longer than the limit.
                Older checkpoints are intact.
        """
        if not self._is_done(max(0.0, self._deadline - time.monotonic())):
            raise ClozeError(
                f"a checkpoint of {self._path} is not written after"
                f" {format_duration(SAVING_TIMEOUT.total_seconds())}; older ones are intact: check"
                f" the storage and run again"
            )
        self._thread = None
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Wait up to `LINGER_SECONDS` for a running save, however the training ended."""
        self._is_done(LINGER_SECONDS)

    def metrics(self) -> dict[str, float | None]:
        """Return the session's number of checkpoints, and mean seconds per checkpoint."""
        return {
            "checkpoints_written": self.written,
            "checkpoint_seconds": round(self.seconds / self.written, 3) if self.written else None,
        }

    def _directory(self, step: int) -> str:
        return storage.join(self._path, state.step_path(step))

    def _write(self, snapshot: Snapshot) -> None:
        """Run one save in the thread and keep its error."""
        start = time.monotonic()
        try:
            self._save(snapshot)
        except BaseException as error:
            self._error = error
        else:
            seconds = time.monotonic() - start
            self.written, self.seconds = self.written + 1, self.seconds + seconds
            self._landed.append((snapshot.step, seconds))

    def _save(self, snapshot: Snapshot) -> None:
        # Two rounds: no rank may complete a checkpoint before all parts are on the disk.
        files = self._agreed(snapshot.step, lambda: self._write_part(snapshot))
        self._agreed(snapshot.step, lambda: self._commit(snapshot, files))

    def _agreed(self, step: int, do: Callable[[], list[FileEntry]]) -> list[FileEntry]:
        """Run `do` and return the results of all ranks; if one rank fails, all fail.

        Raises:
            ClozeError: the error of any rank.
            SupersededError: another launch has taken over.
        """
        local_error, files = None, list[FileEntry]()
        try:
            files = do()
        except BaseException as error:
            local_error = error
        reports = self._world.gathered(
            {
                "files": [[entry.path, entry.size, entry.sha256] for entry in files],
                "error": _sentence(local_error),
                "remedy": f"{remedy(local_error)} and " if isinstance(local_error, OSError) else "",
                "superseded": isinstance(local_error, SupersededError),
            },
            self._world.saving,
        )
        errors = [(rank, entry) for rank, entry in enumerate(reports) if entry["error"]]
        if not errors:
            return [
                FileEntry(path=path, size=size, sha256=sha256)
                for entry in reports
                for path, size, sha256 in entry["files"]
            ]
        if superseded := [entry["error"] for entry in reports if entry["superseded"]]:
            # The directory belongs to another launch, so nothing is removed.
            raise SupersededError(superseded[0]) from local_error
        directory = self._directory(step)
        # A fault of the program keeps its own traceback; a full disk becomes a sentence.
        if local_error is not None and not isinstance(local_error, (OSError, ClozeError)):
            raise local_error
        if self._world.is_rank_zero:
            _cleared(directory)
        rank, first = errors[0]
        location = f" by rank {rank}" if self._world.size > 1 else ""
        raise ClozeError(
            f"the checkpoint {directory} could not be written{location} ({first['error']}); older "
            f"ones are intact: {first['remedy']}run again"
        ) from local_error

    def _write_part(self, snapshot: Snapshot) -> list[FileEntry]:
        """Write and sync this rank's files."""
        directory, world, entries = self._directory(snapshot.step), self._world, []
        optimizer = (
            f"{checkpoint_files.TRAINING}/{part_name(state.OPTIMIZER, world.rank, world.size)}"
        )
        contents = {
            part_name(checkpoint.WEIGHTS, world.rank, world.size): (snapshot.weights, {}),
            optimizer: (snapshot.optimizer, snapshot.shapes),
        }
        for name, (tensors, shapes) in contents.items():
            digest, size = write_tensors(
                storage.join(directory, name), tensors, shapes, world.fence.locked
            )
            entries.append(FileEntry(path=name, size=size, sha256=digest))
        storage.fsync_tree(directory)
        return entries

    def _commit(self, snapshot: Snapshot, files: list[FileEntry]) -> list[FileEntry]:
        """Complete the checkpoint on rank 0, unless another launch has taken over."""
        if not self._world.is_rank_zero:
            return []
        directory = self._directory(snapshot.step)
        with self._world.fence.locked():
            with storage.hashing_written(directory) as written:
                metadata: checkpoint.Metadata = {
                    **self._saved, "datasets": snapshot.datasets, "step": snapshot.step
                }  # fmt: skip
                checkpoint.write_metadata(directory, **metadata)
                training_state = storage.join(directory, checkpoint_files.TRAINING, state.STATE)
                storage.write_bytes(training_state, snapshot.state)
                # The log first: a resume at this step cuts later lines, and must find the earlier
                # ones.
                self._sync()
            # All is on the disk before `checkpoint.json` says so, and that before others go.
            storage.fsync_tree(directory)
            checkpoint.finalize(directory, files, written)
            storage.fsync_directory(directory)
            storage.fsync_directory(storage.join(self._path, checkpoints.STEPS))
            try:
                state.prune(self._path, self._keep, snapshot.milestones)
            except (OSError, ClozeError) as error:
                log.warning("older checkpoints remain (%s); the next save tries again", error)
        return []


def copy_to_host(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Copy tensors to host memory: from a GPU to pinned memory, asynchronously."""
    copies = {}
    for name, tensor in tensors:
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        copies[name] = copy.copy_(tensor.detach(), non_blocking=True)
    return copies


def _sentence(error: BaseException | None) -> str:
    if error is None:
        return ""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _cleared(directory: str) -> None:
    """Remove an incomplete checkpoint; if that fails, the next session removes it."""
    try:
        checkpoint.clear(directory)
    except (OSError, ClozeError) as error:
        log.warning("%s could not be removed (%s)", directory, error)
