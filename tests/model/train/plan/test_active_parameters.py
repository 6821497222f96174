"""Weights that a token passes through: a shared layer counts once for each use."""

from __future__ import annotations

import pytest

from cloze.model.families.registry import presets
from cloze.model.train.plan.estimates import active_parameters, approximate_parameters


@pytest.mark.parametrize("name", presets())
def test_layers_that_share_weights_count_by_their_uses(name: str) -> None:
    model = presets()[name]
    if not model.vocab_size:
        model = model.model_copy(update={"vocab_size": 30_000})
    more = active_parameters(model) - approximate_parameters(model)
    assert more == model.layer_weights * (model.num_hidden_layers - model.distinct_layers)
    if name.startswith("albert"):
        assert more == (model.num_hidden_layers - 1) * model.layer_weights > 0
    if name.startswith("bert"):
        assert more == 0
