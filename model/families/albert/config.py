"""The config of ALBERT: factorized embeddings and parameters shared by layers. No torch."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import ValidationInfo, field_validator

from cloze.core.config import UnionTag
from cloze.model.families.config import ModelConfig, Probability, Size


class AlbertConfig(ModelConfig):
    """ALBERT (Lan et al., 2020, section 3; google-research/albert for the other defaults)."""

    default_vocab_size: ClassVar[int] = 30_000
    default_batch_size: ClassVar[int] = 4096  # section 4.1

    family: UnionTag[Literal["albert"]] = "albert"
    hidden_act: Literal["gelu", "gelu_new", "relu"] = "gelu_new"
    hidden_dropout: Probability = 0.0  # as in the paper's version 2 models (section 4.8)
    attention_dropout: Probability = 0.0

    embedding_size: Size = 128
    """Width of the word, position and segment embeddings (Table 3)."""

    shared: Literal["all", "attention", "feed-forward", "none"] = "all"
    """Parameters that the layers of a group share: all, attention, feed-forward or none (Table
    4)."""

    num_hidden_groups: Size = 1
    """Number of parameter sets, each used by consecutive layers (google-research/albert,
    modeling.py)."""

    inner_group_num: Size = 1
    """Layers per parameter set, applied in sequence."""

    @field_validator("num_hidden_groups")
    @classmethod
    def _groups_divide_layers(cls, groups: int, info: ValidationInfo) -> int:
        layers = info.data.get("num_hidden_layers", groups)
        if layers % groups:
            raise ValueError(
                f"num_hidden_layers ({layers}) must be divisible by num_hidden_groups ({groups}); "
                f"change one of them"
            )
        return groups

    @field_validator("inner_group_num")
    @classmethod
    def _inner_is_shared_whole(cls, inner: int, info: ValidationInfo) -> int:
        if inner > 1 and info.data.get("shared", "all") != "all":
            raise ValueError(
                f"inner_group_num ({inner}) is for groups that share all parameters; use 1, or "
                f"shared: all"
            )
        return inner

    @property
    def distinct_layers(self) -> int:
        return (
            self.num_hidden_groups * self.inner_group_num
            if self.shared == "all"
            else self.num_hidden_layers
        )

    @property
    def word_width(self) -> int:
        return self.embedding_size

    def default_objectives(self, pair_task: str | None) -> tuple[str, ...]:
        return ("mlm", "sop")


CONFIG = AlbertConfig

# ALBERT's sizes (Lan et al., 2020, Table 1); all have embeddings of width 128. Counts are of
# encoder and pooler.
PRESETS: dict[str, ModelConfig] = {
    "albert-tiny": AlbertConfig.of_size(2, 128),
    "albert-base": AlbertConfig.of_size(12, 768),  # 12M parameters in the table, 11.7M counted
    "albert-large": AlbertConfig.of_size(24, 1024),  # 18M, 17.7M counted
    # 60M, 58.7M counted; 16 heads of width 128 (google-research/albert, albert_config.json)
    "albert-xlarge": AlbertConfig.of_size(24, 2048, num_attention_heads=16),
    # 235M in the paper; 222.6M counted, as in the released model
    "albert-xxlarge": AlbertConfig.of_size(12, 4096),
}
