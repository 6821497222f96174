"""The report's figures: matplotlib to inline SVG, quiet colours, no chart without its unit."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl

mpl.use("svg")
from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK, MUTED, BLUE, ORANGE, GREEN, RED = "#1f2933", "#7b8794", "#2563a8", "#d97706", "#2f855a", "#b83227"
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "cloze",
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


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def svg(figure: Figure) -> str:
    """The figure as an `<svg>` element, the same for the same data."""
    stream = io.StringIO()
    figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    text = re.sub(r"<metadata>.*?</metadata>", "", stream.getvalue(), flags=re.DOTALL)
    return re.sub(r"^.*?(?=<svg)", "", text, count=1, flags=re.DOTALL)


def smooth(values: Sequence[float], weight: float = 0.9) -> list[float]:
    """Exponential moving average without the start's bias."""
    mean, norm, out = 0.0, 0.0, []
    for value in values:
        mean, norm = weight * mean + (1 - weight) * value, weight * norm + (1 - weight)
        out.append(mean / norm)
    return out


def loss(history: Sequence[Mapping[str, Any]], entropy: float | None, objective: str = "mlm") -> str:
    """Training and held-out loss of the first objective in nats over steps, with the unigram entropy of the held-out targets."""
    with mpl.rc_context(STYLE):
        figure, axes = _figure(7.6, 3.1)
        train = [(line["step"], line[f"{objective}_loss"]) for line in history if f"{objective}_loss" in line]
        heldout = [(line["step"], line["heldout_loss"]) for line in history if "heldout_loss" in line]
        if train:
            steps, values = zip(*train, strict=True)
            axes.plot(steps, values, color=BLUE, alpha=0.22, linewidth=0.8)
            axes.plot(steps, smooth(values), color=BLUE, linewidth=1.6, label="training (smoothed)")
        if heldout:
            axes.plot(*zip(*heldout, strict=True), color=ORANGE, marker="o", markersize=3.5, linewidth=1.4, label="held-out")
        if entropy is not None:
            axes.axhline(
                entropy, color=RED, linestyle="--", linewidth=1.1, label=f"unigram entropy of the targets ({entropy:.2f})"
            )
        axes.set_xlabel("step")
        axes.set_ylabel(f"{objective.upper()} loss (nats)")
        axes.legend()
        return svg(figure)


def throughput(history: Sequence[Mapping[str, Any]]) -> str:
    """Tokens a second over steps."""
    with mpl.rc_context(STYLE):
        figure, axes = _figure(7.6, 2.1)
        points = [(line["step"], line["tokens_per_second"] / 1e3) for line in history if "tokens_per_second" in line]
        if points:
            axes.plot(*zip(*points, strict=True), color=GREEN, linewidth=1.2)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("step")
        axes.set_ylabel("thousand tokens/s")
        return svg(figure)


def lengths(counts: Sequence[int], length: int) -> str:
    """Rows by length, in equal bins up to `length` tokens."""
    with mpl.rc_context(STYLE):
        figure, axes = _figure(7.6, 2.1)
        width = length / max(1, len(counts))
        axes.bar([width * (i + 0.5) for i in range(len(counts))], counts, width=width * 0.92, color=BLUE)
        axes.set_xlim(0, length)
        axes.set_xlabel("tokens a row")
        axes.set_ylabel("rows")
        return svg(figure)


def bars(values: Mapping[str, float], unit: str, colours: Mapping[str, str] | None = None) -> str:
    """Horizontal bars, largest at the top, each with its value."""
    with mpl.rc_context(STYLE):
        figure, axes = _figure(7.6, 0.45 + 0.27 * max(1, len(values)))
        names = list(values)[::-1]
        drawn = axes.barh(names, [values[n] for n in names], color=[(colours or {}).get(n, BLUE) for n in names], height=0.66)
        whole = all(float(value).is_integer() for value in values.values())
        axes.bar_label(
            drawn, labels=[f"{values[n]:,.0f}" if whole else f"{values[n]:.3f}" for n in names], padding=4, color=INK
        )
        axes.grid(False)
        axes.margins(x=0.12)
        axes.set_xlabel(unit)
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0, labelcolor=INK)
        return svg(figure)
