"""Made-up reports and their pictures, as text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

from cloze.core.stages.cost import MachineSpec, PlannedBuild
from cloze.core.stages.execution import Execution
from cloze.flows.report import plots, report_nodes
from cloze.flows.report import stage as report_stage
from cloze.flows.report.graph_picture import NodePicture, graph_svg
from cloze.flows.report.page import render
from cloze.flows.report.report_nodes import Curve, NodePlacement, scores
from cloze.labs.inside import plots as inside
from tests.flows.report.test_page import gathered, many, single


def described(figure: Any) -> str:
    """What a figure of matplotlib draws, in one line."""

    def numbers(values: Any) -> list[Any]:
        return [float(f"{float(value):.4g}") for value in np.ravel(values)]

    parts: list[Any] = [numbers(figure.get_size_inches())]
    for axes in figure.axes:
        legend = axes.get_legend()
        parts.append(
            {
                "title": axes.get_title(), "x": axes.get_xlabel(), "y": axes.get_ylabel(),
                "lines": [
                    [line.get_label().lstrip("_"), line.get_color(), line.get_linestyle(),
                     str(line.get_marker()), line.get_linewidth(), line.get_alpha(),
                     line.get_markersize(), line.get_drawstyle(),
                     numbers(line.get_xdata())[-12:], numbers(line.get_ydata())[-12:]]
                    for line in axes.lines
                ],
                "bars": [
                    [numbers([bar.get_x(), bar.get_y(), bar.get_width(), bar.get_height()]),
                     numbers(bar.get_facecolor())]
                    for bar in axes.patches
                ],
                "texts": [[text.get_text(), text.get_ha(), numbers(text.get_position())]
                          for text in axes.texts],
                "images": [numbers(image.get_array()) for image in axes.images],
                "ticks": [label.get_text() for label in axes.get_yticklabels()][:20]
                if axes.patches else [],
                "limits": numbers([*axes.get_xlim(), *axes.get_ylim()]),
                "legend": None if legend is None
                else [legend._ncols, [text.get_text() for text in legend.get_texts()],
                      legend.get_texts()[0].get_fontsize()],
                "spines": [axes.spines["left"].get_visible(), [line.get_visible() for line in axes.get_xgridlines()[:1]]],
            }
        )  # fmt: skip
    return f"<svg>{json.dumps(parts, ensure_ascii=False)}</svg>"


def pictures() -> Iterator[tuple[str, str]]:
    few = [Curve(name="a", objective="mlm", train=((1, 7.0), (2, 6.0)), heldout=((2, 6.5),))]
    more = [Curve(name=f"{n}", objective="lm" if n else "mlm", train=((1, n), (2, 3.0)))
            for n in range(14)]  # fmt: skip
    yield "losses of one", plots.losses(few, 5.25)
    yield "losses of three", plots.losses([*few, *more[:2]], None)
    yield "losses of many", plots.losses(more, None)
    history = [
        {"step": 1, "tokens_per_second": 1500},
        {"step": 2},
        {"step": 3, "tokens_per_second": 900},
    ]
    yield "throughput", plots.throughput(history)
    yield "throughput of nothing", plots.throughput([])
    yield "lengths", plots.lengths([1, 5, 24], 64)
    yield "bars", plots.bars({"b": 3.0, "a": 1234.0}, "documents", {"a": "#123456"})
    yield "bars of shares", plots.bars({"x" * 50: 0.25, "y": 1.0}, "share")
    yield "lines", plots.lines({"one": [(1, 0.5), (4, 0.25)], "two": [(2, 1.0)]}, "layer", "score")
    yield (
        "panels",
        inside.panels({"entropy": [(0, 1.0), (1, 2.0)]}, {"map": [[0.0, 1.0], [0.5, 1.0]]}),
    )
    yield "smooth", json.dumps([round(value, 6) for value in plots.smooth([1.0, 2.0, 4.0])])
    yield "style", json.dumps([plots.STYLE, plots.SCREEN, plots.CYCLE])
    after = {"corpus": (), "vocab": ("corpus",), "dataset": ("corpus", "vocab"), "a": ("dataset",),
             "b": ("dataset",), "c": ("a", "later"), "report": ("corpus", "vocab", "dataset", "a", "b", "c"),
             "later": ()}  # fmt: skip
    nodes = {name: NodePicture(stage=name, after=way, line="" if name == "b" else f"{name} <1>")
             for name, way in after.items()}  # fmt: skip
    yield "graph", graph_svg(nodes)
    yield "graph as a list", graph_svg(nodes, as_list=True)
    yield "no graph", graph_svg({})
    large = {f"a@{n}": NodePicture(stage="a", line="x") for n in range(40)}
    large |= {f"b@{n}": NodePicture(stage="b" if n else "c", after=(f"a@{n}",)) for n in range(30)}
    large["a@last"] = NodePicture(stage="a", after=("b@0", "b@1"))
    yield "large graph", graph_svg(large)


def report() -> Iterator[tuple[str, str]]:
    masks = [
        {"node": "pretrain", "text": "Paris is [MASK].",
         "candidates": [{"token": "big", "score": 0.5, "sequence": "Paris is big."}]}
    ]  # fmt: skip
    nodes = [*single(), gathered("report", {})]
    tables = [
        report_nodes.SummaryTable(title="T", columns=("a", "b"), rows=[("x", "1")], notes=("N",))
    ]
    yield "page of one each", render(nodes, scores(nodes), masks, 2, tables, "<svg>figure</svg>")
    yield "page of many", render(many(), scores(many()), [])
    yield "page of nothing", render([], {}, [], -3)
    grid = [
        gathered(f"finetune@{task}-{rate}-{seed}",
                 {"task": task, "metric": metric, "metrics": {metric: score + rate + seed / 100, "majority": 0.5}},
                 "finetune", values={"task": task, "rate": rate, "seed": seed})
        for task, metric, score in (("sst2", "accuracy", 0.3), ("lm", "perplexity", 9.0))
        for rate in (0.1, 0.2) for seed in (1, 2)
    ]  # fmt: skip
    both = gathered("finetune@both-1", {"task": "multitask", "metrics": {"first_accuracy": 0.75}},
                    "finetune@both", values={"seed": 1})  # fmt: skip
    both.manifest.config["tasks"] = {"first": {"task": "sst2"}, "second": None}
    crossed = gathered("evaluate@x", {"task": "mnli", "split": "dev", "trained_on": "sst2",
                       "metrics": {"accuracy": 0.4}}, values={"test_on": "mnli", "rate": 0.1})  # fmt: skip
    all_nodes = [*grid, both, crossed]
    yield "scores", json.dumps({group: {name: asdict(score) for name, score in found.items()}
                                for group, found in scores(all_nodes).items()})  # fmt: skip
    yield "groups", json.dumps(report_nodes.describe_groups(all_nodes))
    found = [*report_nodes.best_settings(all_nodes), report_nodes.multitask_versus_single(all_nodes),
             report_nodes.cross_tests(all_nodes)]  # fmt: skip
    yield "tables", json.dumps([table and table.as_json() for table in found])
    yield "the best setting", str(report_nodes.best_setting([found[0].as_json()]))  # type: ignore[union-attr]
    yield "curves", json.dumps([asdict(curve) for curve in report_nodes.curves(many())][2:4])[:600]
    for names in ("finetune", "pretrain"):
        rows = {
            f"{names}@{n}": {"accuracy": {"mean": 0.5, "n": n, "best": 0.6, "best_node": "b"}}
            for n in range(1, 6)
        }
        for count in (1, 2, 5):
            summary = {"scores": dict(list(rows.items())[-count:]), "groups": {}}
            yield f"headline {names} {count}", report_stage.headline(summary)
    config = report_stage.ReportConfig(
        nodes={"pretrain@b": NodePlacement(section="pretrain", inputs={"continue": "pretrain@a"})}
    )
    estimate, measure = (
        report_stage.STAGE.cost_model.estimate,
        report_stage.STAGE.cost_model.measure,
    )  # type: ignore[union-attr]
    for inputs in ({}, {"pretrain@a": {}, "pretrain@b": {}, "corpus": {}}):
        yield (
            f"cost {len(inputs)}",
            str(estimate(PlannedBuild(config, inputs, Execution(), MachineSpec()))),
        )
    yield "measured", str([measure({"seconds": 9.0, "masks": masks}), measure({"seconds": 9.0})])
