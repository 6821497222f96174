"""The trend page: scores by nightly run and the changes of champion. One file, no network.

It is drawn from the journal alone. MLflow has the scores by training step.
"""

from __future__ import annotations

import datetime
import zoneinfo
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from cloze.core import storage
from cloze.core.humanize import format_number, templates_in
from cloze.flows.nightly.journal import Change, Journal
from cloze.flows.report.plots import BLUE, GREEN, INK, MUTED, RED, STYLE, svg

FILE = "trend.html"
TEMPLATES = Path(__file__).parent / "templates"
NIGHTS = 60  # maximum drawn and listed
SCREEN = {
    INK: "var(--ink)", MUTED: "var(--muted)", "#cbd2d9": "var(--line)", "#e4e7eb": "var(--line)",
    BLUE: "var(--blue)", RED: "var(--red)", GREEN: "var(--green)",
}  # fmt: skip
NONSENSE = 1e6  # perplexity of destroyed weights: listed, not drawn
PERPLEXITY = "held-out perplexity"
Points = list[tuple[int, float, float]]  # number of the run, value, deviation over seeds


def write(journal: Journal, zone: str) -> Path:
    """Write the page next to the journal, with times in the time zone `zone`."""
    path = (journal.directory / FILE).resolve()
    storage.write_bytes(str(path), render(journal.nights(), journal.changes(), zone).encode())
    return path


def render(nights: Sequence[Mapping[str, Any]], changes: Sequence[Change], zone: str) -> str:
    """Return the page as HTML.

    Args:
        nights: lines of the journal, oldest first.
        changes: changes of champion, oldest first.
    """
    with_work = [night for night in nights if night["results"] or night["failed"]]
    drawn = with_work[-NIGHTS:]
    times = [_time(night["started"], zone) for night in drawn]
    environment = templates_in(TEMPLATES)
    environment.filters["short"] = format_number
    return environment.get_template("trend.html").render(
        champion=changes[-1].champion if changes else None,
        charts=[
            (task, _chart(unit, points, _champion_scores(task, changes, drawn), times))
            for task, (unit, points) in _points(drawn).items()
        ],
        changes=[(_time(change.time, zone), change) for change in reversed(changes)],
        nights=list(zip(reversed(times), reversed(drawn), strict=True)),
        last=nights[-1] if nights else None,
        last_time=_time(nights[-1]["started"], zone) if nights else "",
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
            for task, score in result["scores"].items():
                unit = f"{score['metric'].replace('_', ' ')} × 100"
                point = number, 100 * score["mean"], 100 * score["deviation"]
                by_task.setdefault(task, (unit, []))[1].append(point)
            if result["perplexity"] is not None and result["perplexity"] < NONSENSE:
                perplexity.append((number, result["perplexity"], 0.0))
    if perplexity:
        by_task[PERPLEXITY] = ("perplexity", perplexity)
    return by_task


def _champion_scores(
    task: str, changes: Sequence[Change], nights: Sequence[Mapping[str, Any]]
) -> Points:
    """Return the champion's score after each run."""
    points = []
    for number, night in enumerate(nights):
        champions = [change.champion for change in changes if change.time <= night["ended"]]
        if champions and task in champions[-1].scores:
            points.append((number, float(champions[-1].scores[task]), 0.0))
    return points


def _chart(unit: str, points: Points, champion: Points, times: Sequence[str]) -> str:
    """Return an SVG of points with error bars by run, and the champion's line."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9.4, 3.1), layout="constrained")
        axes = figure.subplots()
        across, values, deviations = zip(*points, strict=True)
        bars = deviations if any(deviations) else None
        axes.errorbar(
            across, values, bars, color=BLUE, marker="o", markersize=4, linewidth=0, elinewidth=0.8
        )
        if champion:
            xs = [*(float(number) for number, _, _ in champion), champion[-1][0] + 0.5]
            ys = [*(value for _, value, _ in champion), champion[-1][1]]
            axes.plot(xs, ys, color=GREEN, drawstyle="steps-post", label="champion")
            axes.legend(loc="best")
        axes.set_ylabel(unit)
        axes.set_xlabel("nightly run")
        axes.set_xlim(-0.5, max(0.5, len(times) - 0.5))
        axes.margins(y=0.12)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, min_n_ticks=1))
        names = {float(number): time[5:16] for number, time in enumerate(times)}
        axes.xaxis.set_major_formatter(lambda x, _: names.get(x, ""))
        page = svg(figure)
    for colour, name in SCREEN.items():
        page = page.replace(colour, name)
    return page


def _time(seconds: float, zone: str) -> str:
    return datetime.datetime.fromtimestamp(seconds, zoneinfo.ZoneInfo(zone)).strftime(
        "%Y-%m-%d %H:%M"
    )
