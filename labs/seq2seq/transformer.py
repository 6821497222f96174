"""The Transformer (Vaswani et al., 2017): post-norm, sinusoidal positions, tied embeddings.

Hugging Face's form is Marian's, whose network it is (Junczys-Dowmunt et al., 2018).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from cloze.core.config import UnionTag
from cloze.labs.seq2seq import bart
from cloze.labs.seq2seq.encoder_decoder import EncoderDecoderConfig, Seq2SeqFormat, check_start
from cloze.labs.seq2seq.encoder_decoder import build_pooler as build_pooler
from cloze.model.families.config import ModelConfig, Probability, Size
from cloze.model.families.key_map import Drop, KeyMap

if TYPE_CHECKING:
    from cloze.labs.seq2seq.decoder import Seq2SeqModel


class TransformerConfig(EncoderDecoderConfig):
    """The base model (Vaswani et al., 2017, Table 3)."""

    default_vocab_size: ClassVar[int] = 37_000

    family: UnionTag[Literal["transformer"]] = "transformer"
    hidden_size: Size = 512
    num_hidden_layers: Size = 6
    num_attention_heads: Size = 8
    intermediate_size: Size = 2048
    max_position_embeddings: Size = 1024
    hidden_act: Literal["gelu", "gelu_new", "relu"] = "relu"
    attention_dropout: Probability = 0.0  # section 5.4 names sums and embeddings
    layer_norm_eps: Annotated[float, Field(ge=1e-5, le=1e-5)] = 1e-5  # not in their config.json
    label_smoothing: Probability = 0.1
    # D^-0.5, as fairseq's and tensor2tensor's embeddings: scaled, they weigh as much as positions
    initializer_range: Annotated[float, Field(gt=0.0)] = 0.044

    @property
    def weights_outside_layers(self) -> int:
        """Number of weights outside the layers; positions have no tables."""
        return self.vocab_size * self.hidden_size + self.decoder_layers * self.decoder_layer_weights


CONFIG = TransformerConfig

# Sizes of Vaswani et al., 2017, Table 3; counts include 37,000 tokens.
PRESETS: dict[str, ModelConfig] = {
    "transformer-tiny": TransformerConfig.of_size(2, 128, initializer_range=0.06),
    "transformer-base": TransformerConfig(),  # 63M parameters; the paper says 65M
    # 214M; the paper says 213M
    "transformer-big": TransformerConfig.of_size(
        6, 1024, hidden_dropout=0.3, initializer_range=0.031
    ),
}


def build_model(config: TransformerConfig) -> Seq2SeqModel:
    from cloze.labs.seq2seq.encoder_decoder import build

    return build(config, sinusoidal=True, scale=config.hidden_size**0.5)


class TransformerFormat(Seq2SeqFormat):
    family = "transformer"
    model_type = "marian"
    keys = KeyMap([row for row in bart.STACKS if "embeddings.position" not in row[0]])
    fields = bart.FIELDS
    fixed = {
        "is_encoder_decoder": True,
        "tie_word_embeddings": True,
        "share_encoder_decoder_embeddings": True,
        "scale_embedding": True,
    }
    architectures = {frozenset({"seq2seq"}): "MarianMTModel"}
    drops = (
        *bart.HUB.drops,
        # sines and cosines, which Marian's class holds as weights
        Drop("*.embed_positions.weight", must_be="exact"),
    )
    defaults = {
        **bart.HUB.defaults,
        "pad_token_id": 58_100,
        "decoder_start_token_id": 58_100,
        "eos_token_id": 0,
    }

    def write(self, config: dict[str, Any]) -> dict[str, Any]:
        pad, eos = config["pad_token_id"], config["eos_token_id"]
        ids = {"decoder_start_token_id": pad, "forced_eos_token_id": eos, "bos_token_id": None}
        return {**bart.write(config), **ids}

    def read(self, config: dict[str, Any]) -> dict[str, Any]:
        """Convert transformers' config; the inverse of `write`; raises as `bart.read`, and if the
        decoder does not start with padding.
        """
        check_start(config)
        return bart.read(config)


HUB = TransformerFormat()
