"""Result of a nightly run: for the terminal, the flow, MLflow and the trend page.

MLflow gets a run with the decision and the trend page, with a child run for each checkpoint's
scores. They go through the spool, so nothing waits for a server. The suite's session records its
own nodes. The trend page is one file that needs no network; it is drawn from the journal alone.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from cloze.core import storage
from cloze.core.artifacts.artifact import MANIFEST
from cloze.core.artifacts.lock import locked
from cloze.core.errors import UsageError
from cloze.core.figures import is_finite
from cloze.core.humanize import format_number, shortened, templates_in
from cloze.flows.nightly.discovery import CheckpointInfo, CheckpointSelection
from cloze.flows.nightly.journal import Champion, Change, Journal
from cloze.flows.nightly.missed import format_time, time_of
from cloze.flows.nightly.promotion_gate import PromotionDecision
from cloze.flows.report.plots import BLUE, GREEN, MUTED, STYLE, svg
from cloze.flows.tracking.spool import DIRECTORY, Spool, tracking_uri


@dataclass(slots=True, kw_only=True)
class NightlyResult:
    """Result of a nightly run.

    Attributes:
        evaluated: results as in the journal.
        pruned: checkpoints that their training pruned before they were read.
        errors: errors by node.
        warnings: messages for the user.
        message: number of checkpoints by what happened to them.
    """

    choice: CheckpointSelection
    evaluated: list[dict[str, Any]] = field(default_factory=list)
    pruned: list[CheckpointInfo] = field(default_factory=list)
    errors: dict[str, BaseException] = field(default_factory=dict)
    decision: PromotionDecision | None = None
    candidate: str | None = None
    champion: Champion | None = None
    warnings: list[str] = field(default_factory=list)
    trend: str | None = None
    message: str = ""

    def as_json(self) -> dict[str, Any]:
        return {
            "new": len(self.choice.new),
            "evaluated": self.evaluated,
            "waiting": [item.key for item in self.choice.waiting],
            "passed": len(self.choice.skipped),
            "given_up": [item.key for item in self.choice.given_up],
            "gone": [item.key for item in self.pruned],
            "failed": {name: str(error) for name, error in self.errors.items()},
            "candidate": self.candidate, "promoted": self.is_promoted,
            "why": self.why, "message": self.message,
            "champion": asdict(self.champion) if self.champion else None,
            "warnings": self.warnings,
            "trend": self.trend,
        }  # fmt: skip

    @property
    def why(self) -> str:
        """The gate's explanation; without a candidate, the message on the checkpoints."""
        return self.decision.why if self.decision else self.message

    @property
    def summary(self) -> str:
        """Message on the checkpoints, and the gate's explanation."""
        return f"{self.message}; {self.decision.why}" if self.decision else self.message

    @property
    def is_promoted(self) -> bool:
        return self.decision is not None and self.decision.promoted

    def describe_checkpoints(self, failed: int) -> str:
        """Count the checkpoints by outcome; `failed`: number of failed evaluations."""
        counts = {
            f"skipped: {self.choice.why_skipped}": len(self.choice.skipped),
            "removed by their training before they could be read": len(self.pruned),
            "waiting for the next nightly run": len(self.choice.waiting),
            "failed": failed,
            self.choice.why_given_up: len(self.choice.given_up),
        }
        done = f"{len(self.evaluated)} of {len(self.choice.new)} new checkpoints evaluated"
        return "; ".join(
            [done if self.choice.new else "No new checkpoints"]
            + [f"{number} {outcome}" for outcome, number in counts.items() if number]
            + [self.choice.about][: bool(self.choice.about)]
        )


def log_to_mlflow(runs: Path, started: float, outcome: NightlyResult, project: str | None) -> None:
    """Write the result to the spool of the MLflow records."""
    spool = Spool(runs / DIRECTORY, tracking_uri(runs), project)
    spool.start_sender()
    name = time.strftime("gate %Y-%m-%d %H:%M", time.gmtime(started))
    night = spool.start_run(name, tags={"cloze.kind": "night"})
    new = len(outcome.choice.new)
    spool.params(night, {"new": new, "promoted": outcome.is_promoted, "why": outcome.why})
    for result in outcome.evaluated:
        tags = {
            "cloze.kind": "candidate",
            "cloze.fingerprint": result["key"],
            "cloze.run_name": result["run"],
        }
        run = spool.start_run(f"{result['run']} step {result['step']}", night, tags)
        metrics = {
            task: {score["metric"]: score["mean"], "deviation": score["deviation"]}
            for task, score in result["scores"].items()
        }
        if result["perplexity"] is not None:
            metrics["heldout_perplexity"] = result["perplexity"]
        spool.metrics(run, metrics, int(result["step"]))
        spool.end_run(run)
    spool.file(night, str(outcome.trend))
    spool.end_run(night)
    spool.close()


def remove_old_artifacts(directory: Path, before: float, labels: Collection[str]) -> list[str]:
    """Remove old artifacts of the suite and the links to them, unless the suite is running.

    Args:
        directory: run directory of the suite.
        before: Unix seconds; newer artifacts are kept.
        labels: labels of champions; their artifacts are kept for the next comparison.

    Returns:
        Names of the removed directories.
    """
    removed: list[str] = []
    if not directory.is_dir():
        return removed
    with suppress(UsageError), locked(str(directory)):  # UsageError: a user is running the suite
        paths = sorted(directory.glob("*@*"))
        for path in paths:
            if path.is_symlink() or any(label in path.name for label in labels):
                continue
            manifest = path / MANIFEST
            modified = (manifest if manifest.exists() else path).stat().st_mtime
            if path.is_dir() and modified < before:
                shutil.rmtree(path, ignore_errors=True)
                removed.append(path.name)
        for path in paths:
            if path.is_symlink() and not path.exists():
                path.unlink()
    return removed


# The trend page: scores by nightly run and the changes of champion.

TEMPLATES = Path(__file__).parent / "templates"
NIGHTS = 60  # maximum drawn and listed
NONSENSE = 1e6  # perplexity of destroyed weights: listed, not drawn
PERPLEXITY = "held-out perplexity"
LABELLED = 8  # with more points, only the last has its checkpoint beside it
Points = list[tuple[int, float, float, str]]  # run's number, value, deviation, checkpoint


def write_trend(journal: Journal, zone: str) -> Path:
    """Write the page next to the journal, with times in the time zone `zone`."""
    path = journal.trend.resolve()
    storage.write_bytes(str(path), render_trend(journal.nights(), journal.changes(), zone).encode())
    return path


def render_trend(nights: Sequence[Mapping[str, Any]], changes: Sequence[Change], zone: str) -> str:
    """Return the page as HTML.

    Args:
        nights: lines of the journal, oldest first; one that was made up is drawn when it was due.
        changes: changes of champion, oldest first.
    """
    with_work = [night for night in nights if night["results"] or night["failed"]]
    with_work.sort(key=time_of)
    drawn = with_work[-NIGHTS:]
    times = [format_time(time_of(night), zone) for night in drawn]
    environment = templates_in(TEMPLATES)
    environment.filters["short"] = format_number
    return environment.get_template("trend.html").render(
        champion=changes[-1].champion if changes else None,
        charts=[
            (task, _chart(unit, points, _champion_scores(task, changes, drawn), times))
            for task, (unit, points) in _points(drawn).items()
        ],
        changes=[(format_time(change.time, zone), change) for change in reversed(changes)],
        nights=list(zip(reversed(times), reversed(drawn), strict=True)),
        last=nights[-1] if nights else None,
        last_time=format_time(nights[-1]["started"], zone) if nights else "",
        nights_without_work=len(nights) - len(with_work),
        zone=zone,
        perplexity=PERPLEXITY,
    )


def _points(nights: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, Points]]:
    """Return unit and points by task; the perplexity comes last."""
    by_task: dict[str, tuple[str, Points]] = {}
    perplexity: Points = []
    for number, night in enumerate(nights):
        for result in night["results"]:
            name = f"{shortened(result['run'])} {result['step']}"
            for task, score in result["scores"].items():
                unit = f"{score['metric'].replace('_', ' ')} × 100"
                point = number, 100 * score["mean"], 100 * score["deviation"], name
                by_task.setdefault(task, (unit, []))[1].append(point)
            if is_finite(result["perplexity"]) and result["perplexity"] < NONSENSE:
                perplexity.append((number, result["perplexity"], 0.0, name))
    if perplexity:
        by_task[PERPLEXITY] = ("perplexity", perplexity)
    return by_task


def _champion_scores(
    task: str, changes: Sequence[Change], nights: Sequence[Mapping[str, Any]]
) -> Points:
    """Return the champion's score after each run."""
    points = []
    for number, night in enumerate(nights):
        until = night.get("scheduled") or night["ended"]
        champions = [change.champion for change in changes if change.time <= until]
        if champions and task in champions[-1].scores:
            points.append((number, float(champions[-1].scores[task]), 0.0, ""))
    return points


def _chart(unit: str, points: Points, champion: Points, times: Sequence[str]) -> str:
    """Return an SVG of points with error bars by run, and the champion's line; empty: one run."""
    if len({number for number, *_ in points}) < 2:
        return ""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9.4, 3.1), layout="constrained")
        axes = figure.subplots()
        across, values, deviations, names = zip(*points, strict=True)
        bars = deviations if any(deviations) else None
        axes.errorbar(
            across, values, bars, color=BLUE, marker="o", markersize=4, linewidth=0, elinewidth=0.8
        )
        first = 0 if len(points) <= LABELLED else -1
        middle = (len(times) - 1) / 2
        places: dict[tuple[int, float], list[str]] = {}  # equal scores share a label
        for x, y, name in list(zip(across, values, names, strict=True))[first:]:
            places.setdefault((x, round(y, 1)), []).append(name)
        for (x, y), shared in places.items():
            side, offset = ("right", (-6, 3)) if x > middle else ("left", (6, 3))
            label = axes.annotate(
                ", ".join(shared), (x, y), xytext=offset, textcoords="offset points", ha=side,
                fontsize=7.5, color=MUTED,
            )  # fmt: skip
            label.set_in_layout(False)  # a long name takes no room from the chart
        if champion:
            xs = [*(float(point[0]) for point in champion), champion[-1][0] + 0.5]
            ys = [*(point[1] for point in champion), champion[-1][1]]
            axes.plot(xs, ys, color=GREEN, drawstyle="steps-post", label="champion")
            axes.legend(loc="best")
        axes.set_ylabel(unit)
        axes.set_xlabel("nightly run")
        axes.set_xlim(-0.5, max(0.5, len(times) - 0.5))
        axes.margins(y=0.12)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, min_n_ticks=1))
        dates = {float(number): time[5:16] for number, time in enumerate(times)}
        axes.xaxis.set_major_formatter(lambda x, _: dates.get(x, ""))
        return svg(figure)
