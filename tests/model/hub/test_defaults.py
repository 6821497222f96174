"""Where a config of Hugging Face's leaves a field out, it has transformers' own default."""

from __future__ import annotations

from typing import Any

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from cloze.model.families.hub_format import HubFormat
from cloze.model.families.hub_formats import formats
from cloze.model.families.registry import FAMILIES

HUBS = list({id(hub): hub for hub in formats(FAMILIES)}.values())
# Fields that transformers' configs lack, or whose default there is none.
OWN: dict[str, dict[str, Any]] = {
    "albert": {"shared": "all"},
    "deberta": {
        "position_buckets": -1,
        "share_att_key": False,
        "norm_rel_ebd": "none",
        "pos_att_type": [],
    },
    "transformer": {"bos_token_id": 0},
}


@pytest.mark.parametrize("hub", HUBS, ids=lambda hub: f"{hub.family}-{hub.model_type}")
def test_a_field_that_is_left_out_has_its_default(hub: HubFormat) -> None:
    theirs = CONFIG_MAPPING[hub.model_type]().to_dict()
    differing = {name: value for name, value in hub.defaults.items() if theirs.get(name) != value}
    assert differing == OWN.get(hub.family, {})
