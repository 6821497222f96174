"""One network read whole and from left to right: which samples, what they see, phases, the mixture
of both, and the verbs after it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cloze.core.errors import UsageError
from cloze.core.stages.execute import execute
from cloze.model import checkpoint
from cloze.model.data.batch import AttentionModes, collate
from cloze.model.data.layouts import Sequences, make_layout
from cloze.model.data.shards import ShardedRows
from cloze.model.families.registry import model_config
from cloze.model.layers import layout as layout_module
from cloze.model.train.loop.data import attention_modes, objective_weights
from cloze.model.train.plan.estimates import MASK_SHARE, StepCost
from cloze.model.use.configs import PerplexityConfig
from cloze.model.use.fill_mask import FillMaskPipeline
from cloze.model.use.stages import PERPLEXITY
from tests.model.datasets import SPECIAL, lines, write_dataset
from tests.model.layouts import varlen_on_cpu
from tests.model.train.ranks import STILL, config, digests, here, job, run_all
from tests.tiny_models import tiny_batch, tiny_model

IGNORE = -100


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_dataset(
        tmp_path_factory.mktemp("both") / "dataset", pair_task=None, rows=64, heldout=16
    )


def batch_of(
    dataset: str, directions: AttentionModes, rows: int = 12, **options: Any
) -> dict[str, Any]:
    shards, numbers = ShardedRows(dataset), np.arange(rows)
    taken = shards.take(numbers, 0 * numbers)
    return collate(
        taken, pad=SPECIAL.pad, longest=32, directions=directions, samples=numbers, **options
    )


@settings(max_examples=50, deadline=None)
@given(st.floats(0.01, 0.99), st.integers(0, 10**9), st.integers(1, 300))
def test_any_samples_in_a_row_are_shared_out_to_within_one(
    share: float, first: int, count: int
) -> None:
    samples = np.arange(first, first + count)
    found = AttentionModes(causal_share=share).causal(samples)
    assert abs(int(found.sum()) - share * count) <= 1 + 1e-6
    cut = count // 2  # however they are cut
    parts = [
        AttentionModes(causal_share=share).causal(part) for part in (samples[:cut], samples[cut:])
    ]
    assert np.concatenate(parts).tolist() == found.tolist()


def test_all_or_none_are_read_from_left_to_right() -> None:
    assert not AttentionModes().causal(np.arange(9)).any()
    assert AttentionModes(causal_share=1.0).causal(np.arange(9)).all()


def test_rows_that_are_read_from_left_to_right_have_no_masks_and_name_what_comes_next(
    dataset: str,
) -> None:
    whole, mixed = (
        batch_of(dataset, AttentionModes()),
        batch_of(dataset, AttentionModes(causal_share=0.5, before=True)),
    )
    causal = AttentionModes(causal_share=0.5).causal(np.arange(12))
    assert causal is not None
    plain = whole["input_ids"].flatten().clone()
    real = whole["masked_labels"] != IGNORE
    plain[whole["masked_positions"][real]] = whole["masked_labels"][real]
    plain = plain.view_as(whole["input_ids"])
    way = torch.from_numpy(causal)
    assert mixed["input_ids"][way].equal(plain[way])
    assert mixed["input_ids"][~way].equal(whole["input_ids"][~way])
    asked = mixed["causal_labels"] != IGNORE
    flat = mixed["causal_positions"][asked]
    assert plain.flatten()[flat + 1].equal(mixed["causal_labels"][asked])
    assert int(asked.sum()) == int((whole["attention_mask"].sum(1) - 1)[way].sum())
    masked = mixed["masked_labels"] != IGNORE
    assert set((mixed["masked_positions"][masked] // 32).tolist()) == set(
        np.flatnonzero(~causal).tolist()
    )
    assert mixed["prediction_positions"][masked].equal(mixed["masked_positions"][masked] - 1)


def test_no_sequence_of_a_packed_row_names_the_next_ones_first_token(tmp_path: Path) -> None:
    from cloze.model.data.rows import MaskedRows

    none = np.zeros(0, np.int64)
    rows = MaskedRows(
        ids=np.array([2, 7, 3, 2, 8, 9, 3]),
        lengths=np.array([7]),
        segment_start=np.array([7]),
        pair_labels=np.array([IGNORE]),
        positions=none,
        replacements=none,
        counts=np.array([0]),
        documents=np.zeros(1, np.uint64),
        sentences=np.zeros(1, np.int64),
        boundaries=np.array([0, 3]),
        boundary_counts=np.array([2]),
    )
    found = collate(
        rows, pad=0, longest=16, directions=AttentionModes(causal_share=1.0), samples=np.arange(1)
    )
    asked = found["causal_labels"] != IGNORE
    assert found["causal_positions"][asked].tolist() == [0, 1, 3, 4, 5]
    assert found["causal_labels"][asked].tolist() == [7, 3, 8, 9, 3]
    assert found["layout"].causal.tolist() == [True]


@pytest.mark.parametrize("family", ["bert", "modern"])
@pytest.mark.parametrize("kind", ["rows", "buckets", "packed"])
@pytest.mark.parametrize("several", [False, True])
def test_each_row_sees_what_its_way_allows(
    family: str, kind: Any, several: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every layout: rows read whole as a batch of their own, the others as one in which all are
    causal; and by hand, token by token.
    """
    monkeypatch.setattr(layout_module, "varlen_attention", varlen_on_cpu)
    model, batch = tiny_model(family=family), tiny_batch(rows=6, length=20)
    lengths = batch["attention_mask"].sum(1).numpy()
    causal = np.array([True, False, True, True, False, True])
    first = np.arange(6) * 20

    def states(way: Any, ids: Tensor = batch["input_ids"]) -> Tensor:
        sequences = Sequences(
            shape=(6, 20), first=first, lengths=lengths, packed=several, causal=way
        )
        layout = make_layout(kind, sequences)
        with torch.no_grad():
            found: Tensor = model.encoder(ids, batch["attention_mask"], 0 * ids, layout)
        return found

    mixed, real = states(causal), batch["attention_mask"]
    for way, rows in ((None, ~causal), (np.ones(6, np.bool_), causal)):
        chosen = torch.from_numpy(rows)[:, None] & real
        torch.testing.assert_close(mixed[chosen], states(way)[chosen], atol=1e-5, rtol=1e-5)
    changed = batch["input_ids"].clone()
    changed[:, 3] = 5 + (changed[:, 3] - 4) % 20
    moved = (states(causal, changed) - mixed).abs().amax(dim=-1)
    assert moved[torch.from_numpy(causal), :3].max() == pytest.approx(0.0, abs=1e-6)
    assert (moved[torch.from_numpy(~causal), :3].amax(dim=1) > 1e-3).all()
    assert (moved[:, 3] > 1e-3).all()


def test_the_losses_of_both_ways_fall_and_stopping_changes_no_byte(
    dataset: str, tmp_path: Path
) -> None:
    """Dropout is on; the mixture of GPT-BERT, with a share that does not divide the batch, is cut
    differently after the stop.
    """
    asked = config(
        steps=60,
        objectives=("clm", "mntp"),
        causal_share=0.3,
        learning_rate=1e-2,
        log_every=1,
        evaluate_every=60,
    )
    run = here(asked, dataset, tmp_path / "straight", micro_batch=4)
    found = lines(tmp_path / "straight/metrics.jsonl")
    for name in ("clm_loss", "mntp_loss"):
        early, late = (
            np.mean([float(line[name]) for line in part]) for part in (found[:5], found[-5:])
        )  # type: ignore[arg-type]
        assert late < early - 0.5, name
    assert {"heldout_loss", "heldout_mntp_loss", "heldout_mntp_top5_accuracy"} <= found[-1].keys()
    assert checkpoint.load(str(run.checkpoint)).heads["masked_lm"] == {
        "objectives": ["clm", "mntp"],
        "causal_share": 0.3,
    }
    # `cloze perplexity` reads as many rows each way as the training did, and tells both figures.
    inputs = {"checkpoint": str(run.checkpoint), "dataset": dataset}
    asked_again = PerplexityConfig(precision="fp32", rows=8)
    scored = execute(PERPLEXITY, asked_again, inputs, str(tmp_path / "scored"))
    for name in ("heldout_loss", "heldout_mntp_loss", "heldout_mntp_accuracy"):
        assert scored.as_json()["metrics"][name] == pytest.approx(found[-1][name], abs=1e-4), name
    here(asked, dataset, tmp_path / "halves", stop_at=23, micro_batch=4)
    again = here(asked, dataset, tmp_path / "halves", micro_batch=4)
    assert (
        digests(again.checkpoint)["model.safetensors"]
        == digests(run.checkpoint)["model.safetensors"]
    )


def test_a_loss_does_not_depend_on_how_a_batch_is_cut(dataset: str, tmp_path: Path) -> None:
    values = {
        "steps": 6,
        "objectives": ("clm", "mntp"),
        "causal_share": 0.3,
        "log_every": 1,
        "model": STILL,
    }
    losses = []
    for cut in (8, 3):
        here(config(**values), dataset, tmp_path / str(cut), micro_batch=cut)
        losses.append(
            [
                (line["clm_loss"], line["mntp_loss"])
                for line in lines(tmp_path / str(cut) / "metrics.jsonl")
            ]
        )
    np.testing.assert_allclose(losses[0], losses[1], atol=2e-5)


def test_left_to_right_first_then_masks(dataset: str, tmp_path: Path) -> None:
    """The second phase goes on with weights, optimizer and steps; its checkpoint is an encoder like
    any other.
    """
    first = here(
        config(steps=40, objectives=("clm",), learning_rate=1e-2, log_every=1),
        dataset,
        tmp_path / "clm",
    )
    heads = checkpoint.load(str(first.checkpoint)).heads
    assert heads["masked_lm"] == {"objectives": ["clm"]}
    second = here(
        config(steps=40, objectives=("mlm",), learning_rate=1e-2, log_every=1, model={}),
        dataset,
        tmp_path / "mlm",
        fingerprint="e" * 64,
        more={"continue": str(first.checkpoint)},
    )
    found = lines(tmp_path / "mlm/metrics.jsonl")
    assert [found[0]["step"], found[-1]["step"]] == [41, 80]
    assert float(found[-1]["mlm_loss"]) < float(found[0]["mlm_loss"]) - 0.3  # type: ignore[arg-type]
    assert checkpoint.load(str(second.checkpoint)).heads == {
        "masked_lm": {},
        "pair": {"num_labels": 2},
    }
    with pytest.raises(UsageError, match="was trained from left to right alone"):
        FillMaskPipeline(str(first.checkpoint))
    FillMaskPipeline(str(second.checkpoint))


def test_shares_of_the_loss_are_those_of_the_samples() -> None:
    mixed = attention_modes(("clm", "mntp"), 0.25, 8)
    assert (mixed.causal_share, mixed.before) == (0.25, True)
    assert objective_weights(("clm", "mntp"), mixed) == {"clm": 0.25, "mntp": 0.75}
    assert attention_modes(("clm", "mlm"), None, 8) == AttentionModes(causal_share=0.5)
    assert attention_modes(("clm",), None, 8) == AttentionModes(causal_share=1.0)
    assert attention_modes(("mntp",), None, 8) == AttentionModes(before=True)
    assert attention_modes(("mlm", "nsp"), None, 8) == AttentionModes()
    assert objective_weights(("clm",), attention_modes(("clm",), None, 8)) == {}
    with pytest.raises(
        UsageError,
        match=r"causal_share \(0.1\) of global_batch \(8\) leaves .*; use global_batch 10 or more",
    ):
        attention_modes(("clm", "mntp"), 0.1, 8)
    with pytest.raises(UsageError, match=r"causal_share \(0.5\) is for objectives of both ways"):
        attention_modes(("mlm",), 0.5, 8)


def test_reading_from_left_to_right_keeps_the_logits_of_every_position(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where they are whole; in chunks there is one chunk of them, however many positions."""
    model = model_config("bert-base", vocab_size=30522)
    of_a_position = (1 - MASK_SHARE) * 64 * 512 * 10 * model.hidden_size
    chunked, everywhere = (
        StepCost.of(model, 512, causal_share=share).activation_bytes(64) for share in (0.0, 1.0)
    )
    assert everywhere - chunked == pytest.approx(of_a_position, rel=0.01)
    monkeypatch.setattr("cloze.model.train.plan.estimates.chunks_logits", lambda *_: False)
    masked, mixed, causal = (
        StepCost.of(model, 512, causal_share=share).activation_bytes(64)
        for share in (0.0, 0.5, 1.0)
    )
    assert mixed == pytest.approx((masked + causal) / 2, rel=1e-3)
    logits = (1 - MASK_SHARE) * 64 * 512 * 10 * (model.vocab_size + model.hidden_size)
    assert causal - masked == pytest.approx(logits, rel=0.01)
    assert StepCost.of(model, 512, causal_share=1.0).fitting_rows(8e10) < StepCost.of(
        model, 512
    ).fitting_rows(8e10)


@pytest.mark.parametrize(
    "stages",
    [(0, 3), pytest.param((1, 2), marks=pytest.mark.soak)],
    ids=str,
)
def test_two_ways_are_one_training_on_any_ranks(
    dataset: str, tmp_path: Path, stages: tuple[int, ...]
) -> None:
    """Five samples on two ranks, one at a time: one runs out before the other, and rarely have both
    the same way.
    """
    asked = config(
        steps=3,
        global_batch=5,
        objectives=("clm", "mntp"),
        causal_share=0.4,
        grad_clip=100.0,
        log_every=1,
        model=STILL,
    )
    alone = here(asked, dataset, tmp_path / "alone", micro_batch=5)
    run_all(
        [
            job(asked, dataset, tmp_path / f"zero{zero}", micro_batch=1, zero=zero)
            for zero in stages
        ],
        2,
    )
    expected = checkpoint.load(str(alone.checkpoint)).state
    for zero in stages:
        found = checkpoint.load(
            str(max((tmp_path / f"zero{zero}" / "checkpoints").glob("step-*")))
        ).state
        for name, tensor in expected.items():
            torch.testing.assert_close(
                found[name],
                tensor,
                rtol=0,
                atol=1e-5,
                msg=lambda text, name=name: f"{name}: {text}",
            )
        losses = [
            [
                (line["clm_loss"], line["mntp_loss"])
                for line in lines(tmp_path / run / "metrics.jsonl")
            ]
            for run in ("alone", f"zero{zero}")
        ]
        np.testing.assert_allclose(losses[1], losses[0], atol=1e-5)
