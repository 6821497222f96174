"""The config of RoBERTa: no pair head, one segment. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from model.families.config import ModelConfig, Size
from pipeline.core.config import Tag


class RobertaConfig(ModelConfig):
    """Defaults are those of RoBERTa-base where Hugging Face's `RobertaConfig` has them."""

    heads: ClassVar[Mapping[str, Any]] = {"masked_lm": {}}

    usual_vocabulary: ClassVar[int] = 50_265
    usual_batch: ClassVar[int] = 8192  # section 5

    family: Tag[Literal["roberta"]] = "roberta"
    type_vocab_size: Size = 1
    max_position_embeddings: Size = 512
    """The longest row that the model can read, in pieces; Hugging Face counts the padding's rows of the table too (514 for 512)."""
    pad_token_id: Annotated[int, Field(ge=0)] = 1

    def own_objectives(self, pair_task: str | None) -> tuple[str, ...]:
        return ("mlm",)


CONFIG = RobertaConfig
