"""Hugging Face names of RoBERTa: BERT's encoder, RoBERTa's LM head and classifier."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cloze.model.families.bert import hub as bert
from cloze.model.families.hub import TASK_ROWS, KeyMap, Row, fine_tuned

LM_ROWS: list[Row] = [
    ("masked_lm.dense.{p}", "lm_head.dense.{p}"),
    ("masked_lm.norm.{p}", "lm_head.layer_norm.{p}"),
    ("masked_lm.bias", "lm_head.bias"),
    ("pooler.dense.{p}", "classifier.dense.{p}"),
    ("classifier.{p}", "classifier.out_proj.{p}"),
]
DEFAULTS = {
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "pad_token_id": 1,
}  # defaults of transformers' `RobertaConfig`


def count_padding(config: dict[str, Any]) -> dict[str, Any]:
    """Add the rows up to the padding id, which transformers counts as positions."""
    return {
        **config,
        "max_position_embeddings": config["max_position_embeddings"] + config["pad_token_id"] + 1,
    }


def leave_padding(config: dict[str, Any]) -> dict[str, Any]:
    whole = {**DEFAULTS, **config}
    return {
        **whole,
        "max_position_embeddings": whole["max_position_embeddings"] - whole["pad_token_id"] - 1,
    }


HUB = replace(
    bert.HUB,
    family="roberta",
    model_type="roberta",
    keys=KeyMap(bert.encoder_rows("roberta") + LM_ROWS),
    fixed={"is_decoder": False, "tie_word_embeddings": True},
    architectures={
        frozenset({"masked_lm"}): "RobertaForMaskedLM",
        **fine_tuned("Roberta"),
    },
    # the pooler is the classifier's dense layer under another name
    task_rows={
        **TASK_ROWS,
        "choice": (*TASK_ROWS["choice"], ("pooler.dense.{p}", "roberta.pooler.dense.{p}")),
    },
    copies={
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    ignored=frozenset({"roberta.embeddings.position_ids"}),
    unused=("roberta.pooler.",),
    write=count_padding,
    read=leave_padding,
)
