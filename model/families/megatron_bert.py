"""Megatron-LM's BERT (Shoeybi et al., 2019, section 5.3, Figure 7): BERT with pre-norm blocks.

The residual path is not normalized, so gradients reach all layers equally from the first step.
Large models that diverge with post-norm train, and small ones tolerate a higher learning rate.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from cloze.core.config import UnionTag
from cloze.model.families import bert
from cloze.model.families.config import ModelConfig
from cloze.model.families.hub_format import fine_tuned
from cloze.model.families.key_map import KeyMap


class MegatronBertConfig(ModelConfig):
    """Megatron-LM's BERT (Shoeybi et al., 2019)."""

    pre_norm: ClassVar[bool] = True

    family: UnionTag[Literal["megatron-bert"]] = "megatron-bert"


CONFIG = MegatronBertConfig

# Sizes of Megatron-LM's BERT (Shoeybi et al., 2019, section 5.3, Table 4).
PRESETS: dict[str, ModelConfig] = {
    "megatron-bert-tiny": MegatronBertConfig.of_size(2, 128),
    "megatron-bert-336m": MegatronBertConfig.of_size(24, 1024),  # as large as BERT-large
    "megatron-bert-1.3b": MegatronBertConfig.of_size(24, 2048),
    "megatron-bert-3.9b": MegatronBertConfig.of_size(48, 2560),
}


_NORMS = [
    ("encoder.layers.{n}.attention_input_norm.{p}", "bert.encoder.layer.{n}.attention.ln.{p}"),
    ("encoder.layers.{n}.feed_forward_input_norm.{p}", "bert.encoder.layer.{n}.ln.{p}"),
    ("encoder.norm.{p}", "bert.encoder.ln.{p}"),
]


class MegatronBertFormat(bert.BertFormat):
    family = "megatron-bert"
    model_type = "megatron-bert"
    keys = KeyMap(
        [row for row in bert.encoder_rows("bert") if "norm" not in row[0]] + bert.HEAD_ROWS + _NORMS
    )
    architectures = {
        frozenset({"masked_lm", "pair"}): "MegatronBertForPreTraining",
        frozenset({"masked_lm"}): "MegatronBertForMaskedLM",
        frozenset({"pair"}): "MegatronBertForNextSentencePrediction",
        **fine_tuned("MegatronBert"),
    }
    # transformers' defaults are those of the model of 336M parameters
    defaults = {
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
    }


HUB = MegatronBertFormat()
