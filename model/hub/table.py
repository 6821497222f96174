"""Hugging Face directories: one table a family maps config and weights, and is read both ways.

mapping.py     what a family's table is made of, and how it is applied
bert.py        BERT's table; the other families' files say how theirs differ
export.py      stage "export": a checkpoint to a directory that transformers opens
importing.py   a directory to a checkpoint
parity.py      the check that nothing changed on the way
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pipeline.core.errors import DataError, UsageError

if TYPE_CHECKING:
    from model.families.key_map import Hub

HUBS: dict[str, str] = {  # our family -> where its table is
    "bert": "model.families.bert.hub:HUB",
    "megatron-bert": "model.families.megatron_bert.hub:HUB",
    "roberta": "model.families.roberta.hub:HUB",
    "albert": "model.families.albert.hub:HUB",
    "spanbert": "model.families.spanbert.hub:HUB",
    "electra": "model.families.electra.hub:HUB",
    "distilbert": "model.families.distilbert.hub:HUB",
    "ltr": "model.families.ltr.hub:HUB",
    "modern": "model.families.modern.hub:HUB",
    "longformer": "model.families.longformer.hub:HUB",
}


def hub_of(family: str) -> Hub:
    """The table of one of our families.

    Raises:
        UsageError: the family has none.
    """
    if family not in HUBS:
        raise UsageError(f"family ({family!r}) has no Hugging Face form; choose from " + ", ".join(sorted(HUBS)))
    module, _, name = HUBS[family].partition(":")
    hub: Hub = getattr(importlib.import_module(module), name)
    return hub


def hub_of_config(config: Mapping[str, Any], where: str) -> Hub:
    """The table for a Hugging Face config, found in the file `where`: that of its `model_type` whose fixed values it has.

    Raises:
        DataError: no family of ours has that type.
    """
    hubs = [hub_of(family) for family in HUBS]
    model_type = config.get("model_type")
    found = [hub for hub in hubs if hub.model_type == model_type]
    if not found:
        known = ", ".join(sorted({hub.model_type for hub in hubs}))
        raise DataError(f"{where} has the model_type {model_type!r}, which Cloze does not know; use one of {known}")
    fitting = [hub for hub in found if all(config.get(name, value) == value for name, value in hub.fixed.items())]
    return [*fitting, *found][0]
