"""The dataset's config: what follows from a recipe, and what is refused or warned of."""

from __future__ import annotations

import re
import shutil
from types import SimpleNamespace

import pytest

from cloze.core.config import parse_config
from cloze.core.errors import ClozeError, UsageError
from cloze.pipeline.dataset.config import (
    DatasetConfig,
    ExampleConfig,
    check_disk_space,
    shard_bytes,
)
from cloze.pipeline.dataset.recipes import RECIPES
from cloze.pipeline.dataset.summary import CAPPED, warnings


def test_recipe_fills_the_config():
    config = DatasetConfig(length=128)
    assert (
        config.pairing,
        config.masking,
        config.mask_rate,
        config.short_seq_prob,
        config.max_predictions,
    ) == (
        "nsp",
        "token",
        0.15,
        0.1,
        20,
    )
    assert DatasetConfig(length=512).max_predictions == 78
    assert DatasetConfig(length=128, mask_rate=0.3).max_predictions == 39
    assert DatasetConfig(length=512, max_predictions=20).max_predictions == 20
    assert DatasetConfig.model_validate(config.model_dump()) == config


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"length": 7}, r"dataset.length \(found 7\): a row has 8 to 65,535 tokens"),
        ({"length": 65_536}, "8 to 65,535"),
        ({"recipe": "brt"}, r"dataset.recipe \(found 'brt'\): unknown recipe; did you mean 'bert'"),
        ({"pairing": "spo"}, "unknown pairing"),
        ({"masking": "tokens"}, "did you mean 'token'"),
        ({"mask_copies": 0}, "dataset.mask_copies"),
        ({"mask_share": 0.9, "random_share": 0.2}, "above|more than"),
        ({"lenght": 128}, "did you mean 'length'"),
    ],
)
def test_bad_settings_of_the_stage(settings, says):
    with pytest.raises(UsageError, match=says):
        parse_config(DatasetConfig, settings, "dataset")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"max_predictions": 20, "length": 512},
            r"max_predictions \(20\) cuts mask_rate: rows of 512 tokens have 3.9% masked, not "
            r"15.0%; leave it out, or set it to 78",
        ),
        (
            {"masking": "span", "mask_rate": 0.7},
            r"mask_rate \(0.7\) is more than masking span can choose in every row; use 0.5 or less",
        ),
        ({"recipe": "lm", "mask_copies": 10}, r"mask_copies \(10\) has no effect"),
    ],
)
def test_warnings(settings, says):
    [warning] = ExampleConfig(**settings).warnings()
    assert re.search(says, warning)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("length", [16, 64, 128, 512])
def test_no_default_is_warned_of(recipe, length):
    config = ExampleConfig(recipe=recipe, length=length)
    assert config.warnings() == warnings(config, {CAPPED: 9}, 10) == []


def test_shards_of_an_earlier_attempt_need_no_more_space(tmp_path, monkeypatch):
    config, done = DatasetConfig(), tmp_path / "train-0.arrow"
    needed = sum(shard_bytes(config, 1_000, 2))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0.6 * needed))
    given = (str(tmp_path), [str(done), str(tmp_path / "train-1.arrow")], 2_000)
    with pytest.raises(ClozeError, match="free some space"):
        check_disk_space(*given, config, 2)
    done.write_bytes(bytes(int(needed / 2)))
    check_disk_space(*given, config, 2)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"mask_rounding": "bret"}, "unknown mask_rounding; did you mean 'bert'"),
        ({"random_from": "corpse"}, "unknown random_from; did you mean 'corpus'"),
        ({"recipe": "roberta-docs"}, "unknown recipe; did you mean 'roberta-doc'"),
        ({"mask_rate": 0}, "greater than 0"),
        ({"max_ngram": 0}, "greater than or equal to 1"),
        ({"max_span": 61}, r"max_span \(found 61\): Input should be less than or equal to 60"),
        ({"max_ngram": 61}, "less than or equal to 60"),
        ({"span_p": 1}, "less than 1"),
        ({"mask_share": 0.85, "random_share": 0.2}, "more than what mask_share"),
        ({"recipe": ["bert"]}, "valid string"),
    ],
)
def test_bad_settings(settings, says):
    with pytest.raises(UsageError, match=says):
        parse_config(ExampleConfig, settings, "dataset")


def test_recipes_can_be_mixed():
    config = ExampleConfig(
        recipe="spanbert", pairing="sop", mask_rate=0.4, random_from="vocabulary", length=64
    )
    assert (config.pairing, config.masking, config.mask_rounding, config.max_predictions) == (
        "sop",
        "span",
        "ceil",
        64,
    )
    assert ExampleConfig(**config.model_dump()) == config
