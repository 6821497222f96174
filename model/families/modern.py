"""ModernBERT (Warner et al., "Smarter, Better, Faster, Longer", 2024).

Pre-norm blocks, rotary positions, gated feed-forward (GeGLU), no bias except in the decoder, and
local attention in two layers of three. Padding is removed, as in all encoders.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from cloze.core.config import UnionTag
from cloze.core.errors import DataError
from cloze.model.families.config import ModelConfig, Probability, Size
from cloze.model.families.hub_format import TASK_ROWS, WORDS, HubFormat, fine_tuned, same
from cloze.model.families.key_map import Drop, KeyMap

if TYPE_CHECKING:
    from torch import Tensor, nn

    from cloze.model.families.pretraining import PretrainingModel
    from cloze.model.layers.attention import SelfAttention
    from cloze.model.layers.encoder import Encoder, EncoderLayer
    from cloze.model.layers.heads import PredictionHead
    from cloze.pipeline.tokenizer.special import SpecialTokens


class ModernConfig(ModelConfig):
    """ModernBERT-base (Warner et al., 2024, appendix A, Table 4)."""

    heads: ClassVar[Mapping[str, Any]] = {"masked_lm": {}}
    own_objectives: ClassVar[tuple[str, ...]] = ("mlm",)
    gated: ClassVar[bool] = True

    # Appendix A, "Megatron initialization"; transformers, ModernBertPreTrainedModel._init_weights.
    scaled_projections: ClassVar[tuple[str, ...]] = (
        "attention.output.weight",
        "feed_forward.down.weight",
        "pooler.dense.weight",
    )

    default_vocab_size: ClassVar[int] = 50_368
    default_batch_size: ClassVar[int] = 4608  # of 1,024 tokens: appendix A, Table 3

    family: UnionTag[Literal["modern"]] = "modern"
    num_hidden_layers: Size = 22
    intermediate_size: Size = 1152
    max_position_embeddings: Size = 8192
    type_vocab_size: Literal[0] = 0
    layer_norm_eps: Annotated[float, Field(gt=0.0)] = 1e-5

    hidden_dropout: Probability = 0.0
    """Dropout of the embeddings; the layers have attention_dropout and mlp_dropout."""

    attention_dropout: Probability = 0.0
    """Dropout of the attention probabilities."""

    attention_output_dropout: Probability | None = None
    """Dropout of the attention output (the authors' pretraining: 0.1). Default: attention_dropout,
    as in transformers."""

    mlp_dropout: Probability = 0.0
    """Dropout inside the feed-forward block, before its output projection."""

    local_attention: Annotated[int, Field(ge=2, multiple_of=2)] = 128
    """Attention window of local layers in tokens, half on each side."""

    global_attention_every: Size = 3
    """Interval of layers with global attention, starting with the first; the others use a local
    window."""

    global_rope_theta: Annotated[float, Field(gt=0.0)] = 160_000.0
    """Base of the rotary wavelengths of global layers."""

    local_rope_theta: Annotated[float, Field(gt=0.0)] = 10_000.0
    """Base of the rotary wavelengths of local layers."""

    classifier_pooling: Literal["cls", "mean"] = "cls"
    """Sequence vector in fine-tuning: state of the first token (cls), or mean of all states."""

    @property
    def output_dropout(self) -> float:
        """Dropout of the attention output, with its default resolved."""
        dropout = self.attention_output_dropout
        return self.attention_dropout if dropout is None else dropout

    @property
    def weights_outside_layers(self) -> int:
        # Rotary positions have no table.
        return self.vocab_size * self.word_width + self.hidden_size**2

    def window_of(self, layer: int) -> int | None:
        return None if self.is_global(layer) else self.local_attention // 2

    def is_global(self, layer: int) -> bool:
        """Return True if layer `layer`, from 0, has global attention."""
        return layer % self.global_attention_every == 0


CONFIG = ModernConfig

# ModernBERT's sizes (Warner et al., 2024, Table 4); counts include its 50,368 tokens.
PRESETS: dict[str, ModelConfig] = {
    # one global and one local layer; feed-forward width 1.5 D, as modern-base
    "modern-tiny": ModernConfig.of_size(2, 128, intermediate_size=192),
    "modern-base": ModernConfig(),  # 22 layers of 768, feed-forward 1,152: 149M parameters
    "modern-large": ModernConfig.of_size(28, 1024, intermediate_size=2624),  # 395M
}


def build_model(
    config: ModernConfig,
    encoder: type[Encoder] | None = None,
    attention: type[SelfAttention] | None = None,
) -> PretrainingModel:
    """Build the pretraining model, of other classes if they are given."""
    from cloze.model.families.models import embeddings
    from cloze.model.families.pretraining import PretrainingModel
    from cloze.model.layers.attention import SelfAttention
    from cloze.model.layers.encoder import Encoder
    from cloze.model.layers.heads import PredictionDecoder

    table = embeddings(config, max_positions=0, norm=_norm(config))
    numbers = range(config.num_hidden_layers)
    layers = [_build_layer(config, number, attention or SelfAttention) for number in numbers]
    head = build_pooler(config)
    return PretrainingModel(
        (encoder or Encoder)(table, layers, _norm(config)),
        PredictionDecoder(head, config.vocab_size),
        pooler=head,
    )


def build_pooler(config: ModernConfig) -> PredictionHead:
    """Build the pretraining head, which is also the pooler."""
    from cloze.model.layers.heads import PredictionHead

    return PredictionHead(
        config.hidden_size,
        "gelu",  # transformers' classifier_activation
        norm=_norm(config),
        mean=config.classifier_pooling == "mean",
    )


def _build_layer(config: ModernConfig, number: int, kind: type[SelfAttention]) -> EncoderLayer:
    from cloze.model.layers.attention import Rotary
    from cloze.model.layers.encoder import EncoderLayer, FeedForward

    is_global = config.is_global(number)
    attention = kind(
        config.hidden_size,
        config.heads_of(number),
        head_size=config.head_size,
        dropout=config.attention_dropout,
        output_dropout=config.output_dropout,
        bias=False,
        fused=True,
        window=config.window_of(number),
        rotary=Rotary(
            config.head_size, config.global_rope_theta if is_global else config.local_rope_theta
        ),
    )
    feed_forward = FeedForward(
        config.hidden_size,
        config.intermediate_size,
        activation=config.hidden_act,
        gated=True,
        bias=False,
        dropout=config.mlp_dropout,
    )
    return EncoderLayer(
        attention,
        feed_forward,
        dropout=0.0,
        # The first layer's input, the embeddings, is already normalized.
        attention_input_norm=_norm(config) if number else None,
        feed_forward_input_norm=_norm(config),
    )


def _norm(config: ModelConfig) -> nn.LayerNorm:
    from torch import nn

    return nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps, bias=False)


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
# transformers' defaults are for another vocabulary
NO_IDS = ("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")
THETAS = {GLOBAL: "global_rope_theta", LOCAL: "local_rope_theta"}


class ModernFormat(HubFormat):
    family = "modern"
    model_type = "modernbert"
    keys = KEYS
    fields = {
        **same("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
        **same("intermediate_size", "max_position_embeddings", "attention_dropout", "mlp_dropout"),
        **same("initializer_range", "pad_token_id", "local_attention", "classifier_pooling"),
        **same("global_rope_theta", "local_rope_theta"),
        "hidden_act": "hidden_activation",
        "hidden_dropout": "embedding_dropout",
        "layer_norm_eps": "norm_eps",
        "global_attention_every": "global_attn_every_n_layers",
    }
    fixed = {
        "norm_bias": False,
        "attention_bias": False,
        "mlp_bias": False,
        "classifier_bias": False,
        "classifier_activation": "gelu",
        "tie_word_embeddings": True,
    }
    architectures = {frozenset({"masked_lm"}): "ModernBertForMaskedLM", **fine_tuned("ModernBert")}
    task_rows = {**TASK_ROWS, "span": (("span.{p}", "classifier.{p}"),)}
    drops = (Drop("decoder.weight", "model.embeddings.tok_embeddings.weight"),)
    defaults = {"num_hidden_layers": 22, "pad_token_id": 50283}

    def write(self, config: dict[str, Any]) -> dict[str, Any]:
        """Add `layer_types` and `rope_parameters`, which transformers reads since 5.0."""
        every, layers = config["global_attn_every_n_layers"], config["num_hidden_layers"]
        rope = {
            layer_type: {"rope_type": "default", "rope_theta": config[theta]}
            for layer_type, theta in THETAS.items()
        }
        return {
            **config,
            **dict.fromkeys(NO_IDS),
            "decoder_bias": True,
            "layer_types": [LOCAL if number % every else GLOBAL for number in range(layers)],
            "rope_parameters": rope,
        }

    def read(self, config: dict[str, Any]) -> dict[str, Any]:
        """Convert transformers' config; the inverse of `write`.

        Raises:
            DataError: the layers do not alternate regularly, or rotary positions are scaled.
        """
        for layer_type, theta in THETAS.items():
            rope = (config.get("rope_parameters") or {}).get(layer_type) or {}
            if rope.get("rope_type", "default") != "default":
                raise DataError(
                    f"rope_parameters of {layer_type} have the rope_type {rope['rope_type']!r}; "
                    f"use a model with 'default'"
                )
            if "rope_theta" in rope:
                config[theta] = rope["rope_theta"]
        types = config.get("layer_types")
        if types:
            global_layers = [number for number, kind in enumerate(types) if kind == GLOBAL]
            every = (
                global_layers[1]
                if len(global_layers) > 1
                else config.get("global_attn_every_n_layers") or len(types)
            )
            if types != [LOCAL if number % every else GLOBAL for number in range(len(types))]:
                raise DataError(
                    "layer_types do not alternate regularly, beginning with full_attention; use "
                    "another model"
                )
            config["global_attn_every_n_layers"] = every
        return config

    def fill(
        self, model: ModernConfig, config: Mapping[str, Any], state: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """Add the decoder's bias, zero, to a masked LM that has none (`decoder_bias`)."""
        if config.get("decoder_bias") is not False or "masked_lm.bias" in state:
            return state
        # No prediction head: this is an encoder alone, which has no decoder to complete.
        if not any(name.startswith("pooler.") for name in state):
            return state
        return {**state, "masked_lm.bias": state[WORDS].new_zeros(model.vocab_size)}


HUB = ModernFormat()


class CausalFormat(ModernFormat):
    model_type = "modernbert-decoder"
    objectives = ("clm",)
    keys = KeyMap(
        [(ours, theirs.replace("head.", "lm_head.")) for ours, theirs in KEYS.rows[:-1]],
        parts={".Wqkv.": (".q_proj.", ".k_proj.", ".v_proj.")},
    )
    fields = {ours: theirs for ours, theirs in HUB.fields.items() if ours != "classifier_pooling"}
    architectures = {frozenset({"masked_lm"}): "ModernBertDecoderForCausalLM"}
    defaults = {**HUB.defaults, "local_attention": 128}

    def write(self, config: dict[str, Any]) -> dict[str, Any]:
        """Write the window of `ModernBertDecoder`, whose half counts the token itself.

        `cloze.model.hub.write` adds the ids of special tokens.
        """
        # transformers halves it and counts the token itself: w on each side is written as 2 w + 2.
        written = super().write({**config, "local_attention": config["local_attention"] + 2})
        return {name: value for name, value in written.items() if name not in NO_IDS}

    def token_fields(
        self, heads: Iterable[str], special: SpecialTokens, separators: int
    ) -> dict[str, Any]:
        first = dict.fromkeys(("bos_token_id", "cls_token_id"), special.cls)
        return {**first, **dict.fromkeys(("eos_token_id", "sep_token_id"), special.sep)}

    def read(self, config: dict[str, Any]) -> dict[str, Any]:
        return super().read({**config, "local_attention": (config["local_attention"] or 2) - 2})


CAUSAL_HUB = CausalFormat()
