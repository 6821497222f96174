"""What a report gathers: the nodes of a run with their manifests, and their scores over instances."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from pipeline.core.artifact import Manifest

REPLICATES = ("seed",)  # axes whose instances say the same again: mean and deviation are over them
# Of a fine-tuning, in the unit of its first metric: what says the same whatever it reads, and the model from random weights.
BASELINES = ("majority", "constant", "chance", "from_scratch")
LOWER_IS_BETTER = ("loss", "perplexity", "entropy")
PRETRAINED = ("heldout_loss", "heldout_accuracy", "heldout_perplexity")  # scores of a pretraining
GOES_ON = ("continue", "checkpoint")  # roles by which a pretraining is a phase after another


class Place(BaseModel):
    """A node's place in its run's graph, as the graph tells it to a stage that gathers."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    section: str
    """The section of the config that it is an instance of."""
    values: dict[str, Any] = Field(default_factory=dict)
    """Its place in the matrices, by axis."""
    inputs: dict[str, str] = Field(default_factory=dict)
    """Role -> node, or node and what lies below its artifact (`pretrain/checkpoints/step-00001000`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """A made node. Attributes: path: of its artifact; history: the lines of its metrics.jsonl, of a pretraining."""

    name: str
    path: str
    manifest: Manifest
    place: Place
    history: Sequence[Mapping[str, Any]] = ()

    @property
    def stage(self) -> str:
        return self.manifest.stage

    @property
    def after(self) -> tuple[str, ...]:
        """The nodes that it needs."""
        return tuple(dict.fromkeys(origin.partition("/")[0] for origin in self.place.inputs.values()))

    @property
    def group(self) -> str:
        """The name that it shares with its replicates: `finetune@sst2` of `finetune@sst2-1`."""
        words = [str(value) for axis, value in self.place.values.items() if axis not in REPLICATES]
        stage, _, label = self.place.section.partition("@")
        words = [*([label] if label else []), *words]
        return f"{stage}@{'-'.join(words)}" if words else stage

    @property
    def task(self) -> str:
        """What it was fine-tuned or evaluated on; empty of other stages."""
        return str(self.manifest.summary.get("task") or "")

    @property
    def scores(self) -> dict[str, float]:
        """Its figures that can be compared, the most telling first: of a task its score."""
        found = self.manifest.summary
        named = found.get("metrics") or {name: found.get(name) for name in PRETRAINED if self.stage == "pretrain"}
        if found.get("metric") in named:  # a manifest's keys are in the order of the alphabet
            named = {found["metric"]: named[found["metric"]], **named}
        return {name: float(value) for name, value in named.items() if isinstance(value, (int, float)) and math.isfinite(value)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A metric over instances. Attributes: std: the sample's standard deviation; None of a single one."""

    mean: float
    std: float | None
    best: float
    best_node: str
    n: int

    def as_json(self) -> dict[str, Any]:
        return {"mean": self.mean, "std": self.std, "best": self.best, "best_node": self.best_node, "n": self.n}

    @property
    def told(self) -> str:
        """`0.512 ± 0.020`."""
        return f"{self.mean:.3f}" + ("" if self.std is None else f" ± {self.std:.3f}")


def lower_is_better(metric: str) -> bool:
    """Whether the least of the metric is the best."""
    return any(word in metric for word in LOWER_IS_BETTER)


def scores_of(nodes: Iterable[Gathered]) -> dict[str, Score]:
    """Metric -> its score over the nodes that have it."""
    found: dict[str, list[tuple[float, str]]] = {}
    for node in nodes:
        for metric, value in node.scores.items():
            found.setdefault(metric, []).append((value, node.name))
    return {metric: _score(metric, values) for metric, values in found.items()}


def _score(metric: str, found: Sequence[tuple[float, str]]) -> Score:
    values = [value for value, _ in found]
    best = (min if lower_is_better(metric) else max)(values)
    return Score(
        mean=statistics.fmean(values),
        std=statistics.stdev(values) if len(values) > 1 else None,
        best=best,
        best_node=next(name for value, name in found if value == best),
        n=len(values),
    )


def scored_groups(nodes: Iterable[Gathered]) -> dict[str, list[Gathered]]:
    """The nodes with scores by section, those of a section of several groups of replicates by group."""
    sections: dict[str, list[Gathered]] = {}
    for node in nodes:
        if node.scores:
            sections.setdefault(node.place.section, []).append(node)
    found: dict[str, list[Gathered]] = {}
    for section, members in sections.items():
        groups = by_group(members)
        found |= groups if len(groups) > 1 else {section: members}
    return found


def scores(nodes: Iterable[Gathered]) -> dict[str, dict[str, Score]]:
    """Group, as in `scored_groups` -> metric -> score over its replicates.

    There is none over a section's groups: they are of unlike tasks or settings, whose average says nothing.
    """
    return {group: scores_of(same) for group, same in scored_groups(nodes).items()}


def told_groups(nodes: Iterable[Gathered]) -> dict[str, dict[str, Any]]:
    """What each entry of `scores` is of: its `section`, its `task` (None of a stage that has none), which of its metrics is its `score`, its
    place in the matrices but the replicates' (`values`), and what its mean and deviation are `over`.
    """
    return {
        group: {
            "section": same[0].place.section,
            "task": same[0].task or None,
            "score": next(iter(same[0].scores)),
            "values": {axis: value for axis, value in same[0].place.values.items() if axis not in REPLICATES},
            "over": [axis for axis in REPLICATES if axis in same[0].place.values],
        }
        for group, same in scored_groups(nodes).items()
    }


def by_group(nodes: Iterable[Gathered]) -> dict[str, list[Gathered]]:
    """The nodes by the name that they share with their replicates."""
    groups: dict[str, list[Gathered]] = {}
    for node in nodes:
        groups.setdefault(node.group, []).append(node)
    return groups


def last_pretrainings(nodes: Sequence[Gathered]) -> list[Gathered]:
    """The pretrainings that no other one goes on from."""
    trained = [node for node in nodes if node.stage == "pretrain"]
    before = {origin.partition("/")[0] for node in trained for origin in node.place.inputs.values()}
    return [node for node in trained if node.name not in before]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The losses of one pretraining on the axis of all. Attributes: train, heldout: (step, loss)."""

    name: str
    objective: str
    train: Sequence[tuple[float, float]] = field(default_factory=tuple)
    heldout: Sequence[tuple[float, float]] = field(default_factory=tuple)


def curves(nodes: Sequence[Gathered]) -> list[Curve]:
    """The losses of all pretrainings; a phase that counts its steps from 1 again stands behind the one that it begins from."""
    found, ends = [], dict[str, float]()
    for node in nodes:
        if node.stage != "pretrain":
            continue
        objective = str((node.manifest.summary.get("objectives") or ["mlm"])[0])
        steps = [float(line["step"]) for line in node.history if "step" in line]
        shift = _shift(node, ends) if steps else 0.0
        lines = [{**line, "step": float(line["step"]) + shift} for line in node.history if "step" in line]
        train = tuple((line["step"], line[f"{objective}_loss"]) for line in lines if line.get(f"{objective}_loss") is not None)
        heldout = tuple((line["step"], line["heldout_loss"]) for line in lines if line.get("heldout_loss") is not None)
        ends[node.name] = max(steps, default=0.0) + shift
        found.append(Curve(name=node.name, objective=objective, train=train, heldout=heldout))
    return found


def _shift(node: Gathered, ends: Mapping[str, float]) -> float:
    origin = node.place.inputs.get("checkpoint")  # with `continue` the numbers go on by themselves
    if origin is None:
        return 0.0
    name, _, part = origin.partition("/")
    kept = part.rpartition("step-")[2]
    return float(int(kept)) if kept.isdigit() else ends.get(name, 0.0)
