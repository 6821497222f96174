"""Permutation language modelling: it learns, resumes with the same bits, and draws the order of
each row by the sample's number alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cloze.core.errors import UsageError
from cloze.core.stages.execute import execute
from cloze.labs.xlnet.two_stream import Permutation
from cloze.model import checkpoint
from cloze.model.data import layouts
from cloze.model.data.batch import AttentionModes, collate
from cloze.model.data.shards import ShardedRows
from cloze.model.families.models import new_model
from cloze.model.hub.stages import EXPORT, ExportConfig
from cloze.model.layers.batch import unmask
from cloze.model.use.configs import PerplexityConfig
from cloze.model.use.fill_mask import FillMaskPipeline
from cloze.model.use.scorer import SentenceScorer
from cloze.model.use.stages import PERPLEXITY
from tests.model.datasets import SPECIAL, lines, write_dataset
from tests.model.layouts import sequences_of
from tests.model.train.ranks import STILL, config, digests, here
from tests.slices import few
from tests.tiny_models import tiny_batch, tiny_config

MODEL = {**STILL, "family": "xlnet", "initializer_range": 0.1, "max_position_embeddings": 64}
IGNORE = -100


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("rows") / "dataset"
    return write_dataset(path, rows=256, heldout=24, pair_task=None, masks={"rule": "token"})


def batch_of(dataset: str, numbers: Any, memory: int = 0, seed: int = 5) -> dict[str, Any]:
    numbers = np.asarray(numbers)
    modes = AttentionModes(transform=Permutation(seed=seed, memory=memory))
    rows = ShardedRows(dataset).take(numbers, 0 * numbers)
    return collate(rows, pad=SPECIAL.pad, longest=32, directions=modes, samples=numbers)


def test_stored_masks_are_numbered_by_the_sample_alone(dataset: str) -> None:
    numbers = np.arange(40)
    plain = collate(ShardedRows(dataset).take(numbers, 0 * numbers), pad=SPECIAL.pad, longest=32)
    batch = batch_of(dataset, numbers)
    order, real = batch["target_order"], batch["masked_labels"] != IGNORE
    assert batch["masked_positions"].equal(plain["masked_positions"])
    assert batch["masked_labels"].equal(plain["masked_labels"])
    assert batch["input_ids"].equal(unmask(plain)), "targets keep their tokens"
    assert (order > 0).flatten().nonzero().squeeze(1).equal(batch["masked_positions"][real])
    for row in order:
        assert row[row > 0].sort().values.tolist() == list(range(1, int((row > 0).sum()) + 1))
    assert any(row[row > 0].tolist() != row[row > 0].sort().values.tolist() for row in order)
    for part in ([7], [3, 7, 21]):  # as in any other batch
        alone = batch_of(dataset, part)["target_order"]
        assert alone.equal(order[part, : alone.shape[1]])
    assert not batch_of(dataset, numbers, seed=6)["target_order"].equal(order)
    remembered = batch_of(dataset, numbers, memory=9)
    assert (remembered["target_order"][:, :9] == -1).all()
    assert (remembered["target_order"][:, 9:] >= 0).all()
    columns = remembered["masked_positions"][remembered["masked_labels"] != IGNORE] % 32
    assert int(columns.min()) >= 9
    assert remembered["input_ids"].equal(batch["input_ids"])


def run(dataset: str, out: Path, *, model: Any = (), **values: Any) -> list[dict[str, Any]]:
    settings = config(model={**MODEL, **dict(model)}, log_every=1, **values)
    here(settings, dataset, out)
    return lines(out / "metrics.jsonl")


@pytest.mark.parametrize("memory", few([0, 8], 0))
def test_it_learns(dataset: str, tmp_path: Path, memory: int) -> None:
    steps = {"steps": 120, "global_batch": 16, "learning_rate": 1e-2, "evaluate_every": 120}
    logged = run(dataset, tmp_path / "run", model={"memory": memory}, **steps)
    losses = [line["loss"] for line in logged if "loss" in line]
    assert sum(losses[-5:]) / 5 < sum(losses[:5]) / 5 - 2.0
    heldout = [line["heldout_loss"] for line in logged if "heldout_loss" in line][-1]
    assert heldout < losses[0] - 2.0
    loaded = checkpoint.load(str(tmp_path / "run"))
    assert loaded.heads == {"masked_lm": {"objectives": ["plm"]}}
    if not memory:
        inputs = {"checkpoint": str(tmp_path / "run"), "dataset": dataset}
        found = execute(PERPLEXITY, PerplexityConfig(precision="fp32"), inputs, str(tmp_path / "p"))
        assert found.as_json()["metrics"]["heldout_loss"] == pytest.approx(heldout, abs=0.4)
        ((best, *_),) = FillMaskPipeline(str(tmp_path / "run")).fill("t7 t8 [MASK] t10 t11", 3)
        assert best["token"] == "t9"
        with pytest.raises(UsageError, match=r"trained without masks \(plm\)"):
            SentenceScorer(str(tmp_path / "run"))
        onnx = ExportConfig(format="onnx")
        with pytest.raises((UsageError, ModuleNotFoundError), match=r"xlnet model|onnx"):
            execute(EXPORT, onnx, {"checkpoint": str(tmp_path / "run")}, str(tmp_path / "hub"))


def test_it_goes_on_with_the_same_bits(dataset: str, tmp_path: Path) -> None:
    settings = config(model={**MODEL, "memory": 4, "hidden_dropout": 0.1, "attention_dropout": 0.1})
    straight = here(settings, dataset, tmp_path / "straight")
    here(settings, dataset, tmp_path / "stopped", stop_at=3)
    resumed = here(settings, dataset, tmp_path / "stopped")
    weights = [digests(run.checkpoint)["model.safetensors"] for run in (straight, resumed)]
    assert weights[0] == weights[1]


def test_masks_can_be_read_instead(dataset: str, tmp_path: Path) -> None:
    logged = run(dataset, tmp_path / "run", objectives=["mlm"], steps=2)
    assert any("heldout_top5_accuracy" in line for line in logged)
    assert checkpoint.load(str(tmp_path / "run")).heads == {"masked_lm": {"objectives": ["mlm"]}}


def test_micro_batches_and_recomputation_change_nothing_but_rounding(
    dataset: str, tmp_path: Path
) -> None:
    settings = config(model={**MODEL, "memory": 4, "num_hidden_layers": 3}, steps=3)
    whole, parts = (
        checkpoint.load(here(settings, dataset, tmp_path / name, **options).checkpoint).state
        for name, options in (
            ("whole", {}),
            ("parts", {"micro_batch": 3, "activation_checkpointing": True}),
        )
    )
    for name, weight in whole.items():
        torch.testing.assert_close(parts[name], weight, atol=1e-5, rtol=1e-4)


def test_what_cannot_be_trained_is_refused(dataset: str, tmp_path: Path) -> None:
    lengths = {"pair_task": None, "packed": True, "lengths": lambda rng: int(rng.integers(5, 9))}
    packed = write_dataset(tmp_path / "packed", **lengths)
    for objective in ("plm", "mlm"):
        with pytest.raises(UsageError, match="packed"):
            run(packed, tmp_path / "run", objectives=[objective])
    with pytest.raises(UsageError, match=r"objective \(plm\) is used alone"):
        run(dataset, tmp_path / "run", objectives=["plm", "mlm"])
    with pytest.raises(UsageError, match=r"objective \(plm\) needs a second stream .* bert"):
        run(dataset, tmp_path / "run", model={"family": "bert"}, objectives=["plm"])
    xlnet = new_model(tiny_config("xlnet"))
    batch = tiny_batch()
    layout = layouts.packed(sequences_of(batch))
    with pytest.raises(UsageError, match="xlnet models read padded rows of one text each"):
        xlnet({**batch, "layout": layout})
