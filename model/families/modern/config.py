"""The config of the modern encoder (ModernBERT). No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from model.families.config import ModelConfig, Probability, Size


class ModernConfig(ModelConfig):
    """Defaults are those of ModernBERT-base (Warner et al., "Smarter, Better, Faster, Longer", 2024, appendix A, Table 4).

    Attributes:
        hidden_dropout: of the embeddings; the layers' outputs have `attention_dropout` and `mlp_dropout`.
        attention_dropout: of the attention probabilities and of what attention puts out.
        mlp_dropout: inside the feed-forward block, before its way down.
        local_attention: how wide the window of local layers is: half of it to either side.
        global_attention_every: of so many layers the first sees the whole row.
        global_rope_theta, local_rope_theta: the base of the rotary wavelengths of global and of local layers.
    """

    heads: ClassVar[Mapping[str, Any]] = {"masked_lm": {}}

    family: Literal["modern"] = "modern"
    num_hidden_layers: Size = 22
    intermediate_size: Size = 1152
    max_position_embeddings: Size = 8192
    type_vocab_size: Literal[0] = 0
    hidden_dropout: Probability = 0.0
    attention_dropout: Probability = 0.0
    mlp_dropout: Probability = 0.0
    layer_norm_eps: Annotated[float, Field(gt=0.0)] = 1e-5
    local_attention: Annotated[int, Field(ge=2, multiple_of=2)] = 128
    global_attention_every: Size = 3
    global_rope_theta: Annotated[float, Field(gt=0.0)] = 160_000.0
    local_rope_theta: Annotated[float, Field(gt=0.0)] = 10_000.0

    def own_objectives(self, pair_task: str | None) -> tuple[str, ...]:
        return ("mlm",)

    def is_global(self, layer: int) -> bool:
        """Whether the layer of this number, from 0, sees the whole row."""
        return layer % self.global_attention_every == 0
