"""SpanBERT's table: transformers knows it as BERT, and has no span boundary head."""

from __future__ import annotations

from dataclasses import replace

from model.families.bert import hub as bert
from model.families.hub import fine_tuned

HUB = replace(
    bert.HUB,
    family="spanbert",
    architectures={
        frozenset({"masked_lm"}): "BertForMaskedLM",
        **fine_tuned("Bert"),
    },
    unexported=("span_boundary",),
)
