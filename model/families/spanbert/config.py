"""The config of SpanBERT: BERT's with a span boundary head. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from cloze.core.config import UnionTag
from cloze.model.families.config import ModelConfig, Size


class SpanBertConfig(ModelConfig):
    """SpanBERT (Joshi et al., 2020)."""

    heads: ClassVar[Mapping[str, Any]] = {"masked_lm": {}, "span_boundary": {}}

    family: UnionTag[Literal["spanbert"]] = "spanbert"

    span_positions: Size = 20
    """Positions in a masked span that have an embedding; spans have at most 10 words (section
    3.1)."""

    span_position_size: Size = 200
    """Width of the span-position embeddings (facebookresearch/SpanBERT, span_bert.py)."""

    def default_objectives(self, pair_task: str | None) -> tuple[str, ...]:
        return ("mlm", "sbo")


CONFIG = SpanBertConfig

# SpanBERT's sizes (Joshi et al., 2020, section 4.2): BERT's, on cased text.
PRESETS: dict[str, ModelConfig] = {
    "spanbert-tiny": SpanBertConfig.of_size(2, 128),
    "spanbert-base": SpanBertConfig.of_size(12, 768),  # the authors' release
    "spanbert-large": SpanBertConfig.of_size(24, 1024),
}
