"""Training checkpoints: everything that training needs to go on as if it had never stopped.

    checkpoints/step-00000200/   a checkpoint as `model.checkpoint` describes it, with in addition
        training/state.json             step, counters, figures of the unfinished log window; and, under `run`, how training was
                                        begun: fingerprint, config, precision, engine, package versions, after which step
        training/optimizer.safetensors  <parameter>/<state> -> tensor. Of n ranks, optimizer-00001-of-0000n.safetensors and so on: each
                                        holds what was its writer's, whole tensors or pieces (`model.tensors`)
        training/weights.safetensors    where the checkpoint's model is the weights' average: the weights that are trained; in parts likewise

Any number of ranks, any engine and any ZeRO stage reads what any other wrote. The order of the data is a function of the step, and
dropout's random state is set anew from (seed, step, first sample) at every micro-batch: so neither is saved. `model.train.saving`
writes it; nothing of it counts before `checkpoint.json` is there. Older checkpoints go only after that, but for milestones and those that
somebody reads (`pipeline.core.checkpoints`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from model import checkpoint
from model.tensors import Tensors
from model.train.distributed import World
from model.train.interfaces import Milestones, Position
from pipeline.core import checkpoints, storage
from pipeline.core.errors import DataError

FORMATS = (3, 4)  # that are read: the third had all tensors in one file, as one rank still writes them
FORMAT = FORMATS[-1]
STATE = "state.json"
OPTIMIZER = "optimizer.safetensors"
WEIGHTS = "weights.safetensors"
# of checkpoints that do not say it
OLDER: dict[str, Any] = {"kept": [], "passed": [], "places": {}, "by_source": [], "overflows": 0, "loss_scale": []}

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Progress:
    """How far training has come, over all its phases.

    Attributes:
        step: steps done, skipped ones included.
        samples: the number of the next step's first sample, in the order of the data.
        updates: optimizer steps that were applied.
        tokens: real tokens (no padding) that went forward and backward.
        skipped: steps that were skipped for a gradient that was not finite.
        skipped_in_a_row: those since the last update, but for overflows.
        overflows: those among the skipped ones whose gradient overflowed fp16 for the loss's scale.
        loss_scale: that of fp16; see `model.train.engines.loss_scale`.
        window: running sums since the last logged step; see `model.train.metrics.Window`.
        pending: the log line of this step, where a stop broke off its measurement.
        first_loss: the loss before the first update of this phase.
        best: the best measurement of this phase so far, and its step.
        kept: steps of this phase whose checkpoints stay, beside milestones; see `model.train.due.Due.closes`.
        passed: what this phase has passed over: (step, steps), see `model.train.rollback`.
        places: of a mixture's datasets, by fingerprint: the next sample of each.
        by_source: real tokens of each dataset of a mixture, in this phase.
    """

    step: int = 0
    samples: int = 0
    updates: int = 0
    tokens: int = 0
    skipped: int = 0
    skipped_in_a_row: int = 0
    overflows: int = 0
    loss_scale: list[float] = field(default_factory=list)
    window: dict[str, Any] = field(default_factory=dict)
    pending: dict[str, Any] | None = None
    first_loss: float | None = None
    best: dict[str, float] | None = None
    kept: list[int] = field(default_factory=list)
    passed: list[list[int]] = field(default_factory=list)
    places: dict[str, int] = field(default_factory=dict)
    by_source: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How training was begun, which stays the same while it is resumed, except for engine and packages: those of the last session.

    Attributes:
        fingerprint: the artifact's.
        build: the id of its making, which is also that of its MLflow run.
        config: resolved.
        precision: of the forward pass, decided.
        compiled: whether it went through torch.compile.
        engine: the engine's name.
        zero: its ZeRO stage.
        packages: versions by name.
        begun: where it began: a phase that goes on from another training has steps before it.
        data: the fingerprint of what it reads.
    """

    fingerprint: str
    build: str
    config: Mapping[str, Any]
    precision: str
    compiled: bool
    engine: str
    zero: int
    packages: Mapping[str, str]
    begun: Position
    data: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """A checkpoint that was read back.

    Attributes:
        weights: by name, read anew whenever one is asked for, as are those of `optimizer`.
        average: of the weights, where one was kept.
        own: of this very training; else of one that it goes on from as a new phase.
    """

    path: str
    progress: Progress
    run: Run
    weights: Tensors
    optimizer: Tensors
    average: Tensors | None = None
    own: bool = True

    def as_phase(self) -> Resumed:
        """For a training that goes on from here as a new phase: the counters go on, its lines and measurements are its own."""
        progress = replace(self.progress, window={}, pending=None, first_loss=None, best=None, kept=[], passed=[], by_source=[])
        return replace(self, progress=progress, own=False)


def content(progress: Progress, run: Run) -> bytes:
    """What `state.json` says."""
    said = {"format": FORMAT, "run": asdict(run), **asdict(progress)}
    return (json.dumps(said, indent=1, sort_keys=True) + "\n").encode()


def prune(path: str, keep: int, milestones: Milestones) -> None:
    """Remove all complete checkpoints but the newest `keep`, milestones and those that are being read, and what kills have left."""
    for directory in checkpoints.complete_steps(path)[: -max(1, keep)]:
        if checkpoints.step_of(directory) not in milestones:
            checkpoints.remove(directory)
    checkpoints.sweep(path)


def tidy(path: str, milestones: Milestones) -> None:
    """Leave what a finished artifact keeps: the newest checkpoint and the milestones; and those that are being read just now."""
    prune(path, 1, milestones)
    checkpoints.drop_set_aside(path)


def kept(path: str, milestones: Milestones) -> dict[str, str]:
    """The milestones that are there: step -> checkpoint, relative to `path`."""
    steps = [checkpoints.step_of(directory) for directory in checkpoints.complete_steps(path)]
    return {str(step): f"{checkpoints.STEPS}/{checkpoints.step_name(step)}" for step in steps if step in milestones}


def newest(path: str, fingerprint: str, notes: list[str]) -> str | None:
    """The newest checkpoint of this run that is whole, or None where none was ever finished. What a kill left of others goes.

    Args:
        notes: one sentence is added for each checkpoint that is damaged and passed over.

    Raises:
        DataError: there are checkpoints, but none can be used, or they belong to another run.
    """
    candidates = checkpoints.complete_steps(path)[::-1]
    for directory in candidates:
        try:
            checkpoint.verify(directory)
            found = _read_state(directory)
        except DataError as error:
            notes.append(f"DAMAGED CHECKPOINT PASSED OVER: {error}")
            log.warning("%s", notes[-1])
            continue
        theirs = str(found["run"]["fingerprint"])
        if theirs != fingerprint:
            raise DataError(
                f"{directory} belongs to a run with other settings or data (fingerprint {theirs[:12]}, wanted"
                f" {fingerprint[:12]}); use another directory"
            )
        for damaged in candidates[: candidates.index(directory)]:
            checkpoints.set_aside(damaged)
        checkpoints.sweep(path)
        return directory
    if candidates:
        raise DataError(
            f"{storage.join(path, checkpoints.STEPS)} has {len(candidates)} checkpoints, none of which can be used"
            f" ({candidates[0].rpartition('/')[2]} is the newest); restore one, or remove the directory to start again from step 0"
        )
    checkpoints.sweep(path)
    return None


def resume(path: str, fingerprint: str, world: World, notes: list[str]) -> Resumed | None:
    """The newest usable checkpoint below `path`, which the first rank chooses for all; None where none was ever finished.

    Raises:
        DataError: as for `newest`.
    """

    def choose() -> int:
        directory = newest(path, fingerprint, notes)
        return -1 if directory is None else int(directory.rsplit("-", 1)[1])

    step = world.first_decides(choose)
    return None if step < 0 else read(storage.join(path, checkpoints.STEPS, checkpoints.step_name(step)))


def read(directory: str) -> Resumed:
    """The checkpoint at `directory`, which somebody has verified; its tensors are read when they are asked for.

    Raises:
        DataError: it has no training state, or one of another format.
    """
    content = _read_state(directory)
    values = {name: content[name] for name in Progress.__dataclass_fields__}
    begun = Position(**content["run"]["begun"])
    training = storage.join(directory, checkpoint.TRAINING)
    averages = any(name.startswith(WEIGHTS.removesuffix(".safetensors")) for name in storage.list_files(training))
    return Resumed(
        path=directory,
        progress=Progress(**values),
        run=Run(**{**{name: content["run"][name] for name in Run.__dataclass_fields__}, "begun": begun}),
        weights=Tensors.open(training, WEIGHTS) if averages else checkpoint.weights(directory),
        optimizer=Tensors.open(training, OPTIMIZER),
        average=checkpoint.weights(directory) if averages else None,
    )


def _read_state(directory: str) -> dict[str, Any]:
    name = storage.join(directory, checkpoint.TRAINING, STATE)
    try:
        content: dict[str, Any] = {**OLDER, **json.loads(storage.read_text(name))}
        missing = Progress.__dataclass_fields__.keys() - content.keys()
        if content["format"] not in FORMATS or missing or Run.__dataclass_fields__.keys() - content["run"].keys():
            raise DataError(
                f"{name} has another format ({content['format']}, this program reads {FORMATS[0]} to {FORMAT}); use another checkpoint"
            )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{name} is missing or damaged ({error}); use another checkpoint") from error
    return content
