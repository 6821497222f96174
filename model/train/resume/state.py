"""Training checkpoints: the complete state for an exact resume.

  checkpoints/step-00000200/   a checkpoint (see `cloze.model.checkpoint`), and in addition
    training/state.json             step, counters, metrics of the unfinished log window; under
                                    `run`: fingerprint, config, precision, engine, package
                                    versions, start position
    training/optimizer.safetensors  <parameter>/<state> -> tensor. With n ranks:
                                    optimizer-00001-of-0000n.safetensors and so on, each with
                                    its rank's tensors or slices (`cloze.model.tensors`)

Any number of ranks, engine and ZeRO stage can read it. The order of the data is a function of the
step, and every micro-batch seeds dropout from (seed, step, first sample), so neither is saved.
`cloze.model.train.resume.saving` writes it; it counts only once `checkpoint.json` exists. Then
older checkpoints are pruned, except milestones and pinned ones
(`cloze.core.artifacts.checkpoints`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from cloze.core import storage
from cloze.core.artifacts import checkpoint_files, checkpoints
from cloze.core.artifacts.fence import Fence
from cloze.core.errors import DataError
from cloze.model import checkpoint
from cloze.model.tensors import LazyTensors
from cloze.model.train.distributed import World
from cloze.model.train.spec.interfaces import StartPosition
from cloze.model.train.spec.progress import RunInfo, TrainerState

FORMAT = 5
STATE = "state.json"
OPTIMIZER = "optimizer.safetensors"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeState:
    """A checkpoint that was read back.

    Attributes:
        weights: trained weights by name, read on access, as is `optimizer`.
        same_run: True for a checkpoint of this training; False: of one that a new phase continues.
    """

    path: str
    progress: TrainerState
    run: RunInfo
    weights: LazyTensors
    optimizer: LazyTensors
    same_run: bool = True

    def as_phase(self) -> ResumeState:
        """Return the state for a new phase: only the counters continue."""
        # Step, counters and loss scale go on; window, first loss and best were the old phase's.
        progress = replace(
            self.progress,
            window={},
            pending=None,
            first_loss=None,
            best=None,
            kept=[],
            passed=[],
            by_source=[],
            budget=[],
        )
        return replace(self, progress=progress, same_run=False)


def step_path(step: int) -> str:
    """Return the path of a step's checkpoint, relative to that of the training."""
    return f"{checkpoints.STEPS}/{checkpoints.step_name(step)}"


def content(progress: TrainerState, run: RunInfo) -> bytes:
    """Return the contents of `state.json`."""
    document = {"format": FORMAT, "run": asdict(run), **asdict(progress)}
    return (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()


def prune(path: str, keep: int, milestones: frozenset[int]) -> None:
    """Remove all checkpoints except the newest `keep`, milestones and pinned ones.

    Leftovers of kills are removed, too.
    """
    # At least 1: the newest is what a resume needs, and a slice up to -0 is empty.
    for directory in checkpoints.complete_steps(path)[: -max(1, keep)]:
        if checkpoints.parse_step(directory) not in milestones:
            checkpoints.remove(directory)
    checkpoints.remove_leftovers(path)


def prune_finished(path: str, milestones: frozenset[int]) -> None:
    """Remove a finished artifact's checkpoints except the newest, milestones and pinned ones."""
    prune(path, 1, milestones)
    checkpoints.delete_quarantined(path)


def milestone_checkpoints(path: str, milestones: frozenset[int]) -> dict[str, str]:
    """Return the existing milestones: step -> checkpoint, relative to `path`."""
    steps = [checkpoints.parse_step(directory) for directory in checkpoints.complete_steps(path)]
    return {str(step): step_path(step) for step in steps if step in milestones}


def written_hashes(path: str, names: Iterable[str]) -> dict[str, tuple[str, int]]:
    """Return sha256 and size of the files of an artifact's checkpoints in a store, by their name.

    On a disk they are read again, so that the manifest has what the disk has.
    """
    return {
        f"{name}/{file}": entry
        for name in (() if storage.is_local(path) else names)
        for file, entry in checkpoint_files.recorded_hashes(storage.join(path, name)).items()
    }


def checkpoints_at_tokens(
    path: str, milestones: Mapping[int, float], before: int
) -> dict[str, str]:
    """Return the first existing checkpoint that reaches each number of tokens.

    Args:
        path: directory of the training.
        milestones: key -> real tokens over all phases.
        before: tokens of earlier phases, whose checkpoints are elsewhere.

    Returns:
        Key -> checkpoint, relative to `path`.
    """
    if not milestones:
        return {}
    tokens = {
        checkpoints.parse_step(directory): _read_state(directory)["tokens"]
        for directory in checkpoints.complete_steps(path)
    }
    steps = {
        key: [step for step in sorted(tokens) if tokens[step] >= milestone]
        for key, milestone in sorted(milestones.items())
        if milestone > before
    }
    return {str(key): step_path(found[0]) for key, found in steps.items() if found}


def newest(path: str, fingerprint: str, notes: list[str], fence: Fence) -> str | None:
    """Return the newest undamaged checkpoint of this run, or None.

    Newer damaged ones are quarantined. Leftovers of kills are removed.

    Args:
        notes: receives a message for each damaged checkpoint.

    Raises:
        DataError: checkpoints exist, but none is usable, or they belong to another run.
    """
    candidates = checkpoints.complete_steps(path)[::-1]
    for directory in candidates:
        try:
            checkpoint_files.verify(directory)
            document = _read_state(directory)
        except DataError as error:
            notes.append(f"DAMAGED CHECKPOINT PASSED OVER: {error}")
            log.warning("%s", notes[-1])
            continue
        # Verified before compared: a damaged file may name any run.
        saved_fingerprint = str(document["run"]["fingerprint"])
        if saved_fingerprint != fingerprint:
            raise DataError(
                f"{directory} belongs to a run with other settings or data (fingerprint "
                f"{saved_fingerprint[:12]}, expected {fingerprint[:12]}); use another directory"
            )
        # Only once a good one is found: if all are damaged, nothing is moved.
        with fence.locked():
            for damaged in candidates[: candidates.index(directory)]:
                checkpoints.quarantine(damaged)
            checkpoints.remove_leftovers(path)
        return directory
    if candidates:
        raise DataError(
            f"{storage.join(path, checkpoints.STEPS)} has {len(candidates)} checkpoints, none of "
            f"which can be used ({candidates[0].rpartition('/')[2]} is the newest); restore one, "
            f"or remove the directory to start again from step 0"
        )
    with fence.locked():
        checkpoints.remove_leftovers(path)
    return None


def resume(path: str, fingerprint: str, world: World, notes: list[str]) -> ResumeState | None:
    """Read the newest usable checkpoint below `path`, or return None; rank 0 chooses.

    Raises:
        DataError: see `newest`.
    """

    def choose() -> int:
        directory = newest(path, fingerprint, notes, world.fence)
        return -1 if directory is None else int(directory.rsplit("-", 1)[1])

    step = world.decide_on_rank_zero(choose)
    return None if step < 0 else read(storage.join(path, step_path(step)))


def read(directory: str) -> ResumeState:
    """Read the verified checkpoint at `directory`; its tensors are read on access.

    Raises:
        DataError: the training state is missing, damaged, or of another format.
    """
    document = _read_state(directory)
    progress = {name: document[name] for name in TrainerState.__dataclass_fields__}
    run = {name: document["run"][name] for name in RunInfo.__dataclass_fields__}
    training = storage.join(directory, checkpoint_files.TRAINING)
    return ResumeState(
        path=directory,
        progress=TrainerState(**progress),
        run=RunInfo(**{**run, "start_position": StartPosition(**run["start_position"])}),
        weights=checkpoint.weights(directory),
        optimizer=LazyTensors.open(training, OPTIMIZER),
    )


def _read_state(directory: str) -> dict[str, Any]:
    name = storage.join(directory, checkpoint_files.TRAINING, STATE)
    try:
        document: dict[str, Any] = json.loads(storage.read_text(name))
        complete = (
            TrainerState.__dataclass_fields__.keys() <= document.keys()
            and RunInfo.__dataclass_fields__.keys() <= document["run"].keys()
        )
        if document["format"] != FORMAT or not complete:
            raise DataError(
                f"{name} has another format ({document['format']}, this program reads {FORMAT}); "
                f"use another checkpoint"
            )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{name} is missing or damaged ({error}); use another checkpoint"
        ) from error
    return document
