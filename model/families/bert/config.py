"""The config of BERT: the common one. No torch."""

from __future__ import annotations

from typing import Literal

from model.families.config import ModelConfig
from pipeline.core.config import Tag


class BertConfig(ModelConfig):
    """BERT (Devlin et al., 2019), whose values are the common defaults."""

    family: Tag[Literal["bert"]] = "bert"


CONFIG = BertConfig
