"""The config of SpanBERT: BERT's, and the span boundary head. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from model.families.config import ModelConfig, Size
from pipeline.core.config import Tag


class SpanBertConfig(ModelConfig):
    """SpanBERT (Joshi et al., 2020)."""

    heads: ClassVar[Mapping[str, Any]] = {"masked_lm": {}, "span_boundary": {}}

    family: Tag[Literal["spanbert"]] = "spanbert"

    span_positions: Size = 20
    """Places in a masked span that have an embedding; spans are 10 words at most (section 3.1)."""

    span_position_size: Size = 200
    """The width of these embeddings (facebookresearch/SpanBERT, span_bert.py)."""

    def own_objectives(self, pair_task: str | None) -> tuple[str, ...]:
        return ("mlm", "sbo")


CONFIG = SpanBertConfig
