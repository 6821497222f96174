"""Hugging Face names of Megatron-BERT: BERT's, except for the norms."""

from __future__ import annotations

from dataclasses import replace

from cloze.model.families.bert import hub as bert
from cloze.model.families.hub import KeyMap, fine_tuned

_NORMS = [
    ("encoder.layers.{n}.attention_input_norm.{p}", "bert.encoder.layer.{n}.attention.ln.{p}"),
    ("encoder.layers.{n}.feed_forward_input_norm.{p}", "bert.encoder.layer.{n}.ln.{p}"),
    ("encoder.norm.{p}", "bert.encoder.ln.{p}"),
]

HUB = replace(
    bert.HUB,
    family="megatron-bert",
    model_type="megatron-bert",
    keys=KeyMap(
        [row for row in bert.encoder_rows("bert") if "norm" not in row[0]] + bert.HEAD_ROWS + _NORMS
    ),
    architectures={
        frozenset({"masked_lm", "pair"}): "MegatronBertForPreTraining",
        frozenset({"masked_lm"}): "MegatronBertForMaskedLM",
        **fine_tuned("MegatronBert"),
    },
)
