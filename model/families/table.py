"""The table of model families. A family is a folder and one row here; what is in the folder goes by these names:

    config.py    CONFIG, the class of its configs: its `family`, and what it has to say beside `ModelConfig`, or says otherwise
    model.py     new_model(config), its pretraining model; new_pooler(config), what fine-tuning puts between encoder and
                 classifier; of a family that learns from a teacher, first_weights(config, teacher, state) too
    presets.py   PRESETS, its named sizes; one of them is NAME-tiny, of 2 layers and a width of 128
    hub.py       HUB, its Hugging Face names; a family without this file has no Hugging Face form

No torch here: configs are checked without it.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from pipeline.core.errors import UsageError, did_you_mean
from pipeline.core.registry import load

if TYPE_CHECKING:
    from model.families.config import ModelConfig

FAMILIES: dict[str, str] = {
    "bert": "model.families.bert",
    "megatron-bert": "model.families.megatron_bert",
    "roberta": "model.families.roberta",
    "albert": "model.families.albert",
    "electra": "model.families.electra",
    "distilbert": "model.families.distilbert",
    "ltr": "model.families.ltr",
    "gpt2": "model.families.gpt2",
    "spanbert": "model.families.spanbert",
    "modern": "model.families.modern",
    "longformer": "model.families.longformer",
    "deberta": "model.families.deberta",
}


def part(family: str, reference: str) -> Any:
    """What the family's folder has under `module:name`, as in `part("bert", "presets:PRESETS")`.

    Raises:
        UsageError: the family is unknown.
    """
    return load(f"{_package(family)}.{reference}")


def has_part(family: str, module: str) -> bool:
    """Whether the family's folder has a file of that name.

    Raises:
        UsageError: the family is unknown.
    """
    return importlib.util.find_spec(f"{_package(family)}.{module}") is not None


def config_class(family: str) -> type[ModelConfig]:
    """The class of the family's configs.

    Raises:
        UsageError: the family is unknown.
    """
    found: type[ModelConfig] = part(family, "config:CONFIG")
    return found


def _package(family: str) -> str:
    if family not in FAMILIES:
        raise UsageError(f"model family ({family!r}) is unknown; {did_you_mean(str(family), FAMILIES)}")
    return FAMILIES[family]
