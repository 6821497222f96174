"""The suite: what a night does with a checkpoint. It is a graph like a run's, and this makes its config.

A config file's section `night` says what is looked at and how the gate decides; its other sections are nodes. Of these the suite takes what
reads a pretrained checkpoint (`finetune`, `perplexity`, …) and what follows from that (`evaluate`); so any run's config will do. Every section
that reads a checkpoint gets an axis more, with a value for each checkpoint: `finetune@demo.200-sst2-1`.
"""

from __future__ import annotations

import zoneinfo
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from flows.graph import config as configs
from flows.graph import stages
from flows.graph.config import RunConfig
from flows.graph.nodes import stage_of
from flows.graph.overrides import merge
from flows.graph.sections import MATRIX, RUN
from pipeline.core.config import parse_config
from pipeline.core.errors import UsageError

NIGHT = "night"  # the section, the run's name, and that of the config which is taken without another
DEFAULT = Path(__file__).with_name("night.yaml")
AXIS = "of"  # whose checkpoint
MAKER = "pretrain"


class NightSettings(BaseModel):
    """What a night looks at, and how its gate decides."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    which: tuple[Literal["newest", "milestones", "all"], ...] = ("newest", "milestones")
    """Which of a training's new checkpoints are evaluated."""

    limit: int = Field(default=8, ge=1)
    """The most checkpoints a night; the others wait for the next one."""

    runs: tuple[str, ...] = ("*",)
    """Patterns of the runs that are looked at."""

    need: Literal["better", "not-worse"] = "better"
    """What a candidate must be beyond noise: better on one task at least, and worse on none; or only the latter."""

    level: float = Field(default=0.95, gt=0.5, lt=1)
    """Of the bootstrap's intervals, over all tasks together."""

    resamples: int = Field(default=2000, ge=100)
    """Of the bootstrap."""

    seed: int = Field(default=1, ge=0)
    """Of the bootstrap."""

    tries: int = Field(default=3, ge=1)
    """Nights on which a checkpoint's evaluation may fail before it is given up."""

    keep_nights: int = Field(default=2, ge=1)
    """Nights with work whose fine-tuned models are kept; those of the last champions are kept besides, and all scores."""

    timezone: str = "UTC"
    """Which the trend page's times and the dates of --since are in."""

    @field_validator("timezone")
    @classmethod
    def _known_zone(cls, value: str) -> str:
        try:
            zoneinfo.ZoneInfo(value)
        except (ValueError, zoneinfo.ZoneInfoNotFoundError):
            raise ValueError("there is no such time zone; use a name such as Europe/Zurich") from None
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A checkpoint that the suite runs on. Attributes: path: its directory; made_from: what it was trained on, by stage, if that is there."""

    path: str
    made_from: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """Settings, and the sections of the graph. Attributes: reference, overrides: what it was read from."""

    settings: NightSettings
    sections: Mapping[str, Any]
    reference: str
    overrides: Mapping[str, Any]

    def config(self, subjects: Mapping[str, Subject]) -> RunConfig:
        """The graph of the suite on each checkpoint, by its label."""
        values: dict[str, Any] = {"name": NIGHT}
        for name, section in self.sections.items():
            points = {label: _inputs(name, section, subject) for label, subject in subjects.items()} if name != RUN else {}
            fitting = {label: inputs for label, inputs in points.items() if inputs is not None}
            if any(fitting.values()):
                values[name] = {**section, MATRIX: {AXIS: fitting, **(section.get(MATRIX) or {})}}
            elif fitting or name == RUN:  # else no checkpoint has what the section needs
                values[name] = section
        return RunConfig(values, NIGHT)


def load(reference: str = NIGHT, overrides: Mapping[str, Any] | None = None) -> Suite:
    """Read a config.

    Args:
        reference: a file, a run's preset, or `night` for the suite that Cloze brings.
        overrides: nested, by section; the section `night` among them.

    Raises:
        UsageError: no such config, a value that does not fit, or no section that reads a checkpoint.
    """
    given = dict(overrides or {})
    own = given.pop(NIGHT, {})
    values = configs.read(reference, given, {NIGHT: DEFAULT})
    settings = parse_config(NightSettings, merge(values.pop(NIGHT, None) or {}, own, None, NIGHT), NIGHT)
    kept: dict[str, Any] = {}
    for name, section in values.items():
        if name == RUN:
            kept[name] = section
        elif section is not False and (_reads(name) or _follows(name, kept)):
            kept[name] = section if isinstance(section, Mapping) else {}
    if not any(_reads(name) for name in kept):
        raise UsageError(
            f"config {reference!r} has no section that reads a checkpoint; give it one such as finetune: {{task: sst2, data: …}}"
        )
    return Suite(settings=settings, sections=kept, reference=reference, overrides=dict(overrides or {}))


def _reads(name: str) -> bool:
    """Whether the section's stage reads a pretrained checkpoint and trains none."""
    stage = stage_of(name)
    return stage is not None and stage != MAKER and _role(stage, MAKER) is not None


def _follows(name: str, before: Mapping[str, Any]) -> bool:
    """Whether the section's stage needs one of those before it."""
    stage = stage_of(name)
    if stage is None or stages.stage(stage).gathers:
        return False
    made = {stage_of(other) for other in before}
    return any(made.intersection(wanted.kinds) for wanted in stages.stage(stage).inputs.values() if wanted.required)


def _role(stage: str, kind: str) -> str | None:
    return next((role for role, wanted in stages.stage(stage).inputs.items() if kind in wanted.kinds), None)


def _inputs(name: str, section: Mapping[str, Any], subject: Subject) -> dict[str, str] | None:
    """The inputs that the checkpoint brings, by role; None: one that the stage needs is not there.

    A corpus goes to a task that reads one: where the section names no data.
    """
    found = {}
    for role, wanted in stages.stage(str(stage_of(name))).inputs.items():
        known = {MAKER: subject.path, **subject.made_from}
        given = next((known[kind] for kind in wanted.kinds if kind in known), None)
        if MAKER in wanted.kinds:
            found[role] = subject.path
        elif role in section:
            continue
        elif given is not None and (wanted.required or "data" not in section):
            found[role] = given
        elif wanted.required and set(wanted.kinds) <= {"dataset", "corpus"}:
            return None
    return found
