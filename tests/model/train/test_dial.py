"""The dial: Ettin's shapes, what a user sets wins, and a training that is resumed keeps its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.core.config import parse_config
from cloze.core.errors import UsageError
from cloze.core.stages.cost import MachineSpec, PlannedBuild
from cloze.core.stages.execution import Execution
from cloze.flows.cli import main
from cloze.model.train import dial
from cloze.model.train.config import PretrainConfig
from cloze.model.train.plan.cost import COSTS
from cloze.model.train.plan.estimates import approximate_parameters
from cloze.model.train.plan.sizing import describe_size, resolve_size
from cloze.model.train.stage import STAGE
from tests.model.datasets import write_dataset
from tests.model.train.ranks import here

ETTIN = 50_368  # its vocabulary
DATA = {"vocab_size": ETTIN, "length": 1024, "mean_length": 1000.0}


def resolved(**values: Any) -> PretrainConfig:
    config = parse_config(PretrainConfig, {"tokens": 10**9, **values}, "pretrain")
    return resolve_size(config, ETTIN, 1000.0, 1e12, "cuda")


@pytest.mark.parametrize(
    ("size", "shape"),
    [
        ("17m", (7, 256, 4, 384)),
        ("32m", (10, 384, 6, 576)),
        ("68m", (19, 512, 8, 768)),
        ("150m", (22, 768, 12, 1152)),
        ("400m", (28, 1024, 16, 2624)),
    ],
)
def test_ettins_sizes_have_its_shapes(size: str, shape: tuple[int, ...]) -> None:
    model = resolved(size=size).model
    assert model is not None
    assert (
        model.num_hidden_layers,
        model.hidden_size,
        model.num_attention_heads,
        model.intermediate_size,
    ) == shape


@settings(max_examples=40)
@given(st.integers(2_000_000, 1_000_000_000), st.sampled_from([1000, 4096, 8192]))
def test_a_size_counts_the_word_embeddings(size: int, vocabulary: int) -> None:
    model = dial.shape(size, vocabulary)
    assert abs(approximate_parameters(model) / size - 1) < 0.16
    assert model.head_size in (32, 64)
    larger = dial.shape(2 * size, vocabulary)
    assert larger.hidden_size >= model.hidden_size


def test_words_that_fill_a_size_are_refused() -> None:
    with pytest.raises(UsageError, match=r"2,000,000.* 50,368 .*nearest has 1,638,912"):
        dial.shape(2_000_000, ETTIN)


def test_step_law_gives_ettins_batch() -> None:
    assert dial.step_tokens(1.7e12) == pytest.approx(4608 * 1024, rel=0.25)


def test_what_is_set_by_hand_wins() -> None:
    chosen = resolved(size="17m")
    assert chosen.optimizer == "muon"
    by_hand: dict[str, Any] = {
        "global_batch": 256, "optimizer": "adamw", "learning_rate": 1e-4,
        "hidden_lr_multiplier": 1.0, "warmup_share": 0.1, "weight_decay": 0.01,
        "betas": (0.9, 0.999),
    }  # fmt: skip
    assert {*by_hand, "model"} == set(dial.RULES)
    for name, value in by_hand.items():
        kept = resolved(size="17m", **{name: value})
        expected = parse_config(PretrainConfig, {name: value}, "pretrain")
        assert getattr(kept, name) == getattr(expected, name), name
        assert name not in describe_size(kept)
        assert set(describe_size(kept)) == set(dial.RULES) - {name}


def test_rules_follow_the_batch_and_the_optimizer() -> None:
    chosen = resolved(size="17m")
    assert chosen.learning_rate is not None
    small = resolved(size="17m", global_batch=chosen.global_batch // 4)
    assert small.learning_rate == pytest.approx(chosen.learning_rate / 2, rel=0.05)
    large = resolved(size="17m", global_batch=4 * chosen.global_batch)
    assert large.learning_rate == chosen.learning_rate
    assert resolved(size="17m", optimizer="adamw").hidden_lr_multiplier == 1.0
    lamb = resolved(size="17m", optimizer="lamb")
    assert lamb.learning_rate is None, "lamb's own default"
    steps = 10**9 / (1000 * lamb.global_batch)
    decay = min(0.1, 10 / (steps * lamb.peak_learning_rate()))
    assert lamb.weight_decay == pytest.approx(decay, rel=0.05)
    longer = resolved(size="17m", tokens=10**12)
    assert longer.global_batch > chosen.global_batch
    assert longer.weight_decay < chosen.weight_decay
    assert longer.warmup_share == pytest.approx(0.003)


def test_a_time_stands_for_its_tokens() -> None:
    hour, day = (resolved(size="17m", tokens=None, max_time=text) for text in ("1h", "24h"))
    assert hour.global_batch < day.global_batch
    every_token = resolved(size="17m", tokens=None, max_time="24h", objectives=("clm",))
    assert every_token.global_batch < day.global_batch  # predicting each takes longer


def test_a_config_with_a_size_survives_json_and_256_by_hand_counts() -> None:
    plain = {"size": "17m", "tokens": 10**9}
    config = parse_config(PretrainConfig, plain, "pretrain")
    by_hand = parse_config(PretrainConfig, {**plain, "global_batch": 256}, "pretrain")
    for one in (config, by_hand, resolved(**plain)):
        assert PretrainConfig.model_validate(one.model_dump(mode="json")) == one
    assert resolved(**plain, global_batch=256).global_batch == 256
    prints = [STAGE.fingerprint(one, {}) for one in (config, by_hand)]
    assert prints[0] != prints[1]
    number = parse_config(PretrainConfig, {**plain, "size": 17_000_000}, "pretrain")
    assert STAGE.fingerprint(number, {}) == prints[0]


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"size": "17x", "tokens": 5}, "17m, 1.5M or 400000000"),
        ({"size": 17.5, "tokens": 5}, "integer"),
        ({"size": "9G", "tokens": 5}, "less than or equal to 2000000000"),
        ({"size": "17m"}, "give tokens or max_time instead of steps"),
        ({"size": "17m", "tokens": 5, "model": "bert-tiny"}, "model and size (17,000,000) exclude"),
        ({"size": "17m", "steps": 5}, "give tokens or max_time instead of steps"),
    ],
)
def test_a_fault_is_one_sentence(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_config(PretrainConfig, values, "pretrain")
    assert sentence in str(caught.value)


def test_a_checkpoint_has_a_model_already() -> None:
    config = parse_config(PretrainConfig, {"size": "17m", "tokens": 5}, "pretrain")
    with pytest.raises(UsageError, match="size .* shapes a new model, and checkpoint has one"):
        config.check_inputs(["dataset", "checkpoint"])


def test_no_number_is_a_fault_of_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pretrain", "--dataset", "x", "--size", "17x", "--out", "y"]) == 2
    assert "'17x' is not an integer" in capsys.readouterr().err


def test_a_plan_says_what_was_chosen_and_why() -> None:
    config = parse_config(PretrainConfig, {"size": "17m", "tokens": 10**9}, "pretrain")
    plan = COSTS.estimate(PlannedBuild(config, {"dataset": DATA}, Execution(), MachineSpec(cpus=2)))
    assert "7 layers of 256" in plan.note
    assert "Step Law" in plan.note
    assert plan.expected_metadata["parameters"] == pytest.approx(17e6, rel=0.02)


def test_a_resumed_training_keeps_what_was_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = write_dataset(tmp_path / "data", pair_task=None)
    config = parse_config(
        PretrainConfig,
        {"size": "100k", "tokens": 4000, "precision": "fp32", "heldout_rows": 8},
        "pretrain",
    )
    straight = here(config, dataset, tmp_path / "straight")
    here(config, dataset, tmp_path / "halves", stop_at=5)
    monkeypatch.setattr(dial, "step_tokens", lambda tokens: 1e6)  # as on a faster machine
    resumed = here(config, dataset, tmp_path / "halves")
    assert straight.outcome is not None
    assert resumed.outcome is not None
    summary = resumed.outcome.summary
    assert (summary["vocab_size"], summary["global_batch"]) == (64, 8)
    assert summary["model"]["num_hidden_layers"] == 3
    assert summary["loss"] == straight.outcome.summary["loss"]
    assert "Ettin" in summary["dial"]["model"]
    assert "Step Law" in straight.said("note")
