"""The config of GPT-2. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from model.families.config import ModelConfig, Size
from pipeline.core.config import Tag


class Gpt2Config(ModelConfig):
    """Defaults are those of the smallest GPT-2 (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019, Table 2)."""

    heads: ClassVar[Mapping[str, Any]] = {"lm": {}}

    usual_vocabulary: ClassVar[int] = 50_257
    usual_batch: ClassVar[int] = 512  # section 2.3

    family: Tag[Literal["gpt2"]] = "gpt2"
    max_position_embeddings: Size = 1024
    type_vocab_size: Literal[0] = 0
    hidden_act: Literal["gelu", "gelu_new", "relu"] = "gelu_new"
    layer_norm_eps: Annotated[float, Field(gt=0.0)] = 1e-5

    def own_objectives(self, pair_task: str | None) -> tuple[str, ...]:
        return ("lm",)


CONFIG = Gpt2Config
