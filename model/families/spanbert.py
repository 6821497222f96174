"""SpanBERT (Joshi et al., 2020): BERT that also predicts tokens from span boundaries.

Equation 1 of the paper is the sum of the masked-token loss and the span boundary loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from cloze.core.config import UnionTag
from cloze.model.families import bert
from cloze.model.families.config import ModelConfig, Size
from cloze.model.families.hub_format import fine_tuned

if TYPE_CHECKING:
    from cloze.model.families.pretraining import SpanModel


class SpanBertConfig(ModelConfig):
    """SpanBERT (Joshi et al., 2020)."""

    heads: ClassVar[Mapping[str, Any]] = {"masked_lm": {}, "span_boundary": {}}
    own_objectives: ClassVar[tuple[str, ...]] = ("mlm", "sbo")

    family: UnionTag[Literal["spanbert"]] = "spanbert"

    span_positions: Size = 20
    """Positions in a masked span that have an embedding; spans have at most 10 words (section
    3.1)."""

    span_position_size: Size = 200
    """Width of the span-position embeddings (facebookresearch/SpanBERT, span_bert.py)."""


CONFIG = SpanBertConfig

# SpanBERT's sizes (Joshi et al., 2020, section 4.2): BERT's, on cased text.
PRESETS: dict[str, ModelConfig] = {
    "spanbert-tiny": SpanBertConfig.of_size(2, 128),
    "spanbert-base": SpanBertConfig.of_size(12, 768),  # the authors' release
    "spanbert-large": SpanBertConfig.of_size(24, 1024),
}


def build_model(config: SpanBertConfig) -> SpanModel:
    from cloze.model.families.models import encoder, masked_lm
    from cloze.model.families.pretraining import SpanModel
    from cloze.model.layers.heads import SpanBoundaryHead

    boundary = SpanBoundaryHead(
        config.hidden_size,
        config.vocab_size,
        positions=config.span_positions,
        position_size=config.span_position_size,
        activation=config.hidden_act,
        eps=config.layer_norm_eps,
    )
    return SpanModel(encoder(config), masked_lm(config), boundary)


class SpanBertFormat(bert.BertFormat):
    family = "spanbert"
    architectures = {frozenset({"masked_lm"}): "BertForMaskedLM", **fine_tuned("Bert")}
    unexported = ("span_boundary",)


HUB = SpanBertFormat()
