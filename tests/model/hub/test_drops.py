"""What files contain beside the weights of a model: copies, buffers, and heads of other classes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cloze.core.errors import DataError
from cloze.model.families.hub_format import WORDS, HubFormat
from cloze.model.families.hub_formats import formats
from cloze.model.families.key_map import Drop
from tests.tiny_models import tiny_config, tiny_model

CASES = [
    pytest.param(hub, drop, id=f"{hub.model_type}-{hub.family}-{drop.names}")
    for hub in formats()
    for drop in hub.drops
]


def weights(hub: HubFormat) -> tuple[Any, dict[str, torch.Tensor]]:
    model, state = tiny_config(family=hub.family), tiny_model(family=hub.family).state_dict()
    known = {name: tensor for name, tensor in state.items() if hub.keys.to_hf(name) is not None}
    return model, hub.to_state(known, (), model)


def same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    return found.keys() == expected.keys() and all(
        found[name].equal(tensor) for name, tensor in expected.items()
    )


@pytest.mark.parametrize(("hub", "drop"), CASES)
def test_what_a_file_has_beside_the_model(hub: HubFormat, drop: Drop) -> None:
    model, state = weights(hub)
    if not drop.when(model, None):
        return
    name = drop.names.replace("*coder", "encoder").replace("*", "x")
    expected = hub.from_state(state, "here", None, model)
    if drop.copy_of:
        original = state[drop.copy_of]
        assert same(
            hub.from_state({**state, name: original.clone()}, "here", None, model), expected
        )
        alone = {key: tensor for key, tensor in state.items() if key != drop.copy_of}
        first = f"{hub.keys.to_hf(WORDS)}".split(".", 1)[0]
        if any(key.startswith(f"{first}.") for key in alone):  # else it counts as an encoder alone
            found = hub.from_state({**alone, name: original}, "here", None, model)
            assert same(found, expected)
        changed = {**state, name: original + 1}
        if hub.keys.from_hf(name) is None:
            with pytest.raises(DataError, match=f"must be tied to {drop.copy_of}"):
                hub.from_state(changed, "here", None, model)
        else:
            assert not same(hub.from_state(changed, "here", None, model), expected)
        return
    state.pop(name, None)
    expected = hub.from_state(state, "here", None, model)
    found = hub.from_state({**state, name: torch.zeros(2)}, "here", None, model)
    assert found.keys() - expected.keys() == ({name} if drop.named else set())
    wrong = {"zero": torch.ones(2), "exact": torch.ones(2).half()}.get(drop.must_be)
    if wrong is not None:
        with pytest.raises(DataError, match=f"{name} (must be 0|is rounded)"):
            hub.from_state({**state, name: wrong}, "here", None, model)
