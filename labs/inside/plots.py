"""Pictures of heads and layers: by layer, over a training, and as similarity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import matplotlib as mpl
import numpy as np

from cloze.flows.report.plots import BLUE, CYCLE, ORANGE, STYLE, lines, svg
from cloze.flows.report.report_nodes import ReportNode

from matplotlib.figure import Figure  # isort: skip, after `plots` has chosen the backend


Picture = tuple[str, str, str]  # title, `<svg>` element, note
Points = list[tuple[float, float]]
ON_DEV = "score on dev"


def draw_layers(summary: Mapping[str, Any]) -> str:
    """Plot the summary of a stage probe or layers over the layers."""
    rows = summary["layers"]
    if "metric" in summary:
        names = {summary["metric"]: f"{summary['metric']}, linear", "hidden": "one hidden layer"}
        names |= {"control": "control task, accuracy", "from_scratch": "random weights"}
        return lines(
            {names[key]: _column(rows, key) for key in names if key in rows[0]}, "layer", ON_DEV
        )
    names = {"distance": "L2 distance", "angle": "angle (degrees)"}
    maps = {"cka": "CKA of the layers", "cka_other": "CKA with the other's"}
    return panels(
        {title: _column(rows, key) for key, title in names.items()},
        {title: summary[key] for key, title in maps.items() if key in summary},
    )


def panels(
    curves: Mapping[str, Sequence[tuple[float, float]]],
    maps: Mapping[str, Sequence[Sequence[float]]],
) -> str:
    """Plot curves over layers and heat maps of layers with values from 0 to 1, side by side."""
    with mpl.rc_context({**STYLE, "axes.grid": False}):
        count = len(curves) + len(maps)
        figure = Figure(figsize=(2.6 * count, 2.6), layout="constrained")
        axes = figure.subplots(1, count, squeeze=False)[0]
        for place, colour, (name, dots) in zip(axes, CYCLE, curves.items(), strict=False):
            place.plot(*zip(*dots, strict=True), color=colour, marker="o", markersize=3)
            place.set_ylim(bottom=0)
            place.set(title=name, xlabel="layer")
        for place, (name, rows) in zip(axes[len(curves) :], maps.items(), strict=True):
            image = place.imshow(rows, vmin=0, vmax=1, cmap="Blues", origin="lower")
            place.set(title=name, xlabel="layer", ylabel="layer")
        figure.colorbar(image, ax=axes[-1])
        return svg(figure)


def _column(rows: Sequence[Mapping[str, Any]], key: str) -> Points:
    return [(row["layer"], row[key]) for row in rows]


def layer_pictures(nodes: Sequence[ReportNode]) -> list[Picture]:
    """Return the pictures of a run's probes: by layer, and over a training if there are several."""
    probes = [node for node in nodes if node.stage == "probe"]
    last = max((node.manifest.summary["step"] for node in probes), default=0)
    by_layer, course = dict[str, Points](), dict[str, Points]()
    words = {node.name: _words(node, nodes) for node in probes}
    for node in probes:
        summary = node.manifest.summary
        target = "" if summary["target"] == "words" else f", {summary['target']}"
        name = f"{node.task}{target}, {summary['metric']}"
        x = summary["step"] if None in words.values() else words[node.name]
        course.setdefault(name, []).append((x, summary["metrics"][summary["metric"]]))
        if summary["step"] == last:
            by_layer[name] = _column(summary["layers"], summary["metric"])
    found = []
    if probes:
        note = "Linear probes of the last checkpoint; layer 0 is the embeddings."
        found.append(("Probes by layer", lines(by_layer, "layer", ON_DEV), note))
    if any(len({x for x, _ in points}) > 1 for points in course.values()):
        unit = "step" if None in words.values() else "words read"
        svg = lines({name: sorted(points) for name, points in course.items()}, unit, ON_DEV)
        found.append(("What is learned when", svg, "Linear probes of the best layer."))
    return found


def _words(probe: ReportNode, nodes: Sequence[ReportNode]) -> Any:
    """Return the words that the probed checkpoint has read; None: unknown."""
    origin = probe.placement.inputs.get("checkpoint", "").partition("/")[0]
    for node in nodes:
        total = node.manifest.summary.get("words_seen")
        steps = [(entry["step"], entry["tokens"]) for entry in node.history if "tokens" in entry]
        if node.name == origin and total and steps:
            tokens = np.interp(probe.manifest.summary["step"], *np.array(steps).T)
            return float(total * tokens / steps[-1][1])
    return None


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
    return [
        (f"Attention heads: {node.name}", draw_heads(node.manifest.summary), note) for node in found
    ]


def draw_heads(summary: Mapping[str, Any]) -> str:
    """Plot a dot per head, and each layer's mean, as `<svg>` (Clark et al. 2019, figure 2)."""
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
