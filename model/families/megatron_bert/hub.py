"""Megatron-BERT's table: BERT's, but for the norms, which transformers calls `ln` there."""

from __future__ import annotations

from dataclasses import replace

from model.families.bert import hub as bert
from model.families.hub import fine_tuned
from model.families.key_map import KeyMap

_NORMS = [
    ("encoder.layers.{n}.attention_input_norm.{p}", "bert.encoder.layer.{n}.attention.ln.{p}"),
    ("encoder.layers.{n}.feed_forward_input_norm.{p}", "bert.encoder.layer.{n}.ln.{p}"),
    ("encoder.norm.{p}", "bert.encoder.ln.{p}"),
]

HUB = replace(
    bert.HUB,
    family="megatron-bert",
    model_type="megatron-bert",
    keys=KeyMap([row for row in bert.encoder_rows("bert") if "norm" not in row[0]] + bert.HEAD_ROWS + _NORMS),
    architectures={
        frozenset({"masked_lm", "pair"}): "MegatronBertForPreTraining",
        frozenset({"masked_lm"}): "MegatronBertForMaskedLM",
        **fine_tuned("MegatronBert"),
    },
)
