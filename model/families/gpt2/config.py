"""The config of GPT-2. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from cloze.core.config import UnionTag
from cloze.model.families.config import ModelConfig, Size


class Gpt2Config(ModelConfig):
    """GPT-2 (Radford et al., 2019, Table 2); defaults are those of the smallest model."""

    heads: ClassVar[Mapping[str, Any]] = {"lm": {}}

    default_vocab_size: ClassVar[int] = 50_257
    default_batch_size: ClassVar[int] = 512  # section 2.3

    family: UnionTag[Literal["gpt2"]] = "gpt2"
    max_position_embeddings: Size = 1024
    type_vocab_size: Literal[0] = 0
    hidden_act: Literal["gelu", "gelu_new", "relu"] = "gelu_new"
    layer_norm_eps: Annotated[float, Field(gt=0.0)] = 1e-5

    def default_objectives(self, pair_task: str | None) -> tuple[str, ...]:
        return ("lm",)


CONFIG = Gpt2Config

# GPT-2's sizes (Radford et al., 2019, Table 2); counts include its 50,257 tokens.
PRESETS: dict[str, ModelConfig] = {
    "gpt2-tiny": Gpt2Config.of_size(2, 128),
    "gpt2": Gpt2Config.of_size(12, 768),  # 124M parameters
    "gpt2-medium": Gpt2Config.of_size(24, 1024),  # 355M
    "gpt2-large": Gpt2Config.of_size(36, 1280),  # 774M
    "gpt2-xl": Gpt2Config.of_size(48, 1600),  # 1,558M
}
