"""BERT (Devlin et al., 2019): post-norm encoder, pooler, masked-token and sentence-pair heads."""

from __future__ import annotations

from typing import Literal

from cloze.core.config import UnionTag
from cloze.model.families.config import ModelConfig
from cloze.model.families.hub_format import TIED, HubFormat, Row, fine_tuned, same
from cloze.model.families.key_map import KeyMap, decoder_copies


class BertConfig(ModelConfig):
    """BERT (Devlin et al., 2019); its values are the defaults of `ModelConfig`."""

    family: UnionTag[Literal["bert"]] = "bert"


CONFIG = BertConfig

# BERT's sizes (Devlin et al., "BERT", 2019, section 3, Table 6), and the small ones of Turc et al.,
# "Well-Read Students Learn Better", 2019, Table 1.
PRESETS: dict[str, ModelConfig] = {
    "bert-tiny": BertConfig.of_size(2, 128),  # 4.4M parameters (Turc et al.)
    "bert-mini": BertConfig.of_size(4, 256),  # 11.3M (Turc et al.)
    "bert-small": BertConfig.of_size(4, 512),  # 29.1M (Turc et al.)
    "bert-medium": BertConfig.of_size(8, 512),  # 41.7M (Turc et al.)
    "bert-base": BertConfig.of_size(12, 768),  # 110M: 109.5M in encoder and pooler
    # 340M in the paper, 335.1M counted in encoder and pooler
    "bert-large": BertConfig.of_size(24, 1024),
    # Ablation of Table 6 with the paper's held-out perplexity; row 4 is bert-base, row 6
    # bert-large.
    "bert-l3": BertConfig.of_size(3, 768),  # row 1: 5.84
    # row 2: 5.24; attention heads of width 256
    "bert-l6-a3": BertConfig.of_size(6, 768, num_attention_heads=3),
    "bert-l6": BertConfig.of_size(6, 768),  # row 3: 4.68
    "bert-l12-wide": BertConfig.of_size(12, 1024),  # row 5: 3.54
}


def encoder_rows(prefix: str) -> list[Row]:
    """Return the names of embeddings and layers; `prefix` is Hugging Face's name of the encoder."""
    embeddings, layer = f"{prefix}.embeddings", f"{prefix}.encoder.layer.{{n}}"
    return [
        ("encoder.embeddings.word.weight", f"{embeddings}.word_embeddings.weight"),
        ("encoder.embeddings.position.weight", f"{embeddings}.position_embeddings.weight"),
        ("encoder.embeddings.segment.weight", f"{embeddings}.token_type_embeddings.weight"),
        ("encoder.embeddings.norm.{p}", f"{embeddings}.LayerNorm.{{p}}"),
        ("encoder.layers.{n}.attention.query.{p}", f"{layer}.attention.self.query.{{p}}"),
        ("encoder.layers.{n}.attention.key.{p}", f"{layer}.attention.self.key.{{p}}"),
        ("encoder.layers.{n}.attention.value.{p}", f"{layer}.attention.self.value.{{p}}"),
        ("encoder.layers.{n}.attention.output.{p}", f"{layer}.attention.output.dense.{{p}}"),
        ("encoder.layers.{n}.attention_norm.{p}", f"{layer}.attention.output.LayerNorm.{{p}}"),
        ("encoder.layers.{n}.feed_forward.up.{p}", f"{layer}.intermediate.dense.{{p}}"),
        ("encoder.layers.{n}.feed_forward.down.{p}", f"{layer}.output.dense.{{p}}"),
        ("encoder.layers.{n}.feed_forward_norm.{p}", f"{layer}.output.LayerNorm.{{p}}"),
    ]


HEAD_ROWS: list[Row] = [
    ("pooler.dense.{p}", "bert.pooler.dense.{p}"),
    ("masked_lm.dense.{p}", "cls.predictions.transform.dense.{p}"),
    ("masked_lm.norm.{p}", "cls.predictions.transform.LayerNorm.{p}"),
    ("masked_lm.bias", "cls.predictions.bias"),
    ("pair.{p}", "cls.seq_relationship.{p}"),
    ("classifier.{p}", "classifier.{p}"),
]


class BertFormat(HubFormat):
    family = "bert"
    model_type = "bert"
    keys = KeyMap(encoder_rows("bert") + HEAD_ROWS)
    fields = {
        **same("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
        **same("intermediate_size", "max_position_embeddings", "type_vocab_size", "hidden_act"),
        **same("layer_norm_eps", "initializer_range", "pad_token_id"),
        "hidden_dropout": "hidden_dropout_prob",
        "attention_dropout": "attention_probs_dropout_prob",
    }
    fixed = {"position_embedding_type": "absolute", "is_decoder": False, TIED: True}
    architectures = {
        frozenset({"masked_lm", "pair"}): "BertForPreTraining",
        frozenset({"masked_lm"}): "BertForMaskedLM",
        frozenset({"pair"}): "BertForNextSentencePrediction",
        **fine_tuned("Bert"),
    }
    drops = decoder_copies("bert", "cls.predictions")
    # files converted from TensorFlow
    legacy = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


HUB = BertFormat()
