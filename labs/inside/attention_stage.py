"""The stage of the inference command attention, without torch."""

from __future__ import annotations

from cloze.labs.inside.attention_config import AttentionConfig
from cloze.model.use.verb import Predictor, verb_stage

STAGE = verb_stage(
    "attention", Predictor(AttentionConfig, "cloze.labs.inside.attention:ShowAttention")
)
