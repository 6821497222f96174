"""The table of model families. No torch: configs are checked without it.

A family is one row here and one module with these names. The module imports torch only inside of
functions.

CONFIG: its config class.
PRESETS: its named sizes, of which NAME-tiny has 2 layers of width 128.
build_model(config): builds the pretraining model; `cloze.model.families.models.new_model`
    initializes it. Optional; the default is BERT's, by the config's `pre_norm` and activations.
build_pooler(config): builds the fine-tuning pooler. Optional; the default is BERT's.
HUB: its Hugging Face format, a `HubFormat`. Optional; without it the family cannot be exported.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from cloze.core.config import parse_config
from cloze.core.errors import UsageError, did_you_mean
from cloze.core.plugins import Table
from cloze.model.families.config import ModelConfig

_FAMILIES = {
    "bert": "cloze.model.families.bert",
    "megatron-bert": "cloze.model.families.megatron_bert",
    "roberta": "cloze.model.families.roberta",
    "albert": "cloze.model.families.albert",
    "electra": "cloze.model.families.electra",
    "distilbert": "cloze.model.families.distilbert",
    "spanbert": "cloze.model.families.spanbert",
    "modern": "cloze.model.families.modern",
    "deberta": "cloze.model.families.deberta",
}
FAMILIES: Table[ModuleType] = Table("families", "model family", _FAMILIES, ("family",))


def config_class(family: str) -> type[ModelConfig]:
    """Return the config class of a family.

    Raises:
        UsageError: the family is unknown.
    """
    config: type[ModelConfig] = FAMILIES.find(family).CONFIG
    return config


# Parsing of model configs: a preset's name, values, or both.

DEFAULT_FAMILY = "bert"  # for values without a family


def presets() -> dict[str, ModelConfig]:
    """Return the named sizes of all families."""
    return {
        name: config
        for family in FAMILIES.loaded().values()
        for name, config in family.PRESETS.items()
    }


def model_config(
    model: str | Mapping[str, Any] | ModelConfig, where: str = "model", **overrides: Any
) -> ModelConfig:
    """Return the config of a model given by name, by values, or by both.

    Args:
        model: preset name, config, or mapping of values with an optional key `preset`.
        where: section of the values, for messages.
        overrides: values that replace the preset's.

    Raises:
        UsageError: an unknown preset or key, with the nearest known one, a value out of range, or
            neither name nor values.
    """
    if isinstance(model, str):
        values = _preset(model).model_dump()
    elif isinstance(model, ModelConfig):
        values = model.model_dump()
    elif not isinstance(model, Mapping):
        raise UsageError(f"model ({model!r}) is no name of a preset and no mapping of values")
    else:
        values = dict(model)
        name = values.pop("preset", None)
        if name is not None:
            values = {**_preset(str(name)).model_dump(), **values}
    values = {"family": DEFAULT_FAMILY, **values, **overrides}
    return parse_config(config_class(values["family"]), values, where)


def parse_model(values: Mapping[str, Any]) -> ModelConfig:
    """Return the config stored in a file as `values`.

    Raises:
        pydantic.ValidationError: a key is unknown to the family, or a value is out of range.
        UsageError: the family is unknown.
    """
    values = {"family": DEFAULT_FAMILY, **values}
    return config_class(values["family"]).model_validate(values)


def _preset(name: str) -> ModelConfig:
    for family in _FAMILIES:  # one after the other, so that few of them are imported
        if name in (own := FAMILIES.find(family).PRESETS):
            return own[name]  # type: ignore[no-any-return]
    available = presets()
    if name not in available:
        raise UsageError(f"unknown model {name!r}; {did_you_mean(name, available)}")
    return available[name]
