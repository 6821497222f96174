"""Hugging Face names of ALBERT: layers are in groups, the heads are separate modules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cloze.core.errors import DataError
from cloze.model.families.bert import hub as bert
from cloze.model.families.hub import KeyMap, fine_tuned

_OURS, _THEIRS = (
    "encoder.groups.{n}.{m}",
    "albert.encoder.albert_layer_groups.{n}.albert_layers.{m}",
)
_KEYS = KeyMap(
    [
        *(
            (ours, theirs.replace("bert.", "albert.", 1))
            for ours, theirs in bert.encoder_rows("bert")
            if "embeddings" in ours
        ),
        ("encoder.embeddings.projection.{p}", "albert.encoder.embedding_hidden_mapping_in.{p}"),
        (f"{_OURS}.attention.query.{{p}}", f"{_THEIRS}.attention.query.{{p}}"),
        (f"{_OURS}.attention.key.{{p}}", f"{_THEIRS}.attention.key.{{p}}"),
        (f"{_OURS}.attention.value.{{p}}", f"{_THEIRS}.attention.value.{{p}}"),
        (f"{_OURS}.attention.output.{{p}}", f"{_THEIRS}.attention.dense.{{p}}"),
        (f"{_OURS}.attention_norm.{{p}}", f"{_THEIRS}.attention.LayerNorm.{{p}}"),
        (f"{_OURS}.feed_forward.up.{{p}}", f"{_THEIRS}.ffn.{{p}}"),
        (f"{_OURS}.feed_forward.down.{{p}}", f"{_THEIRS}.ffn_output.{{p}}"),
        (f"{_OURS}.feed_forward_norm.{{p}}", f"{_THEIRS}.full_layer_layer_norm.{{p}}"),
        ("pooler.dense.{p}", "albert.pooler.{p}"),
        ("masked_lm.dense.{p}", "predictions.dense.{p}"),
        ("masked_lm.norm.{p}", "predictions.LayerNorm.{p}"),
        ("masked_lm.bias", "predictions.bias"),
        ("pair.{p}", "sop_classifier.classifier.{p}"),
        ("classifier.{p}", "classifier.{p}"),
    ]
)
# Defaults of transformers' `AlbertConfig` that differ from BERT's: those of ALBERT-xxlarge.
_DEFAULTS = {
    "hidden_size": 4096,
    "num_attention_heads": 64,
    "intermediate_size": 16384,
    "hidden_act": "gelu_new",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


def _write(config: dict[str, Any]) -> dict[str, Any]:
    shared = config.pop("shared")
    if shared != "all":
        raise DataError(
            f"layers that share {shared} (found in the model's shared) have no Hugging Face form; "
            f"it has shared: all"
        )
    return config


def _read(config: dict[str, Any]) -> dict[str, Any]:
    return {"shared": "all", **_DEFAULTS, **config}


HUB = replace(
    bert.HUB,
    family="albert",
    model_type="albert",
    keys=_KEYS,
    fields={
        **bert.HUB.fields,
        "embedding_size": "embedding_size",
        "num_hidden_groups": "num_hidden_groups",
        "inner_group_num": "inner_group_num",
        "shared": "shared",
    },
    architectures={
        frozenset({"masked_lm", "pair"}): "AlbertForPreTraining",
        frozenset({"masked_lm"}): "AlbertForMaskedLM",
        **fine_tuned("Albert"),
    },
    fixed={"tie_word_embeddings": True},
    copies={
        "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    },
    ignored=frozenset({"albert.embeddings.position_ids"}),
    write=_write,
    read=_read,
)
