"""What a shard says of its masks, and the limits of what can be drawn."""

from __future__ import annotations

import numpy as np
import pytest

from cloze.core.errors import DataError
from cloze.pipeline.dataset.masking.candidates import MaskConfig
from cloze.pipeline.dataset.masking.registry import RULES
from cloze.pipeline.dataset.masking.unit_placement import UnitSpec


def test_a_config_of_masks_travels_as_a_dict():
    config = MaskConfig(
        rule="span",
        rate=0.3,
        mask_rounding="ceil",
        max_predictions=77,
        random_from="corpus",
        span_p=0.3,
        max_span=5,
    )
    assert MaskConfig.from_dict(config.as_dict()) == config
    with pytest.raises(DataError, match="drawn with 'colour', which this program does not know"):
        MaskConfig.from_dict({**config.as_dict(), **dict.fromkeys(("wide", "colour", "z", "form"))})
    with pytest.raises(
        DataError,
        match=(
            r"cannot be drawn again: mask_rounding \(found 'none'\): unknown mask_rounding; choose from bert, "
            r"ceil"
        ),
    ):
        MaskConfig.from_dict({**config.as_dict(), "budget": "none"})


def test_a_shard_says_of_its_masks_what_it_always_said():
    """The bytes of every shard hold these keys: one more or less, and no dataset could be appended
    to or made again.
    """
    always = (
        "rule rate budget max_predictions mask_share random_share random_from max_ngram span_p "
        "max_span"
    ).split()
    for rule in RULES:
        assert sorted(MaskConfig(rule=rule).as_dict()) == sorted(always)


@pytest.mark.parametrize("option", ["max_ngram", "max_span"])
def test_units_are_at_most_as_long_as_a_window(option):
    """The words of a unit and its neighbours lie in one number of 64 bits; what is longer would be
    placed over others.
    """
    with pytest.raises(ValueError, match=rf"(?s){option}.*less than or equal to 60"):
        MaskConfig(**{option: 61})
    with pytest.raises(
        DataError,
        match=(
            rf"{option} \(found 61\): Input should be less than or equal to 60; make the dataset "
            rf"again"
        ),
    ):
        MaskConfig.from_dict({**MaskConfig().as_dict(), option: 61})
    with pytest.raises(
        ValueError, match="units have 61 words at most, and only 60 can be placed; use fewer"
    ):
        UnitSpec(weights=np.ones(61))
