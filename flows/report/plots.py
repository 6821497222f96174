"""Charts of the report: matplotlib figures as inline SVG."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import matplotlib as mpl

mpl.use("svg")
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from cloze.core.humanize import format_count, shortened
from cloze.flows.report.report_nodes import Curve

INK, MUTED, BLUE, ORANGE = "#1f2933", "#7b8794", "#2563a8", "#d97706"
GREEN, RED = "#2f855a", "#b83227"
CYCLE = (BLUE, ORANGE, GREEN, RED, "#7c4dab", "#0f8b8d", "#a8527a", "#6b7280")  # of curves
SCREEN = {  # a page may define other colours for a dark screen; elsewhere these hold
    colour: f"var(--{name}, {colour})"
    for colour, name in (
        (INK, "ink"), (MUTED, "muted"), ("#cbd2d9", "line"), ("#e4e7eb", "line"), (BLUE, "blue"),
        (ORANGE, "orange"), (GREEN, "green"), (RED, "red"), ("#616e7c", "muted"),
    )
}  # fmt: skip
FEW = 6  # from this number of curves, only smoothed ones are drawn
MAX_LEGEND_ENTRIES = 12  # maximum number of curves in the legend
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "cloze",
    "text.parse_math": False,  # a name may hold $
    "axes.axisbelow": True,
    "font.family": "sans-serif",
    "font.sans-serif": ["Inter", "Segoe UI", "Helvetica", "Arial", "DejaVu Sans"],
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": "#cbd2d9",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#e4e7eb",
    "legend.frameon": False,
}


def panel(height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(7.6, height), layout="constrained")
    return figure, figure.add_subplot()


def svg(figure: Figure) -> str:
    """Return the figure as an `<svg>` element; the output is deterministic."""
    stream, nothing = io.StringIO(), {"Date": None, "Creator": None}
    with warnings.catch_warnings():  # the browser draws the letters that matplotlib's font lacks
        warnings.filterwarnings("ignore", "Glyph")
        figure.savefig(stream, format="svg", metadata=nothing, transparent=True)
    text = re.sub(r"\A.*?(?=<svg)|<metadata>.*?</metadata>", "", stream.getvalue(), flags=re.S)
    names = ([axes.get_ylabel(), axes.get_xlabel()] for axes in figure.axes)
    said = escape("; ".join(" by ".join(filter(None, pair)) for pair in names))
    text = text.replace("<svg", f'<svg role="img" aria-label="{said}"', 1)
    return re.sub("|".join(SCREEN), lambda match: SCREEN[match[0]], text)


def smooth(values: Sequence[float], weight: float = 0.9) -> list[float]:
    """Return the exponential moving average with bias correction."""
    mean, norm, averages = 0.0, 0.0, []
    for value in values:
        mean, norm = weight * mean + (1 - weight) * value, weight * norm + (1 - weight)
        averages.append(mean / norm)
    return averages


def losses(curves: Sequence[Curve], entropy: float | None) -> str:
    """Plot training and held-out loss of the first objective in nats, over the steps of all phases.

    A single training has one colour for each loss. Several trainings have a colour each, and dotted
    held-out losses.

    `entropy`: unigram entropy of the held-out targets.
    """
    is_single = len(curves) == 1
    with mpl.rc_context(STYLE):
        figure, axes = panel(3.1 if len(curves) < FEW else 3.9)
        for number, curve in enumerate(curves):
            colour = CYCLE[number % len(CYCLE)]
            if curve.train:
                steps, values = zip(*curve.train, strict=True)
                if len(curves) < FEW:
                    axes.plot(steps, values, color=colour, alpha=0.22, linewidth=0.8)
                name = "training (smoothed)" if is_single else shortened(curve.name)
                label = name if number < MAX_LEGEND_ENTRIES else None
                axes.plot(steps, smooth(values), color=colour, linewidth=1.6, label=label)
            if curve.heldout:
                style: dict[str, Any] = {"color": colour, "markersize": 2.5, "linestyle": ":"}
                if is_single:
                    style = {"color": ORANGE, "markersize": 3.5, "label": "held-out"}
                points = zip(*curve.heldout, strict=True)
                axes.plot(*points, marker="o", linewidth=1.4, **style)
        if entropy is not None:
            label = f"unigram entropy of the targets ({entropy:.2f})"
            axes.axhline(entropy, color=RED, linestyle="--", linewidth=1.1, label=label)
        names = {curve.objective.upper() for curve in curves}
        axes.set_xlabel("step")
        axes.set_ylabel(f"{names.pop() if len(names) == 1 else 'first'} loss (nats)")
        axes.legend(fontsize=8 if len(curves) > 4 else None, ncols=2 if len(curves) > 4 else 1)
        return svg(figure)


def throughput(history: Sequence[Mapping[str, Any]]) -> str:
    """Plot tokens per second over steps."""
    with mpl.rc_context(STYLE):
        figure, axes = panel(2.1)
        points = [
            (entry["step"], entry["tokens_per_second"] / 1e3)
            for entry in history
            if "tokens_per_second" in entry
        ]
        if points:
            axes.plot(*zip(*points, strict=True), color=GREEN, linewidth=1.2)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("step")
        axes.set_ylabel("thousand tokens/s")
        return svg(figure)


def lengths(counts: Sequence[int], length: int) -> str:
    """Plot a histogram of row lengths, in equal bins up to `length` tokens."""
    with mpl.rc_context(STYLE):
        figure, axes = panel(2.1)
        width = length / max(1, len(counts))
        middles = [width * (index + 0.5) for index in range(len(counts))]
        axes.bar(middles, counts, width=width * 0.92, color=BLUE)
        axes.set_xlim(0, length)
        axes.set_xlabel("tokens a row")
        axes.set_ylabel("rows")
        return svg(figure)


def bars(values: Mapping[str, float], unit: str, colours: Mapping[str, str] | None = None) -> str:
    """Plot labelled horizontal bars; the first value is at the top."""
    with mpl.rc_context(STYLE):
        figure, axes = panel(0.45 + 0.27 * max(1, len(values)))
        names = list(values)[::-1]
        sizes = [values[name] for name in names]
        bar_colours = [(colours or {}).get(name, BLUE) for name in names]
        container = axes.barh(range(len(names)), sizes, color=bar_colours, height=0.66)
        form = "{:,.0f}" if all(float(size).is_integer() for size in sizes) else "{:.3f}"
        axes.bar_label(container, labels=list(map(form.format, sizes)), padding=4, color=INK)
        axes.set_yticks(range(len(names)), list(map(shortened, names)))
        axes.grid(False)
        axes.margins(x=0.12)
        axes.set_xlabel(unit)
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0, labelcolor=INK)
        return svg(figure)


def lines(series: Mapping[str, Sequence[tuple[float, float]]], x_label: str, y_label: str) -> str:
    """Plot a line with dots for each series of (x, y)."""
    with mpl.rc_context(STYLE):
        figure, axes = panel(3.1)
        for number, (name, dots) in enumerate(series.items()):
            colour = CYCLE[number % len(CYCLE)]
            label = shortened(name) if number < MAX_LEGEND_ENTRIES else None
            axes.plot(*zip(*dots, strict=True), color=colour, marker="o", markersize=3, label=label)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.xaxis.set_major_formatter(lambda x, position: format_count(x))
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        axes.legend(fontsize=8, ncols=2 if len(series) > 4 else 1)
        return svg(figure)
