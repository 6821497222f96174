"""Hugging Face names of BERT (`BertForPreTraining`, `BertForSequenceClassification`)."""

from __future__ import annotations

from cloze.model.families.hub import HubFormat, KeyMap, Row, fine_tuned


def encoder_rows(prefix: str) -> list[Row]:
    """Return the names of embeddings and layers; `prefix` is Hugging Face's name of the encoder."""
    embeddings, layer = f"{prefix}.embeddings", f"{prefix}.encoder.layer.{{n}}"
    return [
        ("encoder.embeddings.word.weight", f"{embeddings}.word_embeddings.weight"),
        ("encoder.embeddings.position.weight", f"{embeddings}.position_embeddings.weight"),
        ("encoder.embeddings.segment.weight", f"{embeddings}.token_type_embeddings.weight"),
        ("encoder.embeddings.norm.{p}", f"{embeddings}.LayerNorm.{{p}}"),
        ("encoder.layers.{n}.attention.query.{p}", f"{layer}.attention.self.query.{{p}}"),
        ("encoder.layers.{n}.attention.key.{p}", f"{layer}.attention.self.key.{{p}}"),
        ("encoder.layers.{n}.attention.value.{p}", f"{layer}.attention.self.value.{{p}}"),
        ("encoder.layers.{n}.attention.output.{p}", f"{layer}.attention.output.dense.{{p}}"),
        ("encoder.layers.{n}.attention_norm.{p}", f"{layer}.attention.output.LayerNorm.{{p}}"),
        ("encoder.layers.{n}.feed_forward.up.{p}", f"{layer}.intermediate.dense.{{p}}"),
        ("encoder.layers.{n}.feed_forward.down.{p}", f"{layer}.output.dense.{{p}}"),
        ("encoder.layers.{n}.feed_forward_norm.{p}", f"{layer}.output.LayerNorm.{{p}}"),
    ]


HEAD_ROWS: list[Row] = [
    ("pooler.dense.{p}", "bert.pooler.dense.{p}"),
    ("masked_lm.dense.{p}", "cls.predictions.transform.dense.{p}"),
    ("masked_lm.norm.{p}", "cls.predictions.transform.LayerNorm.{p}"),
    ("masked_lm.bias", "cls.predictions.bias"),
    ("pair.{p}", "cls.seq_relationship.{p}"),
    ("classifier.{p}", "classifier.{p}"),
]

HUB = HubFormat(
    family="bert",
    model_type="bert",
    keys=KeyMap(encoder_rows("bert") + HEAD_ROWS),
    fields={
        "vocab_size": "vocab_size",
        "hidden_size": "hidden_size",
        "num_hidden_layers": "num_hidden_layers",
        "num_attention_heads": "num_attention_heads",
        "intermediate_size": "intermediate_size",
        "max_position_embeddings": "max_position_embeddings",
        "type_vocab_size": "type_vocab_size",
        "hidden_act": "hidden_act",
        "hidden_dropout": "hidden_dropout_prob",
        "attention_dropout": "attention_probs_dropout_prob",
        "layer_norm_eps": "layer_norm_eps",
        "initializer_range": "initializer_range",
        "pad_token_id": "pad_token_id",
    },
    fixed={"position_embedding_type": "absolute", "is_decoder": False, "tie_word_embeddings": True},
    architectures={
        frozenset({"masked_lm", "pair"}): "BertForPreTraining",
        frozenset({"masked_lm"}): "BertForMaskedLM",
        **fine_tuned("Bert"),
    },
    copies={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    legacy={
        "LayerNorm.gamma": "LayerNorm.weight",
        "LayerNorm.beta": "LayerNorm.bias",
    },  # files converted from TensorFlow
    ignored=frozenset({"bert.embeddings.position_ids"}),  # a buffer saved by versions before 4.31
)
