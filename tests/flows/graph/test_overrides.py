"""Overrides: texts become nested values once, and are laid over a config key by key."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cloze.core.config import parse_config
from cloze.core.errors import UsageError
from cloze.flows.graph.overrides import merge, nest, parse
from cloze.model.train.config import PretrainConfig
from tests.flows.toy_run import CountConfig, LettersConfig


def laid(values: dict[str, Any], *settings: str) -> dict[str, Any]:
    return merge(values, parse(settings, "KEY=VALUE"), CountConfig, "count")


def test_keys_are_nested_and_the_last_one_wins() -> None:
    found = parse(
        ["pretrain.steps=200", "pretrain.betas=[0.9, 0.98]", "run.zero=2", "pretrain.steps=300"],
        "x",
        sections=True,
    )
    assert found == {"pretrain": {"steps": 300, "betas": [0.9, 0.98]}, "run": {"zero": 2}}


@pytest.mark.parametrize("text", ["2024-01-01", "2024-01-01 12:00:00"])
def test_a_date_is_text(text: str) -> None:
    assert parse([f"name={text}"], "x", sections=True) == {"name": text}


@pytest.mark.parametrize("text", ["!!timestamp 2024-01-01", "!!binary aGk=", "!!set {a, b}"])
def test_what_json_cannot_hold_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not valid YAML"):
        parse([f"name={text}"], "x")


def test_a_section_is_left_out() -> None:
    assert parse(["count=false"], "x", sections=True) == {"count": False}


@pytest.mark.parametrize("setting", ["steps", "=3", "pretrain.=3", ".steps=3", "steps=3"])
def test_a_malformed_setting_is_told_with_an_example(setting: str) -> None:
    with pytest.raises(UsageError, match="must look like section.key=value"):
        parse([setting], "section.key=value", sections=True)


def test_a_key_below_a_name_starts_from_what_the_name_stands_for() -> None:
    assert laid({"model": "bert-mini"}, "model.dropout=0") == {
        "model": {"preset": "bert-mini", "dropout": 0}
    }
    assert laid({}, "model=bert-mini", "model.dropout=0") == {
        "model": {"preset": "bert-mini", "dropout": 0}
    }
    assert laid({"model": {"preset": "a", "width": 8}}, "model.width=9") == {
        "model": {"preset": "a", "width": 9}
    }
    assert laid({}, "model.dropout=0") == {"model": {"dropout": 0}}


def test_a_value_replaces_and_a_key_does_not() -> None:
    values = {"model": {"preset": "a", "width": 8}}
    assert laid(values, "model={preset: b}") == {"model": {"preset": "b"}}
    assert laid(values, "model=b") == {"model": "b"}
    assert laid(values, "model={preset: b}", "model.width=9") == {
        "model": {"preset": "b", "width": 9}
    }
    assert laid(values, "model.width=9", "model=b") == {"model": "b"}
    assert values == {"model": {"preset": "a", "width": 8}}


def test_an_empty_mapping_replaces_what_is_none_and_adds_nothing_to_one() -> None:
    """A section's `recipe: {}` over another's `recipe: lm` reaches the check of its fields."""
    for overrides in ({"size": {}}, parse(["size={}"], "x")):
        assert merge({"size": 3}, overrides, LettersConfig, "letters") == {"size": {}}
    assert merge({"size": {"a": 1}}, {"size": {}}, None, "letters") == {"size": {"a": 1}}


def test_a_key_below_a_plain_value_is_told() -> None:
    with pytest.raises(UsageError, match="letters.size, which is 3, not a mapping"):
        merge({"size": 3}, parse(["size.more=1"], "x"), LettersConfig, "letters")


def test_dotted_and_nested_overrides_come_to_the_same_and_stay_so() -> None:
    wanted = {"pretrain": {"steps": 200, "seed": 2}}
    assert nest({"pretrain.steps": 200, "pretrain": {"seed": 2}}) == wanted
    assert nest(wanted) == wanted
    whole = nest({"pretrain.model": {"preset": "a"}})
    assert nest(json.loads(json.dumps(whole))) == whole  # as they travel through Prefect
    assert merge({"model": {"width": 8}}, whole["pretrain"], None, "pretrain") == {
        "model": {"preset": "a"}
    }


@pytest.mark.parametrize("key", ["pretrain.", ".steps", "pretrain..steps", "pretrain.model.", "."])
def test_a_dotted_key_without_a_part_is_told(key: str) -> None:
    """As typed into Prefect's form: `pretrain.model.` took the model away without a word."""
    with pytest.raises(UsageError, match=rf"'{key}'.* must look like"):
        nest({key: 3})
    with pytest.raises(UsageError, match=rf"'{key}=3' must look like section.key=value"):
        parse([f"{key}=3"], "section.key=value")


def test_who_sets_a_length_takes_back_the_other_one() -> None:
    preset = {"steps": 5500, "warmup_steps": 200, "seed": 1}
    assert merge(preset, {"max_time": "2m"}, PretrainConfig, "pretrain") == {
        "warmup_steps": 200,
        "seed": 1,
        "max_time": "2m",
    }
    found = merge(
        preset, {"tokens": 9, "warmup_share": 0.1, "steps": None}, PretrainConfig, "pretrain"
    )
    assert found == {"seed": 1, "tokens": 9, "warmup_share": 0.1, "steps": None}
    assert merge(preset, {"max_time": None}, PretrainConfig, "pretrain") == {
        **preset,
        "max_time": None,
    }
    with pytest.raises(UsageError, match="steps and max_time exclude each other"):
        parse_config(
            PretrainConfig,
            merge(preset, {"max_time": "2m", "steps": 3}, PretrainConfig, "pretrain"),
            "pretrain",
        )


def test_a_size_replaces_a_preset_s_model_whose_single_values_are_still_merged() -> None:
    preset = {"model": {"preset": "modern-tiny", "hidden_size": 256}}
    assert merge(preset, {"size": "17m"}, PretrainConfig, "pretrain") == {"size": "17m"}
    assert merge(preset, {"model": {"num_hidden_layers": 4}}, PretrainConfig, "pretrain") == {
        "model": {"preset": "modern-tiny", "hidden_size": 256, "num_hidden_layers": 4}
    }
    assert merge({"size": "17m"}, {"model": "bert-tiny"}, PretrainConfig, "pretrain") == {
        "model": "bert-tiny"
    }
