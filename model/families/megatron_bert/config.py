"""The config of Megatron-LM's BERT: BERT's. No torch."""

from __future__ import annotations

from typing import Literal

from model.families.config import ModelConfig
from pipeline.core.config import Tag


class MegatronBertConfig(ModelConfig):
    """Megatron-LM's BERT (Shoeybi et al., 2019)."""

    family: Tag[Literal["megatron-bert"]] = "megatron-bert"


CONFIG = MegatronBertConfig
