"""DistilBERT (Sanh et al., 2019): BERT without segments, initialized with layers of a teacher."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from cloze.core.config import UnionTag
from cloze.model.families.config import ModelConfig
from cloze.model.families.hub_format import HubFormat, fine_tuned, same
from cloze.model.families.key_map import Drop, KeyMap

Weight = Annotated[float, Field(ge=0.0)]


class DistilBertConfig(ModelConfig):
    """DistilBERT (Sanh et al., 2019).

    Loss weights are those of transformers' research_projects/distillation/README.md.
    """

    heads: ClassVar[Mapping[str, Any]] = {"masked_lm": {}}
    own_objectives: ClassVar[tuple[str, ...]] = ("mlm",)
    learns_from_teacher: ClassVar[bool] = True
    pooler_activation: ClassVar[str] = "relu"  # transformers' `pre_classifier`

    family: UnionTag[Literal["distilbert"]] = "distilbert"
    type_vocab_size: Literal[0] = 0

    temperature: Annotated[float, Field(gt=0.0)] = 2.0
    """Temperature of both distributions in the distillation loss (section 3)."""

    distillation_weight: Weight = 5.0
    """With a teacher: weight of the distillation loss."""

    mlm_weight: Weight = 2.0
    """With a teacher: weight of the masked-token loss."""

    cosine_weight: Weight = 1.0
    """With a teacher: weight of the cosine loss between hidden states."""

    def distillation_objectives(self, teacher: ModelConfig) -> tuple[str, ...]:
        """Add the cosine loss only if teacher and student have equal width."""
        return (
            ("mlm", "distillation", "cosine")
            if teacher.hidden_size == self.hidden_size
            else ("mlm", "distillation")
        )

    def teacher_temperature(self) -> float:
        return self.temperature

    def loss_weights(self) -> Mapping[str, float]:
        return {
            "mlm": self.mlm_weight,
            "distillation": self.distillation_weight,
            "cosine": self.cosine_weight,
        }


CONFIG = DistilBertConfig

# DistilBERT's size (Sanh et al., 2019, Table 3): half of BERT-base's layers.
PRESETS: dict[str, ModelConfig] = {
    "distilbert-tiny": DistilBertConfig.of_size(2, 128),
    # 66M parameters: 66.4M in the encoder, 67.0M with the LM head
    "distilbert-base": DistilBertConfig.of_size(6, 768),
}


_LAYER = "distilbert.transformer.layer.{n}"


class DistilBertFormat(HubFormat):
    family = "distilbert"
    model_type = "distilbert"
    keys = KeyMap(
        [
            ("encoder.embeddings.word.weight", "distilbert.embeddings.word_embeddings.weight"),
            (
                "encoder.embeddings.position.weight",
                "distilbert.embeddings.position_embeddings.weight",
            ),
            ("encoder.embeddings.norm.{p}", "distilbert.embeddings.LayerNorm.{p}"),
            ("encoder.layers.{n}.attention.query.{p}", f"{_LAYER}.attention.q_lin.{{p}}"),
            ("encoder.layers.{n}.attention.key.{p}", f"{_LAYER}.attention.k_lin.{{p}}"),
            ("encoder.layers.{n}.attention.value.{p}", f"{_LAYER}.attention.v_lin.{{p}}"),
            ("encoder.layers.{n}.attention.output.{p}", f"{_LAYER}.attention.out_lin.{{p}}"),
            ("encoder.layers.{n}.attention_norm.{p}", f"{_LAYER}.sa_layer_norm.{{p}}"),
            ("encoder.layers.{n}.feed_forward.up.{p}", f"{_LAYER}.ffn.lin1.{{p}}"),
            ("encoder.layers.{n}.feed_forward.down.{p}", f"{_LAYER}.ffn.lin2.{{p}}"),
            ("encoder.layers.{n}.feed_forward_norm.{p}", f"{_LAYER}.output_layer_norm.{{p}}"),
            ("masked_lm.dense.{p}", "vocab_transform.{p}"),
            ("masked_lm.norm.{p}", "vocab_layer_norm.{p}"),
            ("masked_lm.bias", "vocab_projector.bias"),
            ("pooler.dense.{p}", "pre_classifier.{p}"),
            ("classifier.{p}", "classifier.{p}"),
        ]
    )
    fields = {
        **same("vocab_size", "max_position_embeddings", "attention_dropout"),
        **same("initializer_range", "pad_token_id"),
        "hidden_size": "dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "hidden_act": "activation",
        "hidden_dropout": "dropout",
    }
    fixed = {"sinusoidal_pos_embds": False, "tie_word_embeddings": True}
    architectures = {frozenset({"masked_lm"}): "DistilBertForMaskedLM", **fine_tuned("DistilBert")}
    drops = (Drop("vocab_projector.weight", "distilbert.embeddings.word_embeddings.weight"),)
    defaults = {"dim": 768, "n_layers": 6, "n_heads": 12, "hidden_dim": 3072}


HUB = DistilBertFormat()
