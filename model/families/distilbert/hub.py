"""Hugging Face names of DistilBERT."""

from __future__ import annotations

from cloze.model.families.hub import HubFormat, KeyMap, fine_tuned

_LAYER = "distilbert.transformer.layer.{n}"

HUB = HubFormat(
    family="distilbert",
    model_type="distilbert",
    keys=KeyMap(
        [
            ("encoder.embeddings.word.weight", "distilbert.embeddings.word_embeddings.weight"),
            (
                "encoder.embeddings.position.weight",
                "distilbert.embeddings.position_embeddings.weight",
            ),
            ("encoder.embeddings.norm.{p}", "distilbert.embeddings.LayerNorm.{p}"),
            ("encoder.layers.{n}.attention.query.{p}", f"{_LAYER}.attention.q_lin.{{p}}"),
            ("encoder.layers.{n}.attention.key.{p}", f"{_LAYER}.attention.k_lin.{{p}}"),
            ("encoder.layers.{n}.attention.value.{p}", f"{_LAYER}.attention.v_lin.{{p}}"),
            ("encoder.layers.{n}.attention.output.{p}", f"{_LAYER}.attention.out_lin.{{p}}"),
            ("encoder.layers.{n}.attention_norm.{p}", f"{_LAYER}.sa_layer_norm.{{p}}"),
            ("encoder.layers.{n}.feed_forward.up.{p}", f"{_LAYER}.ffn.lin1.{{p}}"),
            ("encoder.layers.{n}.feed_forward.down.{p}", f"{_LAYER}.ffn.lin2.{{p}}"),
            ("encoder.layers.{n}.feed_forward_norm.{p}", f"{_LAYER}.output_layer_norm.{{p}}"),
            ("masked_lm.dense.{p}", "vocab_transform.{p}"),
            ("masked_lm.norm.{p}", "vocab_layer_norm.{p}"),
            ("masked_lm.bias", "vocab_projector.bias"),
            ("pooler.dense.{p}", "pre_classifier.{p}"),
            ("classifier.{p}", "classifier.{p}"),
        ]
    ),
    fields={
        "vocab_size": "vocab_size",
        "hidden_size": "dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "max_position_embeddings": "max_position_embeddings",
        "hidden_act": "activation",
        "hidden_dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "initializer_range": "initializer_range",
        "pad_token_id": "pad_token_id",
    },
    fixed={"sinusoidal_pos_embds": False, "tie_word_embeddings": True},
    architectures={
        frozenset({"masked_lm"}): "DistilBertForMaskedLM",
        **fine_tuned("DistilBert"),
    },
    copies={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
    ignored=frozenset({"distilbert.embeddings.position_ids"}),
    # defaults of transformers' `DistilBertConfig` that differ from BERT's
    read=lambda config: {"dim": 768, "n_layers": 6, "n_heads": 12, "hidden_dim": 3072, **config},
)
