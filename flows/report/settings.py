"""Settings of a grid: of each task the one whose mean over seeds is best on dev; and several tasks at once beside each alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flows.report.gathered import BASELINES, REPLICATES, Gathered, Score, by_group, lower_is_better, scores_of
from flows.report.told import Told

TOGETHER = "together"
MOST = 12  # settings of a task that are told, the best first
SETTINGS = "Settings of "  # opens their tables' titles
FIGURES = ("mean", "deviation", "best", "n")  # of a setting, behind what it is


def best_settings(nodes: Sequence[Gathered]) -> list[Told]:
    """A table a task that was fine-tuned with two settings or more; a setting is all that a matrix says, but the seed."""
    return [told for task, members in _by_task(nodes).items() if (told := _ranked(task, members)) is not None]


def _by_task(nodes: Sequence[Gathered]) -> dict[str, list[Gathered]]:
    found: dict[str, list[Gathered]] = {}
    for node in nodes:
        if node.stage == "finetune" and node.scores:
            found.setdefault(str(node.manifest.summary.get("task")), []).append(node)
    return found


def _setting(node: Gathered) -> dict[str, Any]:
    return {axis: value for axis, value in node.place.values.items() if axis not in (*REPLICATES, "task")}


def _ranked(task: str, members: Sequence[Gathered]) -> Told | None:
    groups = by_group([node for node in members if _setting(node)])
    axes = list(dict.fromkeys(axis for same in groups.values() for axis in _setting(same[0])))
    differing = [axis for axis in axes if len({str(_setting(same[0]).get(axis)) for same in groups.values()}) > 1]
    if len(groups) < 2 or not differing:
        return None
    metric = next(iter(members[0].scores))
    scores = {group: scores_of(same)[metric] for group, same in groups.items()}
    ranked = sorted(scores, key=lambda group: scores[group].mean, reverse=not lower_is_better(metric))
    rows = []
    for group in ranked[:MOST]:
        setting, found = _setting(groups[group][0]), scores[group]
        rows.append((*(str(setting.get(axis, "")) for axis in differing), *_figures(found)))
    notes = [f"The first row is the best by its mean on dev over {scores[ranked[0]].n} seeds."]
    if len(ranked) > MOST:
        notes.append(f"{len(ranked) - MOST} more settings are in the report's scores.")
    return Told(
        title=f"{SETTINGS}{task}, {metric} on dev",
        columns=(*differing, *FIGURES),
        rows=rows,
        notes=notes,
    )


def best_setting(tables: Sequence[Mapping[str, Any]]) -> str | None:
    """In words, of the tables of a report's summary; None: they are of no grid, or of several tasks."""
    of_settings = [table for table in tables if tuple(table["columns"][-len(FIGURES) :]) == FIGURES]
    if len(of_settings) != 1:
        return None
    axes, row = of_settings[0]["columns"][: -len(FIGURES)], of_settings[0]["rows"][0]
    setting = ", ".join(f"{axis} {value}" for axis, value in zip(axes, row[: len(axes)], strict=True))
    what = str(of_settings[0]["title"]).removeprefix(SETTINGS)
    return f"{what}: best with {setting}, mean {row[len(axes)]} of {row[-1]}"


def _figures(found: Score) -> tuple[str, str, str, str]:
    return f"{found.mean:.4f}", "" if found.std is None else f"{found.std:.4f}", f"{found.best:.4f}", str(found.n)


def together_and_alone(nodes: Sequence[Gathered]) -> Told | None:
    """A row a task and metric of the trainings on several tasks at once, beside the trainings on that task alone; None: there are none such."""
    tuned = _by_task(nodes)
    whole = {node.name: node for node in tuned.get(TOGETHER, ())}
    rows: list[Sequence[str]] = []
    for group, members in by_group(whole.values()).items():
        found = scores_of(members)
        for name, part in (members[0].manifest.config.get("tasks") or {}).items():
            alone = scores_of(tuned.get(str((part or {}).get("task") or name), ()))
            for metric, score in alone.items():
                both = found.get(f"{name}_{metric}")
                if both is not None and metric not in BASELINES:
                    rows.append((group, name, metric, score.told, both.told, f"{both.mean - score.mean:+.3f}"))
    if not rows:
        return None
    return Told(
        title="Several tasks at once beside each alone, dev",
        columns=("together", "task", "metric", "alone", "at once", "difference"),
        rows=rows,
        notes=("Mean ± the sample's standard deviation over seeds.",),
    )
