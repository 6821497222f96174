"""The suite: the graph that a nightly run applies to each checkpoint.

A config's section `night` configures discovery and gate; its other sections are nodes. The suite
takes the stages that read a pretrained checkpoint (`finetune`, `perplexity`, …) and those that
depend on them (`evaluate`). So any run's config can be used. Each section that reads a checkpoint
gets an additional axis over the checkpoints: `finetune@demo.200-sst2-1`.
"""

from __future__ import annotations

import zoneinfo
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from cloze.core.config import parse_config
from cloze.core.errors import UsageError
from cloze.flows.graph import config as configs
from cloze.flows.graph import stages
from cloze.flows.graph.config import RunConfig
from cloze.flows.graph.nodes import stage_of
from cloze.flows.graph.overrides import merge
from cloze.flows.graph.sections import MATRIX, RUN

NIGHT = "night"  # the section, the run's name and the default config
DEFAULT = Path(__file__).with_name("night.yaml")
AXIS = "of"  # axis over the checkpoints
MAKER = "pretrain"


class NightSettings(BaseModel):
    """Settings of a nightly run: which checkpoints it evaluates, and how the gate decides."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    checkpoints: tuple[Literal["newest", "milestones", "all"], ...] = ("newest", "milestones")
    """Checkpoints of a training to evaluate: newest, milestones or all."""

    limit: int = Field(default=8, ge=1)
    """Maximum number of checkpoints per night; the others are evaluated in the next night."""

    run_patterns: tuple[str, ...] = ("*",)
    """Patterns of the names of runs to include."""

    promote_if: Literal["better", "not_worse"] = "better"
    """Condition for promotion: better (significantly better on at least one task, worse on none) or
    not_worse."""

    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    """Confidence level of the bootstrap intervals, over all tasks together."""

    keep_nights: int = Field(default=2, ge=1)
    """Number of nights whose fine-tuned models are kept. Scores and the models of the last
    champions are always kept."""

    timezone: str = "UTC"
    """Time zone of the trend page and of dates in --since."""

    @field_validator("timezone")
    @classmethod
    def _known_zone(cls, value: str) -> str:
        try:
            zoneinfo.ZoneInfo(value)
        except (ValueError, zoneinfo.ZoneInfoNotFoundError):
            raise ValueError(
                "there is no such time zone; use a name such as Europe/Zurich"
            ) from None
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A checkpoint for the suite; `made_from` has its training's artifacts that exist, by stage."""

    path: str
    made_from: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """Settings and graph sections of a suite, and the arguments of `load`."""

    settings: NightSettings
    sections: Mapping[str, Any]
    reference: str
    overrides: Mapping[str, Any]

    def config(self, subjects: Mapping[str, Candidate]) -> RunConfig:
        """Return the config of the suite's graph over the checkpoints, given by label."""
        values: dict[str, Any] = {"name": NIGHT}
        for name, section in self.sections.items():
            points = (
                {label: _inputs(name, section, subject) for label, subject in subjects.items()}
                if name != RUN
                else {}
            )
            fitting = {label: inputs for label, inputs in points.items() if inputs is not None}
            if any(fitting.values()):
                values[name] = {**section, MATRIX: {AXIS: fitting, **(section.get(MATRIX) or {})}}
            elif fitting or name == RUN:  # else no checkpoint has what the section needs
                values[name] = section
        return RunConfig(values, NIGHT)


def load(reference: str = NIGHT, overrides: Mapping[str, Any] | None = None) -> Suite:
    """Read a suite from a config.

    Args:
        reference: a file, a preset, or `night` for the built-in suite.
        overrides: nested values by section, including `night`.

    Raises:
        UsageError: the config does not exist, a value is invalid, or no section reads a checkpoint.
    """
    given = dict(overrides or {})
    own = given.pop(NIGHT, {})
    values = configs.read(reference, given, {NIGHT: DEFAULT})
    settings = parse_config(
        NightSettings, merge(values.pop(NIGHT, None) or {}, own, None, NIGHT), NIGHT
    )
    kept: dict[str, Any] = {}
    for name, section in values.items():
        if name == RUN:
            kept[name] = section
        elif section is not False and (_reads(name) or _follows(name, kept)):
            kept[name] = section if isinstance(section, Mapping) else {}
    if not any(_reads(name) for name in kept):
        raise UsageError(
            f"config {reference!r} has no section that reads a checkpoint; give it one such as "
            f"finetune: {{task: sst2, data: …}}"
        )
    return Suite(
        settings=settings, sections=kept, reference=reference, overrides=dict(overrides or {})
    )


def _reads(name: str) -> bool:
    """Return whether the section's stage reads a pretrained checkpoint and trains none."""
    stage = stage_of(name)
    return stage is not None and stage != MAKER and _role(stage, MAKER) is not None


def _follows(name: str, before: Mapping[str, Any]) -> bool:
    """Return whether the section's stage requires the output of an earlier section."""
    stage = stage_of(name)
    if stage is None or stages.stage(stage).reads_all_nodes:
        return False
    made = {stage_of(other) for other in before}
    return any(
        made.intersection(wanted.kinds)
        for wanted in stages.stage(stage).inputs.values()
        if wanted.required
    )


def _role(stage: str, kind: str) -> str | None:
    return next(
        (role for role, wanted in stages.stage(stage).inputs.items() if kind in wanted.kinds), None
    )


def _inputs(name: str, section: Mapping[str, Any], subject: Candidate) -> dict[str, str] | None:
    """Return the inputs that the checkpoint provides, by role. None: a required one is missing.

    A stage that can read a corpus gets it only if the section sets no data.
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
