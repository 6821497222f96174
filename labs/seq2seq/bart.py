"""BART (Lewis et al., 2020): post-norm encoder-decoder with learned positions, biases and GELU.

In fine-tuning, encoder and decoder read the same row, and a row's vector is the decoder's state at
its last token (section 3.1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from cloze.core.config import UnionTag
from cloze.core.errors import DataError
from cloze.labs.seq2seq.encoder_decoder import NO_CLASS, EncoderDecoderConfig, Seq2SeqFormat
from cloze.labs.seq2seq.encoder_decoder import build_pooler as build_pooler
from cloze.model.families.config import ModelConfig, Probability, Size
from cloze.model.families.hub_format import TASK_ROWS, Row, same
from cloze.model.families.key_map import Drop, KeyMap

if TYPE_CHECKING:
    from cloze.labs.seq2seq.decoder import Seq2SeqModel
    from cloze.pipeline.tokenizer.special import SpecialTokens


class BartConfig(EncoderDecoderConfig):
    """BART-large (Lewis et al., 2020; fairseq, models/bart)."""

    own_objectives: ClassVar[tuple[str, ...]] = ("bart",)  # section 5.1
    default_vocab_size: ClassVar[int] = 50_265
    default_batch_size: ClassVar[int] = 8000  # section 5.1

    family: UnionTag[Literal["bart"]] = "bart"
    max_position_embeddings: Size = 1024
    layer_norm_eps: Annotated[float, Field(ge=1e-5, le=1e-5)] = 1e-5  # not in their config.json
    attention_dropout: Probability = 0.0

    bos_token_id: Annotated[int, Field(ge=0)] = 0
    """Id with which targets begin; from a dataset, its [CLS]."""

    decoder_start_token_id: Annotated[int, Field(ge=-1)] = -1
    """Id of the token that the decoder reads first. -1: eos_token_id."""

    scale_embedding: bool = False
    """Multiply word embeddings by the square root of D."""

    @property
    def start_token_id(self) -> int:  # type: ignore[override]
        start = self.decoder_start_token_id
        return self.eos_token_id if start < 0 else start

    @property
    def first_target_id(self) -> int | None:  # type: ignore[override]
        return self.bos_token_id

    def vocabulary_values(self, size: int, special: SpecialTokens) -> dict[str, Any]:
        return {**super().vocabulary_values(size, special), "bos_token_id": special.cls}


CONFIG = BartConfig

# BART's sizes (Lewis et al., 2020, sections 4 and 5); counts include 50,265 tokens.
PRESETS: dict[str, ModelConfig] = {
    "bart-tiny": BartConfig.of_size(2, 128),
    "bart-base": BartConfig.of_size(6, 768, attention_dropout=0.1),  # 139M parameters
    "bart-large": BartConfig.of_size(12, 1024),  # 406M
}


def build_model(config: BartConfig) -> Seq2SeqModel:
    from cloze.labs.seq2seq.encoder_decoder import build

    return build(
        config,
        embedding_norm=True,
        position_offset=2,
        scale=config.hidden_size**0.5 if config.scale_embedding else 1.0,
    )


def stack_rows(cloze: str, hf: str, attentions: tuple[tuple[str, str], ...]) -> list[Row]:
    """Return the rows of one stack; `attentions`: pairs of Cloze's and Hugging Face's names."""
    ours, theirs = f"{cloze}.layers.{{n}}", f"{hf}.layers.{{n}}"
    parts = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
    rows = [
        (f"{ours}.{name}.{part}.{{p}}", f"{theirs}.{hf_name}.{hf_part}.{{p}}")
        for name, hf_name in attentions
        for part, hf_part in parts.items()
    ]
    norms = [(f"{ours}.{a}_norm.{{p}}", f"{theirs}.{b}_layer_norm.{{p}}") for a, b in attentions]
    return [
        *rows,
        *norms,
        (f"{ours}.feed_forward.up.{{p}}", f"{theirs}.fc1.{{p}}"),
        (f"{ours}.feed_forward.down.{{p}}", f"{theirs}.fc2.{{p}}"),
        (f"{ours}.feed_forward_norm.{{p}}", f"{theirs}.final_layer_norm.{{p}}"),
        (f"{cloze}.embeddings.position.weight", f"{hf}.embed_positions.weight"),
        (f"{cloze}.embeddings.norm.{{p}}", f"{hf}.layernorm_embedding.{{p}}"),
    ]


SELF, CROSS = ("attention", "self_attn"), ("cross_attention", "encoder_attn")
SHARED = "model.shared.weight"
STACKS = [
    ("encoder.embeddings.word.weight", SHARED),
    *stack_rows("encoder.decoder", "model.decoder", (SELF, CROSS)),
    *stack_rows("encoder", "model.encoder", (SELF,)),
]
FIELDS = {
    **same("vocab_size", "max_position_embeddings", "attention_dropout", "activation_dropout"),
    **same("pad_token_id", "eos_token_id"),
    "hidden_size": "d_model",
    "num_hidden_layers": "encoder_layers",
    "num_decoder_layers": "decoder_layers",
    "num_attention_heads": "encoder_attention_heads",
    "intermediate_size": "encoder_ffn_dim",
    "hidden_act": "activation_function",
    "hidden_dropout": "dropout",
    "initializer_range": "init_std",
}
# values of the decoder that must be the encoder's
EQUAL = {"decoder_attention_heads": "encoder_attention_heads", "decoder_ffn_dim": "encoder_ffn_dim"}


def write(config: dict[str, Any]) -> dict[str, Any]:
    """Write the decoder's sizes, and no layer drop."""
    return {
        **config,
        **{name: config[original] for name, original in EQUAL.items()},
        "decoder_layers": config["decoder_layers"] or config["encoder_layers"],
    }


def read(config: dict[str, Any]) -> dict[str, Any]:
    """Convert transformers' config; the inverse of `write`.

    Raises:
        DataError: encoder and decoder differ in width or heads.
    """
    for name, original in EQUAL.items():
        if config.get(name) != config.get(original):
            raise DataError(
                f"{name} ({config.get(name)}) differs from {original} ({config.get(original)}); "
                f"use a model whose encoder and decoder have equal layers"
            )
    layers, decoder_layers = config.get("encoder_layers"), config.get("decoder_layers")
    return {**config, "decoder_layers": 0 if decoder_layers == layers else decoder_layers}


class BartFormat(Seq2SeqFormat):
    family = "bart"
    model_type = "bart"
    keys = KeyMap(
        [
            *STACKS,
            ("pooler.dense.{p}", "classification_head.dense.{p}"),
            ("classifier.{p}", "classification_head.out_proj.{p}"),
        ]
    )
    fields = {**FIELDS, **same("bos_token_id", "scale_embedding", "decoder_start_token_id")}
    fixed = {"is_encoder_decoder": True, "tie_word_embeddings": True}
    architectures = {
        frozenset({"seq2seq"}): "BartForConditionalGeneration",
        frozenset({"classifier"}): "BartForSequenceClassification",
        frozenset({"span"}): "BartForQuestionAnswering",
    }
    task_rows = {"span": TASK_ROWS["span"]}
    refused = dict.fromkeys(("token_classifier", "choice"), NO_CLASS)
    drops = (
        Drop("model.*coder.embed_tokens.weight", SHARED),
        Drop("lm_head.weight", SHARED),
        Drop("*final_logits_bias", must_be="zero"),
    )
    defaults = {
        "encoder_layers": 12,
        "decoder_layers": 12,
        "encoder_attention_heads": 16,
        "decoder_attention_heads": 16,
        "encoder_ffn_dim": 4096,
        "decoder_ffn_dim": 4096,
        "d_model": 1024,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "decoder_start_token_id": 2,
    }

    def write(self, config: dict[str, Any]) -> dict[str, Any]:
        eos, start = config["eos_token_id"], config["decoder_start_token_id"]
        ids = {"decoder_start_token_id": eos if start < 0 else start, "forced_eos_token_id": eos}
        return {**write(config), **ids}

    def read(self, config: dict[str, Any]) -> dict[str, Any]:
        """Convert transformers' config; the inverse of `write`.

        Raises:
            DataError: generated texts begin with another token than targets; or as `read`.
        """
        first, forced = config["bos_token_id"], config.get("forced_bos_token_id")
        if forced not in (None, first):
            raise DataError(
                f"forced_bos_token_id ({forced}) must be bos_token_id ({first}), with which "
                f"targets begin; use another model"
            )
        start = config["decoder_start_token_id"]
        own = -1 if start == config["eos_token_id"] else start
        return {**read(config), "decoder_start_token_id": own}


HUB = BartFormat()
