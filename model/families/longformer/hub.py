"""Hugging Face names of Longformer: RoBERTa's, global projections, and one window per layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cloze.model.families.bert import hub as bert
from cloze.model.families.hub import KeyMap, Row
from cloze.model.families.longformer.model import convert
from cloze.model.families.roberta import hub as roberta

LAYER = "longformer.encoder.layer.{n}.attention.self"
GLOBAL_ROWS: list[Row] = [
    (f"encoder.layers.{{n}}.attention.global_{name}.{{p}}", f"{LAYER}.{name}_global.{{p}}")
    for name in ("query", "key", "value")
]
# Tokens with global attention by default in transformers (modeling_longformer.py).
_GLOBAL = {
    "span": "makes all of the question global",
    "choice": "makes all of the ending global",
    "token_classifier": "makes no token global",
    "embedding": "makes no token global",
}


def write(config: dict[str, Any]) -> dict[str, Any]:
    return roberta.count_padding(config)


def read(config: dict[str, Any]) -> dict[str, Any]:
    """Convert transformers' list of equal windows to one number."""
    found = roberta.leave_padding({"attention_window": 512, "layer_norm_eps": 1e-12, **config})
    windows = found["attention_window"]
    if isinstance(windows, list):
        found["attention_window"] = windows[0] if len(set(windows)) == 1 else tuple(windows)
    return found


HUB = replace(
    roberta.HUB,
    family="longformer",
    model_type="longformer",
    keys=KeyMap(bert.encoder_rows("longformer") + GLOBAL_ROWS + roberta.LM_ROWS),
    fields={**roberta.HUB.fields, "attention_window": "attention_window"},
    fixed={"tie_word_embeddings": True},
    architectures={
        frozenset({"masked_lm"}): "LongformerForMaskedLM",
        frozenset({"classifier"}): "LongformerForSequenceClassification",
    },
    refused={
        head: (
            f"transformers' class {why}, Cloze's model the first token alone; predict with Cloze, "
            f"or export a roberta model"
        )
        for head, why in _GLOBAL.items()
    },
    copies={
        "lm_head.decoder.weight": "longformer.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    ignored=frozenset({"longformer.embeddings.position_ids"}),
    unused=("longformer.pooler.",),
    converts={"roberta": convert},
    write=write,
    read=read,
)
