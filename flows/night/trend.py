"""The trend page: scores by checkpoint and by night, the champion's line, who replaced whom and why. One file, no network.

It is drawn from the journal alone, so it can be drawn anew at any time.
"""

from __future__ import annotations

import datetime
import zoneinfo
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from flows.night.journal import Change, Journal
from flows.report.plots import BLUE, GREEN, INK, MUTED, ORANGE, RED, STYLE, svg
from pipeline.core import storage
from pipeline.core.humanize import short
from pipeline.core.pages import templates_in

FILE = "trend.html"
TEMPLATES = Path(__file__).parent / "templates"
NIGHTS = 60  # that are drawn and listed
COLOURS = (BLUE, ORANGE, "#6b46c1", "#0e7490", "#be185d", "#4d7c0f", "#92400e", "#475569")
CHAMPION = GREEN
SCREEN = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    "#cbd2d9": "var(--line)",
    "#e4e7eb": "var(--line)",
    BLUE: "var(--blue)",
    RED: "var(--red)",
    GREEN: "var(--green)",
}
NONSENSE = 1e6  # a perplexity far above that of guessing: of weights that are destroyed; it is listed and not drawn
PERPLEXITY, PERPLEXITY_UNIT = "held-out perplexity", "perplexity"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A checkpoint's figure of one night. Attributes: night: its number; deviation: over seeds."""

    night: int
    key: str
    series: str
    step: int
    value: float
    deviation: float = 0.0


def write(journal: Journal, zone: str) -> Path:
    """Draw the page beside the journal. Args: zone: the time zone of what it tells."""
    path = (journal.directory / FILE).resolve()
    storage.write_bytes(str(path), render(journal.nights(), journal.changes(), zone).encode())
    return path


def render(nights: Sequence[Mapping[str, Any]], changes: Sequence[Change], zone: str) -> str:
    """The page as HTML.

    Args:
        nights: the journal's lines, oldest first.
        changes: of champion, oldest first.
    """
    worked = [night for night in nights if night["results"] or night["failed"]][-NIGHTS:]
    times = [_time(night["started"], zone) for night in worked]
    tasks = _points(worked)
    champion = changes[-1].champion if changes else None
    charts = []
    for task, (unit, points) in tasks.items():
        reign = [] if task == PERPLEXITY else _reigns(task, changes, worked)
        charts.append((task, unit, _chart(unit, points, reign, {change.champion.key for change in changes}, times)))
    environment = templates_in(TEMPLATES)
    environment.filters["short"] = short
    return environment.get_template("trend.html").render(
        champion=champion,
        charts=charts,
        changes=[(_time(change.time, zone), change) for change in reversed(changes)],
        nights=list(zip(reversed(times), reversed(worked), strict=True)),
        last=nights[-1] if nights else None,
        last_time=_time(nights[-1]["started"], zone) if nights else "",
        quiet=len(nights) - len([night for night in nights if night["results"] or night["failed"]]),
        zone=zone,
        perplexity=PERPLEXITY,
    )


def _points(nights: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, list[Point]]]:
    """By task: the axis' words and the points; the perplexity comes last."""
    results = [(number, result) for number, night in enumerate(nights) for result in night["results"]]
    names = _series(result for _, result in results)
    found: dict[str, tuple[str, list[Point]]] = {}
    perplexity: list[Point] = []
    for number, result in results:
        place = {
            "night": number,
            "key": result["key"],
            "series": names[result["run"], result["training"]],
            "step": result["step"],
        }
        for task, score in result["scores"].items():
            unit = f"{score['metric'].replace('_', ' ')} × 100"
            point = Point(**place, value=100 * score["mean"], deviation=100 * score["deviation"])
            found.setdefault(task, (unit, []))[1].append(point)
        if result["perplexity"] is not None and result["perplexity"] < NONSENSE:
            perplexity.append(Point(**place, value=result["perplexity"]))
    return found | ({PERPLEXITY: (PERPLEXITY_UNIT, perplexity)} if perplexity else {})


def _series(results: Any) -> dict[tuple[str, str], str]:
    """A name for each training: its run's, with a part of its fingerprint where a run has several."""
    trainings = dict.fromkeys((result["run"], result["training"]) for result in results)
    runs = [run for run, _ in trainings]
    return {(run, print_): run if runs.count(run) == 1 else f"{run} {print_[:6]}" for run, print_ in trainings}


def _reigns(task: str, changes: Sequence[Change], nights: Sequence[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """The champion's score from night to night: (night's number, score), where it has one."""
    found = []
    for number, night in enumerate(nights):
        reigning = [change.champion for change in changes if change.time <= night["ended"]]
        if reigning and task in reigning[-1].scores:
            found.append((float(number), float(reigning[-1].scores[task])))
    return found


def _chart(
    unit: str, points: Sequence[Point], reign: Sequence[tuple[float, float]], champions: set[str], times: Sequence[str]
) -> str:
    """By step on the left, by night on the right, with one scale."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9.4, 3.1), layout="constrained")
        by_step, by_night = figure.subplots(1, 2, sharey=True)
        names = list(dict.fromkeys(point.series for point in points))
        for number, name in enumerate(names):
            colour = COLOURS[number % len(COLOURS)]
            mine = sorted((point for point in points if point.series == name), key=lambda point: (point.step, point.night))
            newest = {point.step: point for point in mine}.values()  # of a step that was looked at twice
            style = {"color": colour, "marker": "o", "markersize": 4, "linewidth": 1.3, "elinewidth": 0.8, "capsize": 2}
            label = name.replace("$", r"\$")  # else it is set as mathematics
            by_step.errorbar([p.step for p in newest], [p.value for p in newest], _errors(newest), label=label, **style)
            by_night.errorbar([p.night for p in mine], [p.value for p in mine], _errors(mine), **{**style, "linewidth": 0})
        crowned = [point for point in points if point.key in champions]
        for axes, across in ((by_step, [p.step for p in crowned]), (by_night, [p.night for p in crowned])):
            heights = [p.value for p in crowned]
            crown = "was champion" if axes is by_step else None
            axes.scatter(across, heights, s=70, facecolors="none", edgecolors=CHAMPION, linewidths=1.4, zorder=3, label=crown)
        if reign:
            xs, ys = [x for x, _ in reign], [y for _, y in reign]
            by_night.plot(
                [*xs, xs[-1] + 0.5], [*ys, ys[-1]], color=CHAMPION, drawstyle="steps-post", linewidth=1.6, label="champion"
            )
            by_night.legend(loc="lower right")
        if unit == PERPLEXITY_UNIT:
            by_step.set_yscale("log")
        _finish(by_step, by_night, unit, times)
        page = svg(figure)
    for colour, name in SCREEN.items():
        page = page.replace(colour, name)
    return page


def _errors(points: Any) -> list[float] | None:
    found = [point.deviation for point in points]
    return found if any(found) else None


def _finish(by_step: Axes, by_night: Axes, unit: str, times: Sequence[str]) -> None:
    by_step.set_xlabel("training step")
    by_step.set_ylabel(unit)
    by_step.legend(loc="best")
    by_step.margins(y=0.12)
    by_night.set_xlabel("night")
    by_night.set_xlim(-0.5, max(0.5, len(times) - 0.5))
    by_night.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, min_n_ticks=1))
    by_night.xaxis.set_major_formatter(
        FuncFormatter(lambda x, _: times[round(x)][5:16] if abs(x - round(x)) < 1e-6 and 0 <= round(x) < len(times) else "")
    )


def _time(seconds: float, zone: str) -> str:
    return datetime.datetime.fromtimestamp(seconds, zoneinfo.ZoneInfo(zone)).strftime("%Y-%m-%d %H:%M")
