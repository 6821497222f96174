"""SpanBERT's sizes (Joshi et al., 2020, section 4.2): BERT's with a span boundary head, on cased text."""

from __future__ import annotations

from model.families.config import ModelConfig
from model.families.spanbert.config import SpanBertConfig

PRESETS: dict[str, ModelConfig] = {
    "spanbert-tiny": SpanBertConfig.of_size(2, 128),
    "spanbert-base": SpanBertConfig.of_size(12, 768),  # of the authors' release
    "spanbert-large": SpanBertConfig.of_size(24, 1024),
}
