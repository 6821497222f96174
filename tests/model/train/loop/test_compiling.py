"""A compiled step computes what a plain one does, in one graph."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from tests.model.datasets import lines
from tests.model.train.loop.test_loop import dataset as dataset
from tests.model.train.loop.test_loop import packed_dataset
from tests.model.train.ranks import config, here
from tests.slices import few

COMPILED = {
    "bert": ({}, False, "inductor"),
    "packed": ({}, True, "inductor"),
    "longformer": ({"family": "longformer", "attention_window": 8}, False, "inductor"),
    "longformer-packed": ({"family": "longformer", "attention_window": 4}, True, "inductor"),
    "gpt2-packed": ({"family": "gpt2"}, True, "inductor"),
    "traced": ({}, False, "aot_eager"),  # without the minute of a C++ compiler
}


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a compiler")
@pytest.mark.parametrize(
    ("family", "packed", "backend"),
    few([pytest.param(*case, id=name) for name, case in COMPILED.items()], "traced"),
)
def test_compiling_changes_no_figure_that_matters(
    dataset: str,
    tmp_path: Path,
    family: dict[str, Any],
    packed: bool,
    backend: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if packed:
        dataset = packed_dataset(tmp_path)
    # without dropout: the compiled model draws its masks in another order
    shape = {**family, "num_hidden_layers": 1, "hidden_dropout": 0.0, "attention_dropout": 0.0}
    settings = config(steps=3, evaluate_every=3, global_batch=10, model=shape)
    plain = here(settings, dataset, tmp_path / "plain", micro_batch=5)
    torch._dynamo.reset()
    counters.clear()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    compiled = here(settings, dataset, tmp_path / "compiled", micro_batch=5, compile=True)
    assert counters["stats"]["unique_graphs"] == counters["frames"]["total"] == 1, (
        "a step is compiled in parts, or again"
    )
    for ours, theirs in zip(
        lines(tmp_path / "compiled" / "metrics.jsonl"),
        lines(tmp_path / "plain" / "metrics.jsonl"),
        strict=True,
    ):
        for name in ("loss", "grad_norm", "tokens"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-4)
    assert plain.outcome is not None
    assert compiled.outcome is not None
    assert compiled.outcome.summary["heldout_loss"] == pytest.approx(
        plain.outcome.summary["heldout_loss"], abs=1e-3
    )
