"""From what a user or a file says of a model to its config: a preset's name, values, or both.

The presets themselves, the papers' models, are in each family's folder. Parameter counts there are those of the paper's own
vocabulary (30,522 pieces for BERT, 50,265 for RoBERTa, 30,000 for ALBERT, 28,996 for SpanBERT), pretraining heads included where
the text says nothing else; `tests/model/families/test_presets.py` holds each against transformers'.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model.families.config import ModelConfig
from model.families.table import FAMILIES, config_class, part
from pipeline.core.config import parse_config
from pipeline.core.errors import UsageError, did_you_mean

DEFAULT_FAMILY = "bert"  # of values that name none


def presets() -> dict[str, ModelConfig]:
    """Every family's named sizes."""
    return {name: config for family in FAMILIES for name, config in part(family, "presets:PRESETS").items()}


def model_config(model: str | Mapping[str, Any] | ModelConfig, **overrides: Any) -> ModelConfig:
    """The config of a model that is named, or spelled out, or both.

    Args:
        model: a preset's name, a config, or a mapping of config values that may start from a preset by the key `preset`.
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
    """The config that a file of ours holds as `values`.

    Raises:
        pydantic.ValidationError: a key is unknown to the family, or a value out of range.
        UsageError: the family is unknown.
    """
    values = {"family": DEFAULT_FAMILY, **values}
    return config_class(values["family"]).model_validate(values)


def _preset(name: str) -> ModelConfig:
    known = presets()
    if name not in known:
        raise UsageError(f"unknown model {name!r}; {did_you_mean(name, known)}")
    return known[name]
