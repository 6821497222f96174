"""Pictures of probes: by layer for the last checkpoint, and over the words that were read."""

from __future__ import annotations

import re
from typing import Any

from cloze.flows.report.page import render
from cloze.flows.report.report_nodes import ReportNode
from cloze.labs.inside.plots import draw_layers as draw
from cloze.labs.inside.plots import layer_pictures as pictures
from tests.flows.report.test_page import PRETRAIN, gathered

HISTORY = [{"step": 30, "tokens": 500}, {"step": 60, "tokens": 2000}]


def probe(name: str, step: int, score: float, **summary: Any) -> ReportNode:
    layers = [
        {"layer": layer, "f1": score - layer / 10, "control": 0.2, "from_scratch": 0.3}
        for layer in range(3)
    ]
    content = {
        "task": name, "target": "words", "metric": "f1", "metrics": {"f1": score}, "step": step,
        "layers": layers, **summary,
    }  # fmt: skip
    inputs = {"checkpoint": f"pretrain/checkpoints/step-{step:08}"}
    return gathered(f"probe@{name}-{step}", content, values={"at": step}, inputs=inputs)


def trained(**summary: Any) -> ReportNode:
    return gathered("pretrain", {**PRETRAIN, **summary}, history=HISTORY)


def test_probes_of_a_training_are_drawn_over_the_words_it_had_read() -> None:
    probes = [probe(name, step, step / 100) for name in ("pos", "ner") for step in (30, 60)]
    nodes = [trained(words_seen=1_000_000.0), *probes]
    by_layer, course = pictures(nodes)
    assert by_layer[0] == "Probes by layer"
    assert "pos, f1" in by_layer[1]
    assert "words read" in course[1]
    assert "300k" in course[1]  # from 250k on: a quarter of the tokens by half of the steps
    page = render(nodes, {}, [])
    assert page.count("<h2>What is learned when</h2>") == 1
    _, course = pictures([trained(), *probes])
    assert ">step<" in course[1]  # nobody counted words


def test_one_checkpoint_has_no_course() -> None:
    assert [title for title, _, _ in pictures([trained(), probe("pos", 60, 0.5)])] == [
        "Probes by layer"
    ]
    assert pictures([trained()]) == []


def test_a_picture_of_one_probe_and_of_layers() -> None:
    summary = probe("pos", 60, 0.5).manifest.summary
    drawn = draw(summary)
    assert draw(summary) == drawn  # byte by byte
    for label in ("f1, linear", "control task", "random weights"):
        assert label in drawn
    rows = [{"layer": layer, "distance": 1.5, "angle": 20.0} for layer in (1, 2)]
    drawn = draw({"layers": rows, "cka": [[1.0, 0.5, 0.2]] * 3})
    assert re.findall("angle|L2 distance|CKA of the layers", drawn)
    assert "CKA with the other" not in drawn
