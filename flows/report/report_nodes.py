"""Nodes of a run with their manifests, their scores over replicates, and tables of scores."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field

from cloze.core.artifacts.artifact import Manifest, read_manifest
from cloze.core.config import Values
from cloze.core.figures import goodness, is_finite

REPLICATES = ("seed",)  # axes of replicates: mean and deviation are over them
# Baselines of a fine-tuning in its first metric: constant predictions, and the model from random
# weights.
BASELINES = ("majority", "constant", "chance", "from_scratch")
PRETRAINED = ("heldout_loss", "heldout_accuracy", "heldout_perplexity")  # scores of a pretraining


class NodePlacement(Values):
    """A node's position in its run's graph, as passed to a stage that reads all nodes."""

    section: str
    """Section of the config that the node is an instance of."""
    values: dict[str, Any] = Field(default_factory=dict)
    """Values of the node in the matrices, by axis."""
    inputs: dict[str, str] = Field(default_factory=dict)
    """Node, or node and path below its artifact (`pretrain/checkpoints/step-00001000`), by role."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportNode:
    """A finished node; `path`: its artifact; `history`: a pretraining's metrics.jsonl."""

    name: str
    path: str
    manifest: Manifest
    placement: NodePlacement
    history: Sequence[Mapping[str, Any]] = ()

    @property
    def stage(self) -> str:
        return self.manifest.stage

    @property
    def after(self) -> tuple[str, ...]:
        origins = self.placement.inputs.values()
        return tuple(dict.fromkeys(origin.partition("/")[0] for origin in origins))

    @property
    def own_origins(self) -> tuple[str, ...]:
        """Names of the nodes that its data and weights come from; without teachers, and without
        the checkpoint whose model starts from random weights.
        """
        apart = {"teacher", "checkpoint" if self.manifest.config.get("from_scratch") else ""}
        inputs = {role: of for role, of in self.placement.inputs.items() if role not in apart}
        return tuple(dict.fromkeys(origin.partition("/")[0] for origin in inputs.values()))

    @property
    def group(self) -> str:
        """Name shared with its replicates: `finetune@sst2` for `finetune@sst2-1`."""
        stage, _, label = self.placement.section.partition("@")
        values = self.placement.values.items()
        parts = [label, *(str(value) for axis, value in values if axis not in REPLICATES)]
        name = "-".join(filter(None, parts))
        return f"{stage}@{name}" if name else stage

    @property
    def task(self) -> str:
        """Task that it was fine-tuned or evaluated on; empty for other stages."""
        return str(self.manifest.summary.get("task") or "")

    @property
    def scores(self) -> dict[str, float]:
        """Comparable metrics; a main metric is first, and none counts without it."""
        summary = self.manifest.summary
        metrics = summary.get("metrics") or {
            name: summary.get(name) for name in PRETRAINED if self.stage == "pretrain"
        }
        if summary.get("metric") in metrics:  # a manifest's keys are sorted alphabetically
            metrics = {summary["metric"]: metrics[summary["metric"]], **metrics}
            if not is_finite(metrics[summary["metric"]]):
                return {}  # a baseline is not its result
        return {name: float(value) for name, value in metrics.items() if is_finite(value)}


def read_node(name: str, path: str, placements: Mapping[str, NodePlacement]) -> ReportNode:
    """Return the node with the artifact at `path`, without its history."""
    placement = placements.get(name) or NodePlacement(section=name)
    return ReportNode(name=name, path=path, manifest=read_manifest(path), placement=placement)


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A metric over replicates; `std`: sample standard deviation, None for one replicate."""

    mean: float
    std: float | None
    best: float
    best_node: str
    n: int

    @property
    def format(self) -> str:
        """Mean and deviation as text: `0.512 ± 0.020`."""
        return f"{self.mean:.3f}" + ("" if self.std is None else f" ± {self.std:.3f}")


def scores_of(nodes: Iterable[ReportNode]) -> dict[str, Score]:
    """Return the score of each metric over the nodes that have it."""
    observations: dict[str, list[tuple[float, str]]] = {}
    for node in nodes:
        for metric, value in node.scores.items():
            observations.setdefault(metric, []).append((value, node.name))
    return {metric: _score(metric, values) for metric, values in observations.items()}


def _score(metric: str, observations: Sequence[tuple[float, str]]) -> Score:
    values = [value for value, _ in observations]
    best, best_node = max(observations, key=lambda observation: goodness(observation[0], metric))
    std = statistics.stdev(values) if len(values) > 1 else None
    mean = statistics.fmean(values)
    return Score(mean=mean, std=std, best=best, best_node=best_node, n=len(values))


def grouped(
    nodes: Iterable[ReportNode], key: Callable[[ReportNode], str]
) -> dict[str, list[ReportNode]]:
    """Return nodes by key, in order of the first node of each."""
    groups: dict[str, list[ReportNode]] = {}
    for node in nodes:
        groups.setdefault(key(node), []).append(node)
    return groups


def scored_sections(nodes: Iterable[ReportNode]) -> dict[str, list[ReportNode]]:
    return grouped((node for node in nodes if node.scores), lambda node: node.placement.section)


def scored_groups(nodes: Iterable[ReportNode]) -> dict[str, list[ReportNode]]:
    """Return nodes with scores by section, or by group if a section has several groups."""
    scored: dict[str, list[ReportNode]] = {}
    for section, members in scored_sections(nodes).items():
        groups = by_group(members)
        scored |= groups if len(groups) > 1 else {section: members}
    return scored


def scores(nodes: Iterable[ReportNode]) -> dict[str, dict[str, Score]]:
    """Return group (as in `scored_groups`) -> metric -> score over its replicates.

    Groups of a section are not averaged: they differ in task or settings.
    """
    return {group: scores_of(replicates) for group, replicates in scored_groups(nodes).items()}


def describe_groups(nodes: Iterable[ReportNode]) -> dict[str, dict[str, Any]]:
    """Describe each entry of `scores`.

    Returns:
        For each group `section`, `task` (None without a task), `score` (main metric), `values`
        (matrix values without replicates) and `over` (axes of the mean).
    """
    descriptions = {}
    for group, replicates in scored_groups(nodes).items():
        first = replicates[0]
        values = first.placement.values
        descriptions[group] = {
            "section": first.placement.section,
            "task": first.task or None,
            "score": next(iter(first.scores)),
            "values": {axis: value for axis, value in values.items() if axis not in REPLICATES},
            "over": [axis for axis in REPLICATES if axis in values],
        }
    return descriptions


def by_group(nodes: Iterable[ReportNode]) -> dict[str, list[ReportNode]]:
    """Return the nodes by the name that they share with their replicates."""
    return grouped(nodes, lambda node: node.group)


def last_pretrainings(nodes: Sequence[ReportNode]) -> list[ReportNode]:
    """Return the pretrainings that no other one continues."""
    trained = [node for node in nodes if node.stage == "pretrain"]
    continued = {origin for node in trained for origin in node.own_origins}
    return [node for node in trained if node.name not in continued]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Losses of a pretraining as (step, loss), with steps counted over all phases."""

    name: str
    objective: str
    train: Sequence[tuple[float, float]] = field(default_factory=tuple)
    heldout: Sequence[tuple[float, float]] = field(default_factory=tuple)


def curves(nodes: Sequence[ReportNode]) -> list[Curve]:
    """Return the losses of all pretrainings.

    A phase that counts its steps from 1 is shifted by the step of the checkpoint that it starts
    from.
    """
    all_curves, ends = [], dict[str, float]()
    for node in nodes:
        if node.stage != "pretrain":
            continue
        objective = str((node.manifest.summary.get("objectives") or ["mlm"])[0])
        history = [entry for entry in node.history if "step" in entry]
        shift = _shift(node, ends) if history else 0.0
        train, heldout = (
            tuple(
                (float(entry["step"]) + shift, entry[name])
                for entry in history
                if entry.get(name) is not None
            )
            for name in (f"{objective}_loss", "heldout_loss")
        )
        ends[node.name] = max((float(entry["step"]) for entry in history), default=0.0) + shift
        all_curves.append(Curve(name=node.name, objective=objective, train=train, heldout=heldout))
    return all_curves


def _shift(node: ReportNode, ends: Mapping[str, float]) -> float:
    origin = node.placement.inputs.get("checkpoint")  # with `continue` the step count continues
    if origin is None:
        return 0.0
    name, _, subpath = origin.partition("/")
    step = subpath.rpartition("step-")[2]
    return float(int(step)) if step.isdigit() else ends.get(name, 0.0)


# Tables in summaries of stages: for the terminal and the report's page


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryTable:
    """A table of text with notes below; the first column names what the others measure."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = field(default_factory=tuple)

    def as_json(self) -> dict[str, Any]:
        rows = [list(row) for row in self.rows]
        columns, notes = list(self.columns), list(self.notes)
        return {"title": self.title, "columns": columns, "rows": rows, "notes": notes}


# Settings of a grid by mean on dev, multi-task training compared with single tasks, and tests on
# other tasks than the trained one.

MULTITASK = "multitask"
MOST = 12  # maximum number of settings shown per task
SETTINGS = "Settings of "  # prefix of their tables' titles
FIGURES = ("mean", "deviation", "best", "n")  # columns after those of the setting


def best_settings(nodes: Sequence[ReportNode]) -> list[SummaryTable]:
    """Return a table for each task that was fine-tuned with two settings or more.

    A setting consists of all matrix values except seed and task.
    """
    ranked = (_ranked(task, members) for task, members in _by_task(nodes).items())
    return list(filter(None, ranked))


def _by_task(nodes: Sequence[ReportNode]) -> dict[str, list[ReportNode]]:
    tuned = (node for node in nodes if node.stage == "finetune" and node.scores)
    return grouped(tuned, lambda node: str(node.manifest.summary.get("task")))


def _setting(node: ReportNode) -> dict[str, Any]:
    values, left_out = node.placement.values.items(), (*REPLICATES, "task")
    return {axis: value for axis, value in values if axis not in left_out}


def _ranked(task: str, members: Sequence[ReportNode]) -> SummaryTable | None:
    groups = by_group([node for node in members if _setting(node)])
    settings = {group: _setting(replicates[0]) for group, replicates in groups.items()}
    axes = dict.fromkeys(axis for setting in settings.values() for axis in setting)
    differing = [
        axis for axis in axes if len({str(setting.get(axis)) for setting in settings.values()}) > 1
    ]
    if len(groups) < 2 or not differing:
        return None
    metric = next(iter(members[0].scores))
    scores = {group: scores_of(replicates)[metric] for group, replicates in groups.items()}
    cells = {key: [str(own.get(axis, "")) for axis in differing] for key, own in settings.items()}
    ranked = sorted(scores, key=lambda group: -goodness(scores[group].mean, metric))
    notes = [f"The first row is the best by its mean on dev over {scores[ranked[0]].n} seeds."]
    if len(ranked) > MOST:
        notes.append(f"{len(ranked) - MOST} more settings are in the report's scores.")
    return SummaryTable(
        title=f"{SETTINGS}{task}, {metric} on dev",
        columns=(*differing, *FIGURES),
        rows=[(*cells[group], *_figures(scores[group])) for group in ranked[:MOST]],
        notes=notes,
    )


def best_setting(tables: Sequence[Mapping[str, Any]]) -> str | None:
    """Describe the best setting in a report's tables; None: no grid, or several tasks."""
    setting_tables = [
        table for table in tables if tuple(table["columns"][-len(FIGURES) :]) == FIGURES
    ]
    if len(setting_tables) != 1:
        return None
    axes, row = setting_tables[0]["columns"][: -len(FIGURES)], setting_tables[0]["rows"][0]
    setting = ", ".join(
        f"{axis} {value}" for axis, value in zip(axes, row[: len(axes)], strict=True)
    )
    task = str(setting_tables[0]["title"]).removeprefix(SETTINGS)
    return f"{task}: best with {setting}, mean {row[len(axes)]} of {row[-1]}"


def _figures(score: Score) -> tuple[str, str, str, str]:
    std = "" if score.std is None else f"{score.std:.4f}"
    return f"{score.mean:.4f}", std, f"{score.best:.4f}", str(score.n)


def multitask_versus_single(nodes: Sequence[ReportNode]) -> SummaryTable | None:
    """Compare multi-task with single-task fine-tunings, a row per task and metric.

    None: the run has no such pair.
    """
    tuned, rows = _by_task(nodes), list[Sequence[str]]()
    for group, members in by_group(tuned.get(MULTITASK, ())).items():
        multitask_scores = scores_of(members)
        for name, options in (members[0].manifest.config.get("tasks") or {}).items():
            same_task = tuned.get(str((options or {}).get("task") or name), ())
            singles = by_group(node for node in same_task if _agrees(node, members[0]))
            for single, replicates in singles.items():
                label = name if len(singles) == 1 else f"{name}, {single}"
                for metric, score in scores_of(replicates).items():
                    multitask_score = multitask_scores.get(f"{name}_{metric}")
                    if multitask_score is not None and metric not in BASELINES:
                        difference = f"{multitask_score.mean - score.mean:+.3f}"
                        both = score.format, multitask_score.format
                        rows.append((group, label, metric, *both, difference))
    if not rows:
        return None
    return SummaryTable(
        title="Several tasks at once and each alone, dev",
        columns=("multitask", "task", "metric", "alone", "at once", "difference"),
        rows=rows,
        notes=("Mean ± the sample's standard deviation over seeds.",),
    )


def _agrees(node: ReportNode, other: ReportNode) -> bool:
    """Return whether two nodes have equal values on the axes that both have."""
    setting = _setting(other)
    return all(setting.get(axis, value) == value for axis, value in _setting(node).items())


def cross_tests(nodes: Sequence[ReportNode]) -> SummaryTable | None:
    """Return the main scores by trained task and setting (rows), and tested task (columns).

    None: no evaluation names a task with `test_on`.
    """
    cells: dict[tuple[str, str], list[ReportNode]] = {}
    for node in nodes:
        trained = node.manifest.summary.get("trained_on")
        if trained is not None and node.scores:
            tested = f"{node.task} {node.manifest.summary['split']}, {next(iter(node.scores))}"
            setting = {**_setting(node), "test_on": None}
            axes = [f"{axis} {value}" for axis, value in setting.items() if value is not None]
            cells.setdefault((", ".join([str(trained), *axes]), tested), []).append(node)
    if not cells:
        return None
    rows, columns = (dict.fromkeys(key[axis] for key in cells) for axis in (0, 1))
    text = {key: next(iter(scores_of(own).values())).format for key, own in cells.items()}
    return SummaryTable(
        title="Trained on one task, tested on another",
        columns=("trained on", *columns),
        rows=[(row, *(text.get((row, column), "") for column in columns)) for row in rows],
        notes=("Mean ± the sample's standard deviation over seeds.",),
    )
