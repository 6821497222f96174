"""The config of the modern encoder (ModernBERT). No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from cloze.core.config import UnionTag
from cloze.model.families.config import ModelConfig, Probability, Size


class ModernConfig(ModelConfig):
    """ModernBERT-base (Warner et al., 2024, appendix A, Table 4)."""

    heads: ClassVar[Mapping[str, Any]] = {"masked_lm": {}}

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
        given = self.attention_output_dropout
        return self.attention_dropout if given is None else given

    @property
    def layer_weights(self) -> int:
        return (
            4 * self.hidden_size**2 + 3 * self.hidden_size * self.intermediate_size
        )  # gated feed-forward block

    @property
    def weights_beside_layers(self) -> int:
        return (
            self.vocab_size * self.word_width + self.hidden_size**2
        )  # rotary positions have no table

    @property
    def gated(self) -> bool:
        return True

    def window_of(self, layer: int) -> int | None:
        return None if self.is_global(layer) else self.local_attention // 2

    def default_objectives(self, pair_task: str | None) -> tuple[str, ...]:
        return ("mlm",)

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
