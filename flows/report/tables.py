"""Tables in summaries of stages: for the terminal, Markdown and the report's page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cloze.flows.report.report_nodes import (
    BASELINES,
    REPLICATES,
    ReportNode,
    Score,
    by_group,
    lower_is_better,
    scores_of,
)


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

    def markdown(self) -> str:
        """Return the table with title and notes in GitHub's Markdown."""
        ruler = ["---", *("---:" for _ in self.columns[1:])]
        rows = [_line(cells) for cells in (self.columns, ruler, *self.rows)]
        notes = [line for note in self.notes for line in ("", note)]
        return "\n".join([f"## {self.title}", "", *rows, *notes]) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


# Settings of a grid by mean on dev, and multi-task training compared with single tasks.

MULTITASK = "multitask"
MOST = 12  # maximum number of settings shown per task
SETTINGS = "Settings of "  # prefix of their tables' titles
FIGURES = ("mean", "deviation", "best", "n")  # columns after those of the setting


def best_settings(nodes: Sequence[ReportNode]) -> list[SummaryTable]:
    """Return a table for each task that was fine-tuned with two settings or more.

    A setting consists of all matrix values except seed and task.
    """
    return [
        table
        for task, members in _by_task(nodes).items()
        if (table := _ranked(task, members)) is not None
    ]


def _by_task(nodes: Sequence[ReportNode]) -> dict[str, list[ReportNode]]:
    by_task: dict[str, list[ReportNode]] = {}
    for node in nodes:
        if node.stage == "finetune" and node.scores:
            by_task.setdefault(str(node.manifest.summary.get("task")), []).append(node)
    return by_task


def _setting(node: ReportNode) -> dict[str, Any]:
    return {
        axis: value
        for axis, value in node.place.values.items()
        if axis not in (*REPLICATES, "task")
    }


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
    sign = 1.0 if lower_is_better(metric) else -1.0
    ranked = sorted(scores, key=lambda group: sign * scores[group].mean)
    notes = [f"The first row is the best by its mean on dev over {scores[ranked[0]].n} seeds."]
    if len(ranked) > MOST:
        notes.append(f"{len(ranked) - MOST} more settings are in the report's scores.")
    return SummaryTable(
        title=f"{SETTINGS}{task}, {metric} on dev",
        columns=(*differing, *FIGURES),
        rows=[
            (
                *(str(settings[group].get(axis, "")) for axis in differing),
                *_figures(scores[group]),
            )
            for group in ranked[:MOST]
        ],
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
    tuned = _by_task(nodes)
    multitask_nodes = {node.name: node for node in tuned.get(MULTITASK, ())}
    rows: list[Sequence[str]] = []
    for group, members in by_group(multitask_nodes.values()).items():
        multitask_scores = scores_of(members)
        for name, options in (members[0].manifest.config.get("tasks") or {}).items():
            single_scores = scores_of(tuned.get(str((options or {}).get("task") or name), ()))
            for metric, score in single_scores.items():
                multitask_score = multitask_scores.get(f"{name}_{metric}")
                if multitask_score is not None and metric not in BASELINES:
                    difference = f"{multitask_score.mean - score.mean:+.3f}"
                    both = score.format, multitask_score.format
                    rows.append((group, name, metric, *both, difference))
    if not rows:
        return None
    return SummaryTable(
        title="Several tasks at once and each alone, dev",
        columns=("multitask", "task", "metric", "alone", "at once", "difference"),
        rows=rows,
        notes=("Mean ± the sample's standard deviation over seeds.",),
    )
