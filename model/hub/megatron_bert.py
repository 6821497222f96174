"""Megatron-BERT's table: BERT's, but for the norms, which transformers calls `ln` there."""

from __future__ import annotations

from dataclasses import replace

from model.hub import bert
from model.hub.mapping import KeyMap

_NORMS = (
    ("encoder.layers.{n}.attention_input_norm.{p}", f"{bert.LAYER}.attention.ln.{{p}}"),
    ("encoder.layers.{n}.feed_forward_input_norm.{p}", f"{bert.LAYER}.ln.{{p}}"),
    ("encoder.norm.{p}", "bert.encoder.ln.{p}"),
)

HUB = replace(
    bert.HUB,
    family="megatron-bert",
    model_type="megatron-bert",
    keys=KeyMap([row for row in bert.KEYS.rows if "norm" not in row[0] or row[0].startswith("masked_lm")] + list(_NORMS)),
    architectures={
        frozenset({"masked_lm", "pair"}): "MegatronBertForPreTraining",
        frozenset({"classifier"}): "MegatronBertForSequenceClassification",
    },
)
