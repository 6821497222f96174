"""SpanBERT's table: transformers knows it as BERT, and has no span boundary head."""

from __future__ import annotations

from dataclasses import replace

from model.families.bert import hub as bert

HUB = replace(
    bert.HUB,
    family="spanbert",
    architectures={
        frozenset({"masked_lm"}): "BertForMaskedLM",
        frozenset({"classifier"}): "BertForSequenceClassification",
    },
    unexported=("span_boundary",),
)
