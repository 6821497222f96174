"""Pretraining of encoder-decoders: it learns by every kind of noise, goes on after a stop with the
same bits, and is scored on held-out rows in the same noise.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cloze.core.errors import UsageError
from cloze.core.stages.execute import execute
from cloze.labs.seq2seq.generate import generation_pipeline
from cloze.model import checkpoint
from cloze.model.use.configs import PerplexityConfig
from cloze.model.use.stages import PERPLEXITY
from tests.model.datasets import lines, write_dataset
from tests.model.train.ranks import STILL, config, digests, here
from tests.slices import few

MODEL = {**STILL, "initializer_range": 0.1, "max_position_embeddings": 64}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("rows") / "dataset"
    return write_dataset(path, rows=256, heldout=24, pair_task=None, masks={"rule": "token"})


def run(dataset: str, out: Path, family: str, **values: Any) -> list[dict[str, Any]]:
    settings = config(model={**MODEL, "family": family}, log_every=1, **values)
    here(settings, dataset, out)
    return lines(out / "metrics.jsonl")


@pytest.mark.parametrize(
    ("family", "objective"),
    few(
        [("t5", None), ("t5", "drop-tokens"), ("bart", None), ("transformer", "mass-style")], "bart"
    ),
)
def test_it_learns(dataset: str, tmp_path: Path, family: str, objective: str | None) -> None:
    named = {} if objective is None else {"objectives": [objective]}
    steps = {"steps": 70, "global_batch": 16, "learning_rate": 2e-2, "evaluate_every": 70}
    logged = run(dataset, tmp_path / "run", family, **named, **steps)
    losses = [line["loss"] for line in logged if "loss" in line]
    assert sum(losses[-5:]) / 5 < sum(losses[:5]) / 5 - 0.8
    heldout = [line["heldout_loss"] for line in logged if "heldout_loss" in line][-1]
    assert heldout < losses[0] - 0.8
    loaded = checkpoint.load(str(tmp_path / "run"))
    name = objective or {"t5": "random-spans", "bart": "bart"}[family]
    assert loaded.heads == {"seq2seq": {"objectives": [name]}}
    ((written,),) = generation_pipeline(str(tmp_path / "run")).generate(["t7 t8 t9"], tokens=5)
    assert len(written.ids) <= 5


def test_it_goes_on_with_the_same_bits(dataset: str, tmp_path: Path) -> None:
    settings = config(model={**MODEL, "family": "t5", "hidden_dropout": 0.1})
    straight = here(settings, dataset, tmp_path / "straight")
    here(settings, dataset, tmp_path / "stopped", stop_at=3)
    resumed = here(settings, dataset, tmp_path / "stopped")
    weights = [digests(run.checkpoint)["model.safetensors"] for run in (straight, resumed)]
    assert weights[0] == weights[1]


def test_held_out_rows_are_scored_in_the_noise_of_the_training(
    dataset: str, tmp_path: Path
) -> None:
    run(dataset, tmp_path / "run", "t5", steps=2, objectives=["replace-spans"])
    inputs = {"checkpoint": str(tmp_path / "run"), "dataset": dataset}
    found = execute(PERPLEXITY, PerplexityConfig(precision="fp32"), inputs, str(tmp_path / "out"))
    assert found.as_json()["metrics"]["heldout_loss"] > 1.0


def test_a_model_without_sentinels_cannot_replace_spans(dataset: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"set model\.sentinels to 100"):
        run(dataset, tmp_path / "run", "bart", objectives=["replace-spans"])
