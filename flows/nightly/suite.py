"""The suite: the graph that a nightly run applies to each checkpoint.

A config's section `night` configures discovery and gate; its other sections are nodes. The suite
takes the stages that read a pretrained checkpoint (`finetune`, `perplexity`, …) and those that
depend on them (`evaluate`). So any run's config can be used. Each section that reads a checkpoint
gets an additional axis over the checkpoints, the last one: `finetune@sst2-1-demo.200`. So does a
section that names such nodes, alone or by a pattern: of `finetune@sst2-*`, an ensemble reads
`finetune@sst2-*-{of}`.
"""

from __future__ import annotations

import zoneinfo
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from cloze.core.config import Values, parse_config
from cloze.core.errors import UsageError
from cloze.core.plugins import Table, with_substitutes
from cloze.flows.graph import config as configs
from cloze.flows.graph import stages
from cloze.flows.graph.config import RunConfig
from cloze.flows.graph.nodes import stage_of
from cloze.flows.graph.overrides import merge
from cloze.flows.graph.sections import MATRIX, RUN, mapping_at

NIGHT = "night"  # the section, the run's name and the default config
DEFAULT = Path(__file__).with_name("night.yaml")
AXIS = "of"  # axis over the checkpoints
PRETRAIN = "pretrain"
CHAMPION = "champion"  # input of a stage that measures a candidate against the champion
SCORE = "score"
# Limits by name: functions of a limit, a candidate's artifacts and the confidence, which return
# whether it holds and a sentence. `stage`: that of the artifacts which they read.
LIMITS: Table[Any] = Table("promotion_limits", "condition of promote_if", {})


class NightSettings(Values):
    """Settings of a nightly run: which checkpoints it evaluates, and how the gate decides."""

    checkpoints: tuple[Literal["newest", "milestones", "all"], ...] = Field(
        default=("newest", "milestones"), min_length=1
    )
    """Checkpoints of a training to evaluate: newest, milestones or all."""

    limit: int = Field(default=8, ge=1)
    """Maximum number of checkpoints per night; the others are evaluated in the next night."""

    run_patterns: tuple[str, ...] = Field(default=("*",), min_length=1)
    """Patterns of the names of runs to include."""

    promote_if: dict[str, str] = Field(default={SCORE: "better"})
    """Condition for promotion: better (significantly better on at least one task, worse on none),
    not_worse, or a mapping of score to one of them and of limits, such as {score: better,
    latency_ms: "<= 12"}."""

    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    """Confidence level of the bootstrap intervals, over all tasks together."""

    keep_nights: int = Field(default=2, ge=1)
    """Number of nights whose fine-tuned models are kept. Scores and the models of the last
    champions are always kept."""

    clean_after_days: float | None = Field(default=None, gt=0)
    """At the end of a night, remove artifacts of all runs that nothing needs and that were unused
    for this many days, as `cloze clean` does. Default: never."""

    timezone: str = "UTC"
    """Time zone of the trend page and of dates in --since."""

    @field_validator("promote_if", mode="before")
    @classmethod
    def _known_limits(cls, value: Any) -> Any:
        value = {SCORE: "better", **value} if isinstance(value, dict) else {SCORE: value}
        if value[SCORE] not in ("better", "not_worse"):
            raise ValueError(f"{value[SCORE]!r} is unknown; use better or not_worse")
        for name in value.keys() - {SCORE}:
            LIMITS.find(name)(str(value[name]), (), 0.95)
        return value

    def check_limits(self, paths: Sequence[str], candidates: int) -> tuple[bool, str]:
        """Return whether a candidate's artifacts keep all limits, and clauses about them."""
        share = 1 - (1 - self.confidence) / candidates
        limits = [(LIMITS[name], limit) for name, limit in self.promote_if.items() if name != SCORE]
        found = [check(limit, paths, share) for check, limit in limits]
        return all(holds for holds, _ in found), "".join(f"; {text}" for _, text in found)

    @field_validator("timezone")
    @classmethod
    def _known_zone(cls, value: str) -> str:
        try:
            zoneinfo.ZoneInfo(value)
        except (ValueError, zoneinfo.ZoneInfoNotFoundError):
            raise ValueError("unknown time zone; use a name such as Europe/Zurich") from None
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """Settings and graph sections of a suite, and the arguments of `load`."""

    settings: NightSettings
    sections: Mapping[str, Any]
    reference: str
    overrides: Mapping[str, Any]
    project: str | None = None

    def config(self, subjects: Mapping[str, Mapping[str, str]]) -> RunConfig:
        """Return the config of the suite's graph over the checkpoints.

        Args:
            subjects: paths by stage, by checkpoint label: the checkpoint as `pretrain`, and those
                artifacts it was trained on that exist.
        """
        values: dict[str, Any] = {"name": NIGHT, configs.PROJECT: self.project}
        for name, section in self.sections.items():
            if name == RUN:
                values[name] = section
                continue
            roles = stages.stage(str(stage_of(name))).inputs.keys() & section.keys()
            own = {role: self._of_subject(section[role]) for role in roles}
            inputs = {
                label: node_inputs
                for label, artifacts in subjects.items()
                if (node_inputs := self._inputs(name, section, artifacts)) is not None
            }
            if any(inputs.values()) or any(own[role] != section[role] for role in roles):
                matrix = {**(section.get(MATRIX) or {}), AXIS: inputs}
                values[name] = {**section, **own, MATRIX: matrix}
            elif inputs:  # else no checkpoint has the inputs that the section requires
                values[name] = section
        return RunConfig(values, NIGHT)

    def _of_subject(self, reference: Any) -> Any:
        """Return a reference to nodes of the suite, or a list of them, for one checkpoint."""
        if isinstance(reference, (list, tuple)):
            return [self._of_subject(item) for item in reference]
        node, slash, path = str(reference).partition("/")
        stage, at, _ = node.partition("@")
        if not at or node in self.sections or stage not in map(stage_of, self.sections):
            return reference
        return f"{node}-{{{AXIS}}}{slash}{path}"

    def _inputs(
        self, name: str, section: Mapping[str, Any], artifacts: Mapping[str, str]
    ) -> dict[str, str] | None:
        """Return the inputs that the checkpoint provides, by role. None: a required one is missing.

        A checkpoint that another section of the suite makes from it stays, such as that of an
        intermediate task. A stage that can read a corpus gets it only if the section sets no data.
        """
        inputs = {}
        stage = str(stage_of(name))
        for role, spec in stages.stage(stage).inputs.items():
            kinds = with_substitutes(spec.kinds, stage)
            path = next((artifacts[kind] for kind in (*kinds, role) if kind in artifacts), None)
            if PRETRAIN in spec.kinds and str(section.get(role)) not in self.sections:
                inputs[role] = artifacts[PRETRAIN]
            elif role in section:
                continue
            elif path is not None and (spec.required or "data" not in section):
                inputs[role] = path
            elif spec.required and set(kinds) <= {"dataset", "corpus"}:
                return None
        return inputs


def load(reference: str = NIGHT, overrides: Mapping[str, Any] | None = None) -> Suite:
    """Read a suite from a config.

    Args:
        reference: a file, a preset, or `night` for the built-in suite.
        overrides: nested values by section, including `night`.

    Raises:
        UsageError: the config does not exist, a value is invalid, or no section reads a checkpoint.
    """
    section_overrides = dict(overrides or {})
    night_overrides = section_overrides.pop(NIGHT, {})
    values = configs.read(reference, section_overrides, {NIGHT: DEFAULT})
    night = merge(mapping_at(values, NIGHT, ""), night_overrides, None, NIGHT)
    values.pop(NIGHT, None)
    settings = parse_config(NightSettings, night, NIGHT)
    sections: dict[str, Any] = {}
    for name, section in values.items():
        if name == RUN:
            sections[name] = section
        elif section is not False and (_reads_checkpoint(name) or _follows(name, sections)):
            sections[name] = section if isinstance(section, Mapping) else {}
    if not any(_reads_checkpoint(name) for name in sections):
        raise UsageError(
            f"config {reference!r} has no section that reads a checkpoint; add one such as "
            f"finetune: {{task: sst2, data: …}}"
        )
    for limit in settings.promote_if.keys() - {SCORE}:
        if (stage := LIMITS[limit].stage) not in map(stage_of, sections):
            raise UsageError(f"promote_if ({limit}) needs a section {stage} of the suite; add one")
    return Suite(
        settings=settings,
        sections=sections,
        reference=reference,
        overrides=dict(overrides or {}),
        project=values.get(configs.PROJECT),
    )


def _reads_checkpoint(name: str) -> bool:
    """Return whether the section's stage reads a pretrained checkpoint and trains none."""
    stage = stage_of(name)
    if stage is None or stage == PRETRAIN:
        return False
    return any(PRETRAIN in spec.kinds for spec in stages.stage(stage).inputs.values())


def _follows(name: str, before: Mapping[str, Any]) -> bool:
    """Return whether the section's stage requires the output of an earlier section."""
    stage = stage_of(name)
    if stage is None or stages.stage(stage).reads_all_nodes:
        return False
    outputs = {stage_of(other) for other in before}
    specs = stages.stage(stage).inputs.values()
    return any(
        spec.required and outputs.intersection(with_substitutes(spec.kinds, stage))
        for spec in specs
    )
