"""Saving while training goes on: every rank copies its part to the host's memory, and a thread writes it.

    begin    every rank: wait for the save before, copy its share of weights and optimizer state (training stands still), go on
    thread   every rank: write its files and sync them; tell the others' threads their hashes, or what went wrong
             the first: then config, tokenizer, state.json; `checkpoint.json`, with which it counts; prune older ones
    wait     every rank: until all that is done

The threads have a process group of their own, so they never wait for a step, nor a step for them. All of them learn of the end
of each save, so all ranks know the same: one that could not write ends all, with its sentence. A kill at any moment leaves a directory
without `checkpoint.json`, which nobody reads and the next session removes.

What is copied is exactly what is written: the copy is complete before the next step may begin.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, distributed

from model import checkpoint
from model.tensors import part_name, write_tensors
from model.train import state
from model.train.distributed import World
from model.train.engines.protocol import Engine
from model.train.interfaces import Milestones, Saved
from pipeline.core import checkpoints, storage
from pipeline.core.artifact import FileEntry
from pipeline.core.errors import ClozeError

LINGER_SECONDS = 60.0  # that a training which fails gives the save under way

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A step's state as one rank writes it: in the host's memory, and nobody else's.

    Attributes:
        state: what `state.json` says.
        kept: milestones, which pruning leaves alone.
        weights: this rank's, by name.
        trained: where `weights` are the average of those that are trained: these.
        optimizer: this rank's tensors, and pieces of tensors.
        shapes: of the tensors that the pieces belong to.
        datasets: of a mixture, what `checkpoint.describe` says of each.
    """

    step: int
    state: bytes
    kept: Milestones
    weights: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    trained: Mapping[str, Tensor] | None = None
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    datasets: Sequence[Mapping[str, Any]] = ()


class Saver:
    """Saves the checkpoints of one training. Every rank has one, and calls all of it in the same order.

    Args:
        path: the training's; checkpoints go below it.
        saved: what they say of the model.
        run: what they say of the training.
        keep: how many of the newest stay.
        averages: whether the engine keeps an average of the weights, which is then what a checkpoint's model is.
        sync: has the log lines on disk.
    """

    def __init__(
        self, path: str, world: World, *, saved: Saved, run: state.Run, keep: int, averages: bool = False,
        sync: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self._path, self._world, self._saved, self._run, self._keep, self._sync = path, world, saved, run, keep, sync
        self._averages = averages
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._landed: list[tuple[int, float]] = []
        self.written = 0
        self.seconds = 0.0  # from the copy to `checkpoint.json`, of all that were written

    @property
    def failed(self) -> bool:
        """Whether a save went wrong: the next `begin` or `wait` says how, on all ranks."""
        return self._error is not None

    def landed(self) -> list[tuple[int, float]]:
        """The steps whose checkpoints are complete since the last call, and the seconds that each took."""
        found, self._landed = self._landed, []
        return found

    def begin(
        self, progress: state.Progress, kept: Milestones, engine: Engine, datasets: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        """Copy this step's state and have it written. Returns as soon as training may go on.

        Raises:
            ClozeError: the save before went wrong.
        """
        self.wait()
        directory = self._directory(progress.step)
        if self._world.first and storage.exists(directory):
            checkpoint.clear(directory)
        self._world.total([0])  # nobody writes before it is gone
        weights, trained = _weights(engine), None
        if self._averages:
            with engine.averaged():
                weights, trained = _weights(engine), weights
        shapes: dict[str, tuple[int, ...]] = {}

        def pieces() -> Iterable[tuple[str, Tensor]]:
            for piece in engine.optimizer_state():
                if piece.whole:
                    yield piece.name, piece.values.view(piece.shape)
                else:
                    shapes[piece.name] = piece.shape
                    yield piece.key, piece.values

        optimizer = copied(pieces())
        if self._world.device.type == "cuda":
            torch.cuda.synchronize(self._world.device)
        snapshot = Snapshot(
            step=progress.step,
            state=state.content(progress, self._run),
            kept=kept,
            weights=weights,
            optimizer=optimizer,
            trained=trained,
            shapes=shapes,
            datasets=datasets,
        )
        self._thread = threading.Thread(target=self._write, args=(snapshot,), name="cloze-save", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until nothing is being written.

        Raises:
            ClozeError: a part could not be written, here or on another rank. The older checkpoints are as they were.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Give a save under way its time, however the training ended."""
        if self._thread is not None:
            self._thread.join(LINGER_SECONDS)

    def figures(self) -> dict[str, float | None]:
        """Of the session: how many were written, and how long one took, which training did not wait for."""
        return {
            "checkpoints_written": self.written,
            "checkpoint_seconds": round(self.seconds / self.written, 3) if self.written else None,
        }

    def _directory(self, step: int) -> str:
        return storage.join(self._path, checkpoints.STEPS, checkpoints.step_name(step))

    def _write(self, snapshot: Snapshot) -> None:
        """The thread."""
        began = time.monotonic()
        try:
            self._save(snapshot)
        except BaseException as error:
            self._error = error
        else:
            seconds = time.monotonic() - began
            self.written, self.seconds = self.written + 1, self.seconds + seconds
            self._landed.append((snapshot.step, seconds))

    def _save(self, snapshot: Snapshot) -> None:
        files = self._agreed(snapshot.step, lambda: self._write_part(snapshot))
        self._agreed(snapshot.step, lambda: self._commit(snapshot, files))

    def _agreed(self, step: int, do: Callable[[], list[FileEntry]]) -> list[FileEntry]:
        """What `do` returns on all ranks together; each does its own, and if one fails all do.

        Raises:
            ClozeError: on every rank, what went wrong on one.
        """
        failed, done = None, list[FileEntry]()
        try:
            done = do()
        except BaseException as error:
            failed = error
        said = _exchanged(
            self._world, {"files": [[one.path, one.size, one.sha256] for one in done], "error": _sentence(failed)}
        )
        wrong = [(rank, one["error"]) for rank, one in enumerate(said) if one["error"]]
        if not wrong:
            return [FileEntry(path=path, size=size, sha256=sha256) for one in said for path, size, sha256 in one["files"]]
        directory = self._directory(step)
        if failed is not None and not isinstance(failed, (OSError, ClozeError)):
            raise failed
        if self._world.first:
            _cleared(directory)
        rank, cause = wrong[0]
        where = f" by rank {rank}" if self._world.size > 1 else ""
        raise ClozeError(
            f"the checkpoint {directory} could not be written{where} ({cause}); older ones are intact: free some space and run again"
        ) from failed

    def _write_part(self, snapshot: Snapshot) -> list[FileEntry]:
        """This rank's files, on disk."""
        directory, world, found = self._directory(snapshot.step), self._world, []
        optimizer = f"{checkpoint.TRAINING}/{part_name(state.OPTIMIZER, world.rank, world.size)}"
        parts = {
            part_name(checkpoint.WEIGHTS, world.rank, world.size): (snapshot.weights, {}),
            optimizer: (snapshot.optimizer, snapshot.shapes),
        }
        if snapshot.trained is not None:
            name = f"{checkpoint.TRAINING}/{part_name(state.WEIGHTS, world.rank, world.size)}"
            parts[name] = (snapshot.trained, {})
        for name, (tensors, shapes) in parts.items():
            digest, size = write_tensors(storage.join(directory, name), tensors, shapes)
            found.append(FileEntry(path=name, size=size, sha256=digest))
        storage.sync_directories(directory)
        return found

    def _commit(self, snapshot: Snapshot, files: list[FileEntry]) -> list[FileEntry]:
        """Finish the checkpoint whose parts are on disk, on the first rank."""
        if not self._world.first:
            return []
        directory, saved = self._directory(snapshot.step), self._saved
        checkpoint.describe(
            directory,
            model=saved.model,
            tokenizer=saved.tokenizer,
            heads=saved.heads,
            task=saved.task,
            dataset=saved.dataset,
            datasets=snapshot.datasets,
            step=snapshot.step,
        )
        storage.write_bytes(storage.join(directory, checkpoint.TRAINING, state.STATE), snapshot.state)
        self._sync()
        storage.sync_directories(directory)
        checkpoint.complete(directory, files)
        storage.sync_directory(directory)
        storage.sync_directory(storage.join(self._path, checkpoints.STEPS))
        try:
            state.prune(self._path, self._keep, snapshot.kept)
        except (OSError, ClozeError) as error:
            log.warning("older checkpoints could not be removed (%s); they are tried again after the next save", error)
        return []


def _weights(engine: Engine) -> dict[str, Tensor]:
    return copied((name, checkpoint.master(tensor)) for name, tensor in engine.weights())


def copied(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Copies in the host's memory: pinned where they come from a GPU, on which they may still be under way."""
    found = {}
    for name, tensor in tensors:
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        found[name] = copy.copy_(tensor.detach(), non_blocking=True)
    return found


def _exchanged(world: World, said: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What every rank's thread says, by rank."""
    if world.size == 1:
        return [dict(said)]
    text = torch.frombuffer(bytearray(json.dumps(said).encode()), dtype=torch.uint8)
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(world.size)]
    distributed.all_gather(sizes, torch.tensor([len(text)]), group=world.saving)
    longest = max(int(size) for size in sizes)
    texts = [torch.zeros(longest, dtype=torch.uint8) for _ in range(world.size)]
    distributed.all_gather(texts, torch.nn.functional.pad(text, (0, longest - len(text))), group=world.saving)
    return [json.loads(bytes(one[: int(size)].numpy())) for one, size in zip(texts, sizes, strict=True)]


def _sentence(error: BaseException | None) -> str:
    if error is None:
        return ""
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def _cleared(directory: str) -> None:
    """Remove what was written of a checkpoint that will not be; the next session tries again where that fails."""
    try:
        checkpoint.clear(directory)
    except (OSError, ClozeError) as error:
        log.warning("%s could not be removed (%s)", directory, error)
