"""T5 (Raffel et al., 2020): pre-norm encoder-decoder, relative positions, RMSNorm, no biases.

Version 1.0 has ReLU and one table for embeddings and logits, whose states are scaled by the square
root of D. Version 1.1 has gated GELU and an output matrix of its own (google-research
text-to-text-transfer-transformer, released_checkpoints.md). mT5 (Xue et al., 2021) is version 1.1
with a vocabulary of 101 languages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from cloze.core.config import UnionTag
from cloze.core.errors import DataError
from cloze.labs.seq2seq.encoder_decoder import EncoderDecoderConfig, Seq2SeqFormat, check_start
from cloze.labs.seq2seq.encoder_decoder import build_pooler as build_pooler
from cloze.model.families.config import ModelConfig, Size
from cloze.model.families.hub_format import TIED, WORDS, Row, same
from cloze.model.families.key_map import Drop, KeyMap

if TYPE_CHECKING:
    from torch import Tensor

    from cloze.labs.seq2seq.decoder import Seq2SeqModel


class T5Config(EncoderDecoderConfig):
    """T5-base (Raffel et al., 2020, section 3.1.1), version 1.0."""

    needs_first_token: ClassVar[bool] = False
    own_objectives: ClassVar[tuple[str, ...]] = ("random-spans",)  # section 3.5
    default_vocab_size: ClassVar[int] = 32_128
    default_batch_size: ClassVar[int] = 128  # of 512 tokens: section 3.1.2; later models 2,048

    family: UnionTag[Literal["t5"]] = "t5"
    hidden_act: Literal["gelu", "gelu_new", "relu"] = "relu"
    layer_norm_eps: Annotated[float, Field(gt=0.0)] = 1e-6
    eos_token_id: Annotated[int, Field(ge=0)] = 1
    sentinels: Annotated[int, Field(ge=0)] = 100

    attention_head_size: Annotated[int, Field(ge=0)] = 0
    """Width of one attention head. 0: hidden_size / num_attention_heads."""

    gated_feed_forward: bool = False
    """Multiply the activated half of the feed-forward block by another one (version 1.1)."""

    tie_word_embeddings: bool = True
    """Compute logits with the word embeddings (version 1.0)."""

    relative_attention_num_buckets: Annotated[int, Field(ge=4, multiple_of=4)] = 32
    """Buckets of relative positions."""

    relative_attention_max_distance: Size = 128
    """Distance from which on all positions share a bucket."""

    @field_validator("num_attention_heads")
    @classmethod
    def _attention_heads_divide_width(cls, heads: int, info: ValidationInfo) -> int:
        return heads  # unless `attention_head_size` is 0

    @model_validator(mode="after")
    def _check_head_size(self) -> T5Config:
        if not self.attention_head_size and self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size ({self.hidden_size}) must be divisible by num_attention_heads "
                f"({self.num_attention_heads}); set attention_head_size, or change the heads"
            )
        if self.gated_feed_forward and self.hidden_act == "gelu":
            raise ValueError(
                "hidden_act (gelu) cannot be gated in transformers' T5, whose gated-gelu is "
                "gelu_new; use hidden_act: gelu_new (version 1.1)"
            )
        return self

    @property
    def head_size(self) -> int:
        return self.attention_head_size or super().head_size

    @property
    def gated(self) -> bool:  # type: ignore[override]
        return self.gated_feed_forward

    @property
    def query_factor(self) -> float:
        """Factor of queries beside T5's: about the square root of the head size, by which T5 does
        not divide scores; a power of 2, so that conversion is exact.

        T5's own queries are so small that an optimizer's step, which is as large for all weights,
        moves them too far.
        """
        return 2.0 ** round(math.log2(self.head_size) / 2)

    @property
    def weights_outside_layers(self) -> int:
        """Number of weights outside the layers; positions have no tables."""
        tables = (1 if self.tie_word_embeddings else 2) * self.vocab_size * self.hidden_size
        return tables + self.decoder_layers * self.decoder_layer_weights


def _v11(layers: int, width: int, heads: int, inner: int, **changes: Any) -> T5Config:
    return T5Config(
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=heads,
        attention_head_size=64,
        intermediate_size=inner,
        hidden_act="gelu_new",
        gated_feed_forward=True,
        tie_word_embeddings=False,
        **changes,
    )


CONFIG = T5Config

# T5's sizes (Raffel et al., 2020, section 3.7) and those of version 1.1 (released_checkpoints.md);
# counts include 32,128 tokens.
PRESETS: dict[str, ModelConfig] = {
    "t5-tiny": T5Config.of_size(2, 128),
    "t5-small": T5Config.of_size(6, 512),  # 60.5M parameters
    "t5-base": T5Config.of_size(12, 768),  # 222.9M
    "t5-large": T5Config.of_size(24, 1024),  # 737.7M
    "t5-v1.1-tiny": _v11(2, 128, 2, 256),
    "t5-v1.1-small": _v11(8, 512, 6, 1024),  # 77.0M
    "t5-v1.1-base": _v11(12, 768, 12, 2048),  # 247.6M
    "t5-v1.1-large": _v11(24, 1024, 16, 2816),  # 783.2M
}


def build_model(config: T5Config) -> Seq2SeqModel:
    from torch import nn

    from cloze.labs.seq2seq.encoder_decoder import build

    return build(
        config,
        norm=nn.RMSNorm,
        pre_norm=True,
        bias=False,
        gated=config.gated_feed_forward,
        query_scale=config.head_size**0.5 / config.query_factor,
        relative={
            "buckets": config.relative_attention_num_buckets,
            "farthest": config.relative_attention_max_distance,
        },
        tied=config.tie_word_embeddings,
        logit_scale=config.hidden_size**-0.5 if config.tie_word_embeddings else 1.0,
        activation_dropout=config.hidden_dropout,
        fan_in=True,
        max_positions=0,
    )


def _rows(cloze: str, hf: str, feed_forward: int) -> list[Row]:
    """Return the rows of one stack, whose layers have `feed_forward` sub-layers before that."""
    ours, theirs = f"{cloze}.layers.{{n}}", f"{hf}.block.{{n}}.layer"
    attentions = [("attention", "SelfAttention"), ("cross_attention", "EncDecAttention")]
    rows = []
    for number, (name, hf_name) in enumerate(attentions[:feed_forward]):
        rows.append((f"{ours}.{name}_input_norm.{{p}}", f"{theirs}.{number}.layer_norm.{{p}}"))
        rows += [
            (f"{ours}.{name}.{part}.{{p}}", f"{theirs}.{number}.{hf_name}.{part[0]}.{{p}}")
            for part in ("query", "key", "value", "output")
        ]
    block = f"{theirs}.{feed_forward}"
    return [
        *rows,
        (f"{ours}.feed_forward_input_norm.{{p}}", f"{block}.layer_norm.{{p}}"),
        (f"{ours}.feed_forward.up.{{p}}", f"{block}.DenseReluDense.wi.{{p}}"),
        (f"{ours}.feed_forward.gate.{{p}}", f"{block}.DenseReluDense.wi_0.{{p}}"),
        (f"{ours}.feed_forward.value.{{p}}", f"{block}.DenseReluDense.wi_1.{{p}}"),
        (f"{ours}.feed_forward.down.{{p}}", f"{block}.DenseReluDense.wo.{{p}}"),
        (
            f"{cloze}.embeddings.relative.table.weight",
            f"{hf}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        ),
        (f"{cloze}.norm.{{p}}", f"{hf}.final_layer_norm.{{p}}"),
    ]


SHARED, OUTPUT = "shared.weight", "encoder.output.weight"
MT5 = "mt5"
# transformers' defaults for mT5, whose logits no version 5 scales, whatever the file says of ties.
MT5_DEFAULTS: dict[str, Any] = {
    "feed_forward_proj": "gated-gelu",
    "num_layers": 8,
    "num_heads": 6,
    "d_ff": 1024,
    "scale_decoder_outputs": False,
}


class T5Format(Seq2SeqFormat):
    family = "t5"
    model_type = "t5"
    aliases = {MT5: "MT5"}
    keys = KeyMap(
        [
            ("encoder.embeddings.word.weight", SHARED),
            (OUTPUT, "lm_head.weight"),
            *_rows("encoder.decoder", "decoder", 2),
            *_rows("encoder", "encoder", 1),
        ]
    )
    fields = {
        **same("vocab_size", "pad_token_id", "eos_token_id", "tie_word_embeddings"),
        **same("relative_attention_num_buckets", "relative_attention_max_distance"),
        **same("num_decoder_layers", "attention_dropout"),
        "hidden_size": "d_model",
        "num_hidden_layers": "num_layers",
        "num_attention_heads": "num_heads",
        "attention_head_size": "d_kv",
        "intermediate_size": "d_ff",
        "hidden_act": "act",
        "gated_feed_forward": "gated",
        "hidden_dropout": "dropout_rate",
        "layer_norm_eps": "layer_norm_epsilon",
        "max_position_embeddings": "n_positions",
    }
    fixed = {"is_encoder_decoder": True}
    architectures = {frozenset({"seq2seq"}): "T5ForConditionalGeneration"}
    drops = (
        Drop("encoder.embed_tokens.weight", SHARED),
        Drop("decoder.embed_tokens.weight", SHARED),
        Drop("lm_head.weight", SHARED),
        # a table that versions before 4 saved and no model reads
        Drop("*EncDecAttention.relative_attention_bias.weight"),
    )
    defaults = {
        "feed_forward_proj": "relu",
        "dropout_rate": 0.1,
        "d_model": 512,
        "num_layers": 6,
        "num_heads": 8,
        "d_ff": 2048,
        "pad_token_id": 0,
        "eos_token_id": 1,
    }

    def to_theirs(self, model: T5Config, name: str, tensor: Tensor) -> Tensor:
        """Divide queries by `query_factor`."""
        return tensor / model.query_factor if name.endswith(".query.weight") else tensor

    def to_ours(self, model: T5Config, name: str, tensor: Tensor) -> Tensor:
        """Undo `to_theirs`."""
        return tensor * model.query_factor if name.endswith(".query.weight") else tensor

    def write(self, config: dict[str, Any]) -> dict[str, Any]:
        """Name the feed-forward block, and the ids that transformers does not share."""
        activation = "gelu" if config["gated"] and config["act"] == "gelu_new" else config["act"]
        return {
            **{name: value for name, value in config.items() if name not in ("gated", "act")},
            "num_decoder_layers": config["num_decoder_layers"] or config["num_layers"],
            "d_kv": config["d_kv"] or config["d_model"] // config["num_heads"],
            "feed_forward_proj": f"gated-{activation}" if config["gated"] else activation,
            "decoder_start_token_id": config["pad_token_id"],
        }

    def read(self, config: dict[str, Any]) -> dict[str, Any]:
        """Convert transformers' config; the inverse of `write`.

        Raises:
            DataError: the decoder starts with another token than padding.
        """
        check_start(config)
        kind, _, activation = str(config["feed_forward_proj"]).rpartition("-")
        gelu = "gelu_new" if kind == "gated" and activation == "gelu" else activation
        layers, decoder_layers = config.get("num_layers"), config.get("num_decoder_layers")
        width = config.get("d_kv", 64)
        # transformers 5 always ties, and says otherwise whether version 1.0's scale is left out.
        tied = config.get("scale_decoder_outputs", config.get(TIED, True)) is not False
        return {
            **config,
            TIED: tied,
            "gated": kind == "gated",
            "act": gelu,
            "num_decoder_layers": 0 if decoder_layers in (None, layers) else decoder_layers,
            "d_kv": 0 if width * config["num_heads"] == config["d_model"] else width,
            "attention_dropout": config.get("attention_dropout", config["dropout_rate"]),
        }

    def from_config(self, config: Mapping[str, Any], where: str) -> ModelConfig:
        """See `HubFormat.from_config`; missing fields of an mT5 have other values than T5's."""
        own = MT5_DEFAULTS if config.get("model_type") == MT5 else {}
        return super().from_config({**own, **config}, where)

    def fill(
        self, model: T5Config, config: Mapping[str, Any], state: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """Add the matrix of version 1.1's logits where transformers 5 uses the word embeddings.

        Raises:
            DataError: version 1.0 has a matrix of its own.
        """
        if model.tie_word_embeddings and OUTPUT in state:
            raise DataError(
                f"lm_head.weight must be tied to {SHARED}, as this T5 scales its logits (version "
                f"1.0); use another model"
            )
        whole = self.architecture({"seq2seq": {}}, str(config.get("model_type")))
        is_whole = whole in (config.get("architectures") or ())
        if is_whole and not model.tie_word_embeddings and OUTPUT not in state:
            return {**state, OUTPUT: state[WORDS].clone()}
        return state


HUB = T5Format()
