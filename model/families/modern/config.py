"""The config of the modern encoder (ModernBERT). No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from model.families.config import ModelConfig, Probability, Size
from pipeline.core.config import Tag


class ModernConfig(ModelConfig):
    """Defaults are those of ModernBERT-base (Warner et al., "Smarter, Better, Faster, Longer", 2024, appendix A, Table 4)."""

    heads: ClassVar[Mapping[str, Any]] = {"masked_lm": {}}

    usual_vocabulary: ClassVar[int] = 50_368
    usual_batch: ClassVar[int] = 4608  # of 1,024 tokens: appendix A, Table 3

    family: Tag[Literal["modern"]] = "modern"
    num_hidden_layers: Size = 22
    intermediate_size: Size = 1152
    max_position_embeddings: Size = 8192
    type_vocab_size: Literal[0] = 0
    layer_norm_eps: Annotated[float, Field(gt=0.0)] = 1e-5

    hidden_dropout: Probability = 0.0
    """Share of the embeddings dropped while training; attention_dropout and mlp_dropout are for the layers."""

    attention_dropout: Probability = 0.0
    """Share dropped of the attention probabilities."""

    attention_output_dropout: Probability | None = None
    """Share dropped of what attention puts out (the authors' pretraining: .1); without it attention_dropout, as in transformers."""

    mlp_dropout: Probability = 0.0
    """Share dropped inside the feed-forward block, before its way down."""

    local_attention: Annotated[int, Field(ge=2, multiple_of=2)] = 128
    """How wide the window of local layers is, half of it to either side."""

    global_attention_every: Size = 3
    """Of so many layers the first sees the whole row, the others their window."""

    global_rope_theta: Annotated[float, Field(gt=0.0)] = 160_000.0
    """Base of the rotary wavelengths of global layers."""

    local_rope_theta: Annotated[float, Field(gt=0.0)] = 10_000.0
    """Base of the rotary wavelengths of local layers."""

    classifier_pooling: Literal["cls", "mean"] = "cls"
    """What a sequence's vector is made of in fine-tuning: the state of its first token, or the mean of all of its states."""

    @property
    def output_dropout(self) -> float:
        """What is dropped of what attention puts out."""
        given = self.attention_output_dropout
        return self.attention_dropout if given is None else given

    @property
    def layer_weights(self) -> int:
        return 4 * self.hidden_size**2 + 3 * self.hidden_size * self.intermediate_size  # its feed-forward block is gated

    @property
    def weights_beside_layers(self) -> int:
        return self.vocab_size * self.word_width + self.hidden_size**2  # positions are turned in, not looked up

    @property
    def gated(self) -> bool:
        return True

    def window_of(self, layer: int) -> int | None:
        return None if self.is_global(layer) else self.local_attention // 2

    def own_objectives(self, pair_task: str | None) -> tuple[str, ...]:
        return ("mlm",)

    def is_global(self, layer: int) -> bool:
        """Whether the layer of this number, from 0, sees the whole row."""
        return layer % self.global_attention_every == 0


CONFIG = ModernConfig
