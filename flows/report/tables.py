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
        return {
            "title": self.title,
            "columns": list(self.columns),
            "rows": [list(row) for row in self.rows],
            "notes": list(self.notes),
        }

    def markdown(self) -> str:
        """Return the table with title and notes in GitHub's Markdown."""
        lines = [
            f"## {self.title}",
            "",
            _line(self.columns),
            _line(["---", *("---:" for _ in self.columns[1:])]),
        ]
        lines += [_line(row) for row in self.rows]
        for note in self.notes:
            lines += ["", note]
        return "\n".join(lines) + "\n"


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
    axes = list(
        dict.fromkeys(axis for replicates in groups.values() for axis in _setting(replicates[0]))
    )
    differing = [
        axis
        for axis in axes
        if len({str(_setting(replicates[0]).get(axis)) for replicates in groups.values()}) > 1
    ]
    if len(groups) < 2 or not differing:
        return None
    metric = next(iter(members[0].scores))
    scores = {group: scores_of(replicates)[metric] for group, replicates in groups.items()}
    ranked = sorted(
        scores, key=lambda group: scores[group].mean, reverse=not lower_is_better(metric)
    )
    rows = []
    for group in ranked[:MOST]:
        setting, group_score = _setting(groups[group][0]), scores[group]
        rows.append((*(str(setting.get(axis, "")) for axis in differing), *_figures(group_score)))
    notes = [f"The first row is the best by its mean on dev over {scores[ranked[0]].n} seeds."]
    if len(ranked) > MOST:
        notes.append(f"{len(ranked) - MOST} more settings are in the report's scores.")
    return SummaryTable(
        title=f"{SETTINGS}{task}, {metric} on dev",
        columns=(*differing, *FIGURES),
        rows=rows,
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


def _figures(found: Score) -> tuple[str, str, str, str]:
    return (
        f"{found.mean:.4f}",
        "" if found.std is None else f"{found.std:.4f}",
        f"{found.best:.4f}",
        str(found.n),
    )


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
                    rows.append(
                        (
                            group,
                            name,
                            metric,
                            score.format,
                            multitask_score.format,
                            f"{multitask_score.mean - score.mean:+.3f}",
                        )
                    )
    if not rows:
        return None
    return SummaryTable(
        title="Several tasks at once and each alone, dev",
        columns=("multitask", "task", "metric", "alone", "at once", "difference"),
        rows=rows,
        notes=("Mean ± the sample's standard deviation over seeds.",),
    )
