"""The config of RoBERTa: no pair head, one segment. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from cloze.core.config import UnionTag
from cloze.model.families.config import ModelConfig, Size


class RobertaConfig(ModelConfig):
    """RoBERTa; defaults are those of Hugging Face's `RobertaConfig` where it has RoBERTa-base's."""

    heads: ClassVar[Mapping[str, Any]] = {"masked_lm": {}}

    default_vocab_size: ClassVar[int] = 50_265
    default_batch_size: ClassVar[int] = 8192  # section 5

    family: UnionTag[Literal["roberta"]] = "roberta"
    type_vocab_size: Size = 1
    max_position_embeddings: Size = 512
    """Maximum length of a row in tokens. Hugging Face also counts the padding rows of the table
    (514 for 512)."""
    pad_token_id: Annotated[int, Field(ge=0)] = 1

    def default_objectives(self, pair_task: str | None) -> tuple[str, ...]:
        return ("mlm",)


CONFIG = RobertaConfig

# RoBERTa's sizes (Liu et al., 2019, section 5): BERT's with 50K byte-level BPE tokens;
# layer_norm_eps is fairseq's.
PRESETS: dict[str, ModelConfig] = {
    "roberta-tiny": RobertaConfig.of_size(2, 128, layer_norm_eps=1e-5),
    # 125M parameters: 124.7M with the LM head
    "roberta-base": RobertaConfig.of_size(12, 768, layer_norm_eps=1e-5),
    # 355M: 355.4M with the LM head
    "roberta-large": RobertaConfig.of_size(24, 1024, layer_norm_eps=1e-5),
}
