"""The papers' models as functions, each citing its table. Training recipes live with the trainer.

    bert-tiny, bert-mini, bert-small, bert-medium   Turc et al., "Well-Read Students Learn Better", 2019, Table 1
    bert-base, bert-large                           Devlin et al., "BERT", 2019, section 3

Parameter counts are for the 30,522 pieces of the published uncased vocabulary, pretraining heads included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from model.config import ModelConfig
from model.families import FAMILIES, config_class
from pipeline.errors import UsageError, did_you_mean
from pipeline.stage import parse_config


def _bert(layers: int, hidden_size: int) -> ModelConfig:
    """The rule that all BERT sizes share: heads of width 64, a feed-forward block four times as wide (BERT, footnote 3)."""
    return ModelConfig(
        num_hidden_layers=layers,
        hidden_size=hidden_size,
        num_attention_heads=hidden_size // 64,
        intermediate_size=4 * hidden_size,
    )


def bert_tiny() -> ModelConfig:
    """2 layers of 128, 4.4M parameters (Turc et al., Table 1)."""
    return _bert(2, 128)


def bert_mini() -> ModelConfig:
    """4 layers of 256, 11.3M parameters (Turc et al., Table 1)."""
    return _bert(4, 256)


def bert_small() -> ModelConfig:
    """4 layers of 512, 29.1M parameters (Turc et al., Table 1)."""
    return _bert(4, 512)


def bert_medium() -> ModelConfig:
    """8 layers of 512, 41.7M parameters (Turc et al., Table 1)."""
    return _bert(8, 512)


def bert_base() -> ModelConfig:
    """12 layers of 768, 110M parameters (Devlin et al., section 3)."""
    return _bert(12, 768)


def bert_large() -> ModelConfig:
    """24 layers of 1024, 340M parameters in the paper's rounding, 336M counted (Devlin et al., section 3)."""
    return _bert(24, 1024)


MODELS: dict[str, Callable[[], ModelConfig]] = {
    "bert-tiny": bert_tiny,
    "bert-mini": bert_mini,
    "bert-small": bert_small,
    "bert-medium": bert_medium,
    "bert-base": bert_base,
    "bert-large": bert_large,
}


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
    values |= overrides
    family = values.get("family", "bert")
    return parse_config(config_class(family if family in FAMILIES else "bert"), values, "model")


def _preset(name: str) -> ModelConfig:
    if name not in MODELS:
        raise UsageError(f"unknown model {name!r}; {did_you_mean(name, MODELS)}")
    return MODELS[name]()
