"""The config of ALBERT: factorized embeddings, and which parameters layers share. No torch."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import ValidationInfo, field_validator

from model.families.config import ModelConfig, Probability, Size
from pipeline.core.config import Tag


class AlbertConfig(ModelConfig):
    """ALBERT (Lan et al., 2020); the defaults that BERT does not have are those of section 3 and of google-research/albert."""

    usual_vocabulary: ClassVar[int] = 30_000
    usual_batch: ClassVar[int] = 4096  # section 4.1

    family: Tag[Literal["albert"]] = "albert"
    hidden_act: Literal["gelu", "gelu_new", "relu"] = "gelu_new"
    hidden_dropout: Probability = 0.0  # as in the paper's version 2 models: section 4.8
    attention_dropout: Probability = 0.0

    embedding_size: Size = 128
    """Width of the word, position and segment embeddings (Table 3)."""

    shared: Literal["all", "attention", "feed-forward", "none"] = "all"
    """What all layers of a group share (Table 4): everything, attention or feed-forward block alone, or nothing."""

    num_hidden_groups: Size = 1
    """How many sets of parameters the layers are divided among, in equal runs (google-research/albert, modeling.py)."""

    inner_group_num: Size = 1
    """Layers in a group's set, run one after the other at each step of the stack."""

    @field_validator("num_hidden_groups")
    @classmethod
    def _groups_divide_layers(cls, groups: int, info: ValidationInfo) -> int:
        layers = info.data.get("num_hidden_layers", groups)
        if layers % groups:
            raise ValueError(
                f"num_hidden_layers ({layers}) must be divisible by num_hidden_groups ({groups}); change one of them"
            )
        return groups

    @field_validator("inner_group_num")
    @classmethod
    def _inner_is_shared_whole(cls, inner: int, info: ValidationInfo) -> int:
        if inner > 1 and info.data.get("shared", "all") != "all":
            raise ValueError(f"inner_group_num ({inner}) is for groups that share all parameters; use 1, or shared: all")
        return inner

    @property
    def distinct_layers(self) -> int:
        return self.num_hidden_groups * self.inner_group_num if self.shared == "all" else self.num_hidden_layers

    @property
    def word_width(self) -> int:
        return self.embedding_size

    def own_objectives(self, pair_task: str | None) -> tuple[str, ...]:
        return ("mlm", "sop")


CONFIG = AlbertConfig
