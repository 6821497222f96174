"""Hugging Face names of the left-to-right model: BERT as a decoder, without a pooler."""

from __future__ import annotations

from dataclasses import replace

from cloze.model.families.bert import hub as bert
from cloze.model.families.hub import KeyMap

_HEAD = [
    (ours.replace("masked_lm.", "lm."), theirs)
    for ours, theirs in bert.HEAD_ROWS
    if ours.startswith("masked_lm.")
]

HUB = replace(
    bert.HUB,
    family="ltr",
    keys=KeyMap(bert.encoder_rows("bert") + _HEAD),
    fixed={**bert.HUB.fixed, "is_decoder": True},
    architectures={frozenset({"lm"}): "BertLMHeadModel"},
    outputs={"logits": "lm_logits"},
)
