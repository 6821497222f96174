"""Hugging Face names of SpanBERT: BERT's; the span boundary head is not exported."""

from __future__ import annotations

from dataclasses import replace

from cloze.model.families.bert import hub as bert
from cloze.model.families.hub import fine_tuned

HUB = replace(
    bert.HUB,
    family="spanbert",
    architectures={
        frozenset({"masked_lm"}): "BertForMaskedLM",
        **fine_tuned("Bert"),
    },
    unexported=("span_boundary",),
)
