"""The left-to-right model's table: transformers' BERT as a decoder, without a pooler."""

from __future__ import annotations

from dataclasses import replace

from model.families.bert import hub as bert
from model.families.key_map import KeyMap

_HEAD = [(ours.replace("masked_lm.", "lm."), theirs) for ours, theirs in bert.HEAD_ROWS if ours.startswith("masked_lm.")]

HUB = replace(
    bert.HUB,
    family="ltr",
    keys=KeyMap(bert.encoder_rows("bert") + _HEAD),
    fixed={**bert.HUB.fixed, "is_decoder": True},
    architectures={frozenset({"lm"}): "BertLMHeadModel"},
    outputs={"logits": "lm_logits"},
)
