"""GLUE's tasks of a run: mean, deviation and best on dev, beside the paper's figures; and which model's answers are handed in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flows.report.gathered import BASELINES, Gathered, scores_of
from flows.report.glue import CITED, DEV, FILES, TASKS, TEST, File
from flows.report.told import Told

MISMATCHED = "dev_mismatched"


def tuned(nodes: Iterable[Gathered], task: str) -> list[Gathered]:
    """The fine-tunings on a task."""
    return [node for node in nodes if node.stage == "finetune" and node.manifest.summary.get("task") == task]


def score(node: Gathered) -> float:
    """What models of a task are compared by: the first of its metrics on dev."""
    return next(iter(node.scores.values()))


def answers(nodes: Sequence[Gathered], file: File) -> tuple[Gathered, Gathered] | None:
    """The best model by dev of those that have answered the file's split, and the evaluation; None: none has."""
    models = {node.name: node for node in tuned(nodes, file.task)}
    found = []
    for node in nodes:
        maker = models.get(node.place.inputs.get("checkpoint", "").partition("/")[0])
        if (
            node.stage == "evaluate"
            and maker is not None
            and maker.scores
            and node.manifest.summary.get("split") in file.splits
        ):
            found.append((maker, node))
    return max(found, key=lambda pair: score(pair[0]), default=None)


def glue_table(nodes: Sequence[Gathered], least: int = 2) -> Told | None:
    """A row a task and metric, in hundredths; None where the run has fewer than `least` of GLUE's tasks."""
    there = [task for task in TASKS if tuned(nodes, task)]
    if len(there) < least:
        return None
    rows: list[Sequence[str]] = []
    for task in there:
        rows += _rows(task, tuned(nodes, task))
        beside = [
            node
            for node in nodes
            if node.stage == "evaluate"
            and node.manifest.summary.get("task") == task
            and node.manifest.summary.get("split") == MISMATCHED
        ]
        rows += _rows(f"{task}, mismatched", beside)
    absent = [task for task in TASKS if task not in there]
    notes = [f"Not in this run: {', '.join(absent)}."] if absent else []
    return Told(
        title="GLUE, dev",
        columns=("task", "metric", "mean", "best", "node", "base dev", "base test", "large dev", "large test"),
        rows=rows,
        notes=(*notes, CITED),
    )


def _rows(name: str, nodes: Sequence[Gathered]) -> list[Sequence[str]]:
    """Args: name: as in `TEST` and `DEV`."""
    rows: list[Sequence[str]] = []
    for metric, found in scores_of(nodes).items():
        if metric in BASELINES:
            continue
        dev, test = DEV.get((name, metric), (None, None)), TEST.get((name, metric), (None, None))
        spread = "" if found.std is None else f" ± {100 * found.std:.1f}"
        mean = f"{100 * found.mean:.1f}{spread} (n {found.n})"
        paper = (_told(dev[0]), _told(test[0]), _told(dev[1]), _told(test[1]))
        rows.append((name, metric, mean, f"{100 * found.best:.1f}", found.best_node.partition("@")[2], *paper))
    return rows


def _told(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def lacking(nodes: Sequence[Gathered]) -> dict[str, str]:
    """Files of a submission that this run has no answers for, and why."""
    found = {}
    for name, file in FILES.items():
        if answers(nodes, file) is None:
            there = tuned(nodes, file.task)
            found[name] = (
                f"no {file.splits[0]} file of {file.task}: dev only" if there else f"task {file.task} is not in this run"
            )
    return found
