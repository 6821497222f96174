"""BERT's table: our names beside those of transformers' `BertForPreTraining` and `BertForSequenceClassification`."""

from __future__ import annotations

from model.hub.mapping import Hub, KeyMap

EMBEDDINGS, LAYER = "bert.embeddings", "bert.encoder.layer.{n}"

KEYS = KeyMap(
    [
        ("encoder.embeddings.word.weight", f"{EMBEDDINGS}.word_embeddings.weight"),
        ("encoder.embeddings.position.weight", f"{EMBEDDINGS}.position_embeddings.weight"),
        ("encoder.embeddings.segment.weight", f"{EMBEDDINGS}.token_type_embeddings.weight"),
        ("encoder.embeddings.norm.{p}", f"{EMBEDDINGS}.LayerNorm.{{p}}"),
        ("encoder.layers.{n}.attention.query.{p}", f"{LAYER}.attention.self.query.{{p}}"),
        ("encoder.layers.{n}.attention.key.{p}", f"{LAYER}.attention.self.key.{{p}}"),
        ("encoder.layers.{n}.attention.value.{p}", f"{LAYER}.attention.self.value.{{p}}"),
        ("encoder.layers.{n}.attention.output.{p}", f"{LAYER}.attention.output.dense.{{p}}"),
        ("encoder.layers.{n}.attention_norm.{p}", f"{LAYER}.attention.output.LayerNorm.{{p}}"),
        ("encoder.layers.{n}.feed_forward.up.{p}", f"{LAYER}.intermediate.dense.{{p}}"),
        ("encoder.layers.{n}.feed_forward.down.{p}", f"{LAYER}.output.dense.{{p}}"),
        ("encoder.layers.{n}.feed_forward_norm.{p}", f"{LAYER}.output.LayerNorm.{{p}}"),
        ("pooler.dense.{p}", "bert.pooler.dense.{p}"),
        ("masked_lm.dense.{p}", "cls.predictions.transform.dense.{p}"),
        ("masked_lm.norm.{p}", "cls.predictions.transform.LayerNorm.{p}"),
        ("masked_lm.bias", "cls.predictions.bias"),
        ("pair.{p}", "cls.seq_relationship.{p}"),
        ("classifier.{p}", "classifier.{p}"),
    ]
)

HUB = Hub(
    family="bert",
    model_type="bert",
    keys=KEYS,
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
        frozenset({"classifier"}): "BertForSequenceClassification",
    },
    copies={
        "cls.predictions.decoder.weight": f"{EMBEDDINGS}.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    legacy={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},  # files made from TensorFlow
    ignored=frozenset({f"{EMBEDDINGS}.position_ids"}),  # a buffer that versions before 4.31 saved
)
