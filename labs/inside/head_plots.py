"""Picture of the stage heads: what each head attends to, by layer (Clark et al. 2019, figure 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import matplotlib as mpl

from cloze.flows.report.plots import BLUE, ORANGE, STYLE, svg
from cloze.flows.report.report_nodes import ReportNode
from cloze.labs.inside.layer_plots import Picture

from matplotlib.figure import Figure  # isort: skip, after `plots` has chosen the backend

TITLES = {
    "previous": "to the previous token",
    "next": "to the next token",
    "first": "to the first token",
    "separator": "to the separator",
    "punctuation": "to punctuation",
    "entropy": "entropy (nats)",
}


def head_pictures(nodes: Sequence[ReportNode]) -> list[Picture]:
    """Return the picture of a run's last stage heads; empty if it has none."""
    found = [node for node in nodes if node.stage == "heads"][-1:]
    note = "A dot per head; the line is the mean of the layer."
    return [(f"Attention heads: {node.name}", draw(node.manifest.summary), note) for node in found]


def draw(summary: Mapping[str, Any]) -> str:
    """Plot a dot per head and the mean of each layer, over the layers, as an `<svg>` element."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.6, 4.4), layout="constrained")
        for axes, (name, title) in zip(figure.subplots(2, 3).flat, TITLES.items(), strict=True):
            layers = [[value for value in layer if value is not None]
                      for layer in summary["by_head"][name]]  # fmt: skip
            dots = [(number, value) for number, layer in enumerate(layers, 1) for value in layer]
            means = [(number, fmean(layer)) for number, layer in enumerate(layers, 1) if layer]
            if dots:
                style: dict[str, Any] = {"marker": "o", "linestyle": "none", "markersize": 4}
                axes.plot(*zip(*means, strict=True), color=ORANGE, linewidth=1.2)
                axes.plot(*zip(*dots, strict=True), color=BLUE, alpha=0.6, **style)
            axes.set_title(title, fontsize=9)
            axes.set_xlim(0.5, len(layers) + 0.5)
            axes.set_ylim(0, None if name == "entropy" else 1)
            axes.xaxis.get_major_locator().set_params(integer=True)
        figure.supxlabel("layer", fontsize=9, color=STYLE["axes.labelcolor"])
        return svg(figure)
