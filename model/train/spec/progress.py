"""How far a training is, and what stays the same in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cloze.model.train.spec.interfaces import StartPosition


@dataclass(slots=True, kw_only=True)
class TrainerState:
    """The progress of a training over all its phases.

    Attributes:
        step: number of steps done, skipped ones included.
        samples: number of the next step's first sample, in the data's order.
        updates: number of applied optimizer steps.
        tokens: number of real tokens (no padding) processed.
        skipped: number of steps skipped for a non-finite gradient.
        skipped_in_a_row: skipped steps since the last update, without overflows.
        overflows: skipped steps whose gradient overflowed fp16 because of the loss scale.
        loss_scale: state of fp16's loss scale; see `cloze.model.train.device_scalars`.
        window: sums since the last log line; see `cloze.model.train.loop.steps.MetricWindow`.
        pending: log line of this step, if a stop interrupted its evaluation.
        first_loss: loss before the first update of this phase.
        best: best evaluation of this phase so far, and its step.
        kept: steps of this phase whose checkpoints are kept besides milestones; see
            `cloze.model.train.loop.triggers.StepTriggers.ends_tenth`.
        passed: (step, steps) pairs that this phase skips; see `cloze.model.train.loop.rollback`.
        places: of a mixture: dataset fingerprint -> its next sample.
        by_source: of a mixture: real tokens of each dataset in this phase.
        budget: with a time budget: the first step (from 0) of the learning-rate schedule and the
            number of the last step, once rank 0 has fixed it; else empty.
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
    budget: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """The constant metadata of a training; a resume changes only engine and packages.

    Attributes:
        fingerprint: fingerprint of the artifact.
        build: id of the build, which is also that of its MLflow run.
        config: resolved config.
        precision: resolved precision of the forward pass.
        compiled: True if torch.compile is used.
        engine: name of the engine.
        zero: ZeRO stage.
        packages: versions by name.
        start_position: start position, after the steps of earlier phases.
        data: fingerprint of the data.
    """

    fingerprint: str
    build: str
    config: Mapping[str, Any]
    precision: str
    compiled: bool
    engine: str
    zero: int
    packages: Mapping[str, str]
    start_position: StartPosition
    data: str
