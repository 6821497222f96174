"""Hugging Face names of ModernBERT (`ModernBertForMaskedLM`, `…ForSequenceClassification`)."""

from __future__ import annotations

from typing import Any

from cloze.core.errors import DataError
from cloze.model.families.hub import TASK_ROWS, HubFormat, KeyMap, fine_tuned

LAYER = "model.layers.{n}"
GLOBAL, LOCAL = "full_attention", "sliding_attention"

KEYS = KeyMap(
    [
        ("encoder.embeddings.word.weight", "model.embeddings.tok_embeddings.weight"),
        ("encoder.embeddings.norm.{p}", "model.embeddings.norm.{p}"),
        ("encoder.layers.{n}.attention_input_norm.{p}", f"{LAYER}.attn_norm.{{p}}"),
        ("encoder.layers.{n}.attention.qkv.{p}", f"{LAYER}.attn.Wqkv.{{p}}"),
        ("encoder.layers.{n}.attention.output.{p}", f"{LAYER}.attn.Wo.{{p}}"),
        ("encoder.layers.{n}.feed_forward_input_norm.{p}", f"{LAYER}.mlp_norm.{{p}}"),
        ("encoder.layers.{n}.feed_forward.up.{p}", f"{LAYER}.mlp.Wi.{{p}}"),
        ("encoder.layers.{n}.feed_forward.down.{p}", f"{LAYER}.mlp.Wo.{{p}}"),
        ("encoder.norm.{p}", "model.final_norm.{p}"),
        ("pooler.dense.{p}", "head.dense.{p}"),
        ("pooler.norm.{p}", "head.norm.{p}"),
        ("masked_lm.bias", "decoder.bias"),
        ("classifier.{p}", "classifier.{p}"),
    ]
)
DEFAULTS = {
    "num_hidden_layers": 22,
    "pad_token_id": 50283,
}  # transformers' defaults that differ from Cloze's
NO_IDS = (
    "bos_token_id",
    "eos_token_id",
    "cls_token_id",
    "sep_token_id",
)  # transformers' defaults are for another vocabulary
THETAS = {GLOBAL: "global_rope_theta", LOCAL: "local_rope_theta"}


def write(config: dict[str, Any]) -> dict[str, Any]:
    """Add `layer_types` and `rope_parameters`, which transformers reads since 5.0."""
    every, layers = config["global_attn_every_n_layers"], config["num_hidden_layers"]
    rope = {
        kind: {"rope_type": "default", "rope_theta": config[theta]}
        for kind, theta in THETAS.items()
    }
    return {
        **config,
        **dict.fromkeys(NO_IDS),
        "layer_types": [LOCAL if number % every else GLOBAL for number in range(layers)],
        "rope_parameters": rope,
    }


def read(config: dict[str, Any]) -> dict[str, Any]:
    """Convert transformers' config; the inverse of `write`.

    Raises:
        DataError: the layers do not alternate regularly, or rotary positions are scaled.
    """
    config = {**DEFAULTS, **config}
    for kind, theta in THETAS.items():
        rope = (config.get("rope_parameters") or {}).get(kind) or {}
        if rope.get("rope_type", "default") != "default":
            raise DataError(
                f"rope_parameters of {kind} have the rope_type {rope['rope_type']!r}; use a model "
                f"with 'default'"
            )
        if "rope_theta" in rope:
            config[theta] = rope["rope_theta"]
    types = config.get("layer_types")
    if types:
        wide = [number for number, kind in enumerate(types) if kind == GLOBAL]
        every = wide[1] if len(wide) > 1 else config.get("global_attn_every_n_layers") or len(types)
        if types != [LOCAL if number % every else GLOBAL for number in range(len(types))]:
            raise DataError(
                "layer_types do not alternate regularly, beginning with full_attention; use "
                "another model"
            )
        config["global_attn_every_n_layers"] = every
    return config


HUB = HubFormat(
    family="modern",
    model_type="modernbert",
    keys=KEYS,
    fields={
        "vocab_size": "vocab_size",
        "hidden_size": "hidden_size",
        "num_hidden_layers": "num_hidden_layers",
        "num_attention_heads": "num_attention_heads",
        "intermediate_size": "intermediate_size",
        "max_position_embeddings": "max_position_embeddings",
        "hidden_act": "hidden_activation",
        "hidden_dropout": "embedding_dropout",
        "attention_dropout": "attention_dropout",
        "mlp_dropout": "mlp_dropout",
        "layer_norm_eps": "norm_eps",
        "initializer_range": "initializer_range",
        "pad_token_id": "pad_token_id",
        "local_attention": "local_attention",
        "global_attention_every": "global_attn_every_n_layers",
        "global_rope_theta": "global_rope_theta",
        "local_rope_theta": "local_rope_theta",
        "classifier_pooling": "classifier_pooling",
    },
    fixed={
        "norm_bias": False,
        "attention_bias": False,
        "mlp_bias": False,
        "decoder_bias": True,
        "classifier_bias": False,
        "classifier_activation": "gelu",
        "tie_word_embeddings": True,
    },
    architectures={
        frozenset({"masked_lm"}): "ModernBertForMaskedLM",
        **fine_tuned("ModernBert"),
    },
    task_rows={**TASK_ROWS, "span": (("span.{p}", "classifier.{p}"),)},
    copies={"decoder.weight": "model.embeddings.tok_embeddings.weight"},
    write=write,
    read=read,
)
