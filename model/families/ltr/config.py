"""The config of the left-to-right encoder. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from model.families.config import ModelConfig
from pipeline.core.config import Tag


class LtrConfig(ModelConfig):
    """The left-to-right model of BERT's ablations (Devlin et al., 2019, section 5.1 and Table 5)."""

    heads: ClassVar[Mapping[str, Any]] = {"lm": {}}

    family: Tag[Literal["ltr"]] = "ltr"

    bilstm: bool = False
    """In fine-tuning, a bidirectional LSTM of random weights stands on the encoder (Table 5, last row)."""

    def own_objectives(self, pair_task: str | None) -> tuple[str, ...]:
        return ("lm",)


CONFIG = LtrConfig
