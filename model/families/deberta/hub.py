"""Hugging Face names of DeBERTa, versions 2 and 3 (`DebertaV2…`).

transformers has no enhanced mask decoder and no discriminator head. A model with either is exported
as an encoder (`DebertaV2Model`); a plain masked language model is exported whole, with the head of
the authors' files (`lm_predictions`).
"""

from __future__ import annotations

from typing import Any, cast

from cloze.core.errors import DataError
from cloze.model.families.bert import hub as bert
from cloze.model.families.config import ModelConfig
from cloze.model.families.deberta.config import DebertaConfig
from cloze.model.families.hub import OUTPUTS, HubFormat, KeyMap, Row, fine_tuned

_LAYER = "deberta.encoder.layer.{n}.attention.self"
_ATTENTION = {
    "query": "query_proj",
    "key": "key_proj",
    "value": "value_proj",
    "position_key": "pos_key_proj",
    "position_query": "pos_query_proj",
}


def _encoder_rows() -> list[Row]:
    own = [
        (f"encoder.layers.{{n}}.attention.{ours}.{{p}}", f"{_LAYER}.{theirs}.{{p}}")
        for ours, theirs in _ATTENTION.items()
    ]
    names = {ours for ours, _ in own}
    return [
        *own,
        *(row for row in bert.encoder_rows("deberta") if row[0] not in names),
        ("encoder.embeddings.relative.table.weight", "deberta.encoder.rel_embeddings.weight"),
        ("encoder.embeddings.relative.norm.{p}", "deberta.encoder.LayerNorm.{p}"),
        ("encoder.layers.0.convolved.convolution.{p}", "deberta.encoder.conv.conv.{p}"),
        ("encoder.layers.0.convolved.norm.{p}", "deberta.encoder.conv.LayerNorm.{p}"),
    ]


# Defaults of transformers' `DebertaV2Config` and its classes that differ from Cloze's.
_DEFAULTS = {
    "hidden_size": 1536,
    "num_hidden_layers": 24,
    "num_attention_heads": 24,
    "intermediate_size": 6144,
    "relative_attention": False,
    "position_buckets": -1,
    "share_att_key": False,
    "norm_rel_ebd": "none",
    "position_biased_input": True,
    "pos_att_type": [],
}


def _write(config: dict[str, Any]) -> dict[str, Any]:
    return {
        **config,
        "relative_attention": True,
        "legacy": False,
        "pooler_hidden_size": config["hidden_size"],
    }


def _read(config: dict[str, Any]) -> dict[str, Any]:
    """Convert Hugging Face's values to those of `DebertaConfig`.

    Raises:
        DataError: the model has no relative positions, or another width of embeddings or heads.
    """
    found = {**_DEFAULTS, **config}
    if not found["relative_attention"]:
        raise DataError(
            "relative_attention is false, and DeBERTa without it is a BERT; use a model with "
            "relative positions"
        )
    width = found["hidden_size"]
    for name, own in (
        ("embedding_size", width),
        ("attention_head_size", width // found["num_attention_heads"]),
    ):
        if found.get(name, own) != own:
            raise DataError(
                f"{name} ({found[name]}) is not {own}, as the hidden size has it; use another model"
            )
    terms, norms = found["pos_att_type"] or [], found["norm_rel_ebd"]
    found["pos_att_type"] = (
        [term.strip() for term in terms.lower().split("|")] if isinstance(terms, str) else terms
    )
    found["norm_rel_ebd"] = "layer_norm" if "layer_norm" in norms.lower() else "none"
    return found


def _unread(model: ModelConfig) -> tuple[str, ...]:
    """Return absolute positions if the input has none: the authors' files contain them anyway."""
    return (
        ()
        if cast(DebertaConfig, model).position_biased_input
        else ("encoder.embeddings.position.weight",)
    )


HUB = HubFormat(
    family="deberta",
    model_type="deberta-v2",
    keys=KeyMap(
        [
            *_encoder_rows(),
            ("masked_lm.dense.{p}", "lm_predictions.lm_head.dense.{p}"),
            ("masked_lm.norm.{p}", "lm_predictions.lm_head.LayerNorm.{p}"),
            ("masked_lm.bias", "lm_predictions.lm_head.bias"),
            ("pooler.dense.{p}", "pooler.dense.{p}"),
            ("classifier.{p}", "classifier.{p}"),
        ]
    ),
    fields={
        **bert.HUB.fields,
        **{
            name: name
            for name in (
                "position_buckets",
                "max_relative_positions",
                "pos_att_type",
                "share_att_key",
                "norm_rel_ebd",
                "position_biased_input",
                "conv_kernel_size",
                "conv_act",
            )
        },
    },
    fixed={"conv_groups": 1, "pooler_hidden_act": "gelu", "tie_word_embeddings": True},
    architectures={
        frozenset({"masked_lm"}): "DebertaV2ForMaskedLM",
        frozenset({"masked_lm", "decoder"}): "DebertaV2Model",
        frozenset({"masked_lm", "discriminator"}): "DebertaV2Model",
        **fine_tuned("DebertaV2"),
    },
    encoder_alone=("decoder", "discriminator"),
    copies={
        "cls.predictions.decoder.weight": "deberta.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "lm_predictions.lm_head.bias",
    },
    legacy={  # transformers' head, and its copy of the bias
        "cls.predictions.transform.": "lm_predictions.lm_head.",
        "cls.predictions.bias": "lm_predictions.lm_head.bias",
    },
    ignored=frozenset({"deberta.embeddings.position_ids"}),
    unused=("mask_predictions.",),  # discriminator head in the authors' files
    unread=_unread,
    outputs={**OUTPUTS, "last_hidden_state": "hidden"},
    write=_write,
    read=_read,
)
