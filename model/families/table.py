"""The table of model families. No torch: configs are checked without it.

A family is one row here and a folder with these names:

config.py: CONFIG, its config class; PRESETS, its named sizes, of which NAME-tiny has 2 layers of
    width 128.
model.py: new_model(config), the pretraining model; new_pooler(config), the fine-tuning pooler;
    first_weights(config, teacher, state), if the family learns from a teacher.
hub.py: HUB, the Hugging Face format; without this file the family cannot be exported.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cloze.core.config import parse_config
from cloze.core.errors import UsageError, did_you_mean
from cloze.core.options import import_object
from cloze.model.families.config import ModelConfig

if TYPE_CHECKING:
    from cloze.model.families.config import ModelConfig


FAMILIES: dict[str, str] = {
    "bert": "cloze.model.families.bert",
    "megatron-bert": "cloze.model.families.megatron_bert",
    "roberta": "cloze.model.families.roberta",
    "albert": "cloze.model.families.albert",
    "electra": "cloze.model.families.electra",
    "distilbert": "cloze.model.families.distilbert",
    "ltr": "cloze.model.families.ltr",
    "gpt2": "cloze.model.families.gpt2",
    "spanbert": "cloze.model.families.spanbert",
    "modern": "cloze.model.families.modern",
    "longformer": "cloze.model.families.longformer",
    "deberta": "cloze.model.families.deberta",
}


def family_attribute(family: str, reference: str) -> Any:
    """Import `module:name` from the family's folder: `family_attribute("bert", "config:PRESETS")`.

    Raises:
        UsageError: the family is unknown.
    """
    return import_object(f"{_package(family)}.{reference}")


def has_family_module(family: str, module: str) -> bool:
    """Return True if the family's folder has this module.

    Raises:
        UsageError: the family is unknown.
    """
    return importlib.util.find_spec(f"{_package(family)}.{module}") is not None


def config_class(family: str) -> type[ModelConfig]:
    """Return the config class of a family.

    Raises:
        UsageError: the family is unknown.
    """
    found: type[ModelConfig] = family_attribute(family, "config:CONFIG")
    return found


def _package(family: str) -> str:
    if family not in FAMILIES:
        raise UsageError(
            f"model family ({family!r}) is unknown; {did_you_mean(str(family), FAMILIES)}"
        )
    return FAMILIES[family]


# Parsing of model configs: a preset's name, values, or both.

DEFAULT_FAMILY = "bert"  # for values without a family


def presets() -> dict[str, ModelConfig]:
    """Return the named sizes of all families."""
    return {
        name: config
        for family in FAMILIES
        for name, config in family_attribute(family, "config:PRESETS").items()
    }


def model_config(model: str | Mapping[str, Any] | ModelConfig, **overrides: Any) -> ModelConfig:
    """Return the config of a model given by name, by values, or by both.

    Args:
        model: preset name, config, or mapping of values with an optional key `preset`.
        overrides: values that replace the preset's.

    Raises:
        UsageError: an unknown preset or key, with the nearest known one, or a value out of range.
    """
    if isinstance(model, str):
        values = _preset(model).model_dump()
    elif isinstance(model, ModelConfig):
        values = model.model_dump()
    else:
        values = dict(model)
        name = values.pop("preset", None)
        if name is not None:
            values = {**_preset(str(name)).model_dump(), **values}
    values = {"family": DEFAULT_FAMILY, **values, **overrides}
    return parse_config(config_class(values["family"]), values, "model")


def parse_model(values: Mapping[str, Any]) -> ModelConfig:
    """Return the config stored in a file as `values`.

    Raises:
        pydantic.ValidationError: a key is unknown to the family, or a value is out of range.
        UsageError: the family is unknown.
    """
    values = {"family": DEFAULT_FAMILY, **values}
    return config_class(values["family"]).model_validate(values)


def _preset(name: str) -> ModelConfig:
    known = presets()
    if name not in known:
        raise UsageError(f"unknown model {name!r}; {did_you_mean(name, known)}")
    return known[name]
