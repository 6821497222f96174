"""The config of the left-to-right encoder. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from cloze.core.config import UnionTag
from cloze.model.families.config import ModelConfig


class LtrConfig(ModelConfig):
    """Left-to-right model of BERT's ablations (Devlin et al., 2019, section 5.1, Table 5)."""

    heads: ClassVar[Mapping[str, Any]] = {"lm": {}}

    family: UnionTag[Literal["ltr"]] = "ltr"

    bilstm: bool = False
    """With fine-tuning: add a randomly initialized bidirectional LSTM on top of the encoder (Table
    5, last row)."""

    def default_objectives(self, pair_task: str | None) -> tuple[str, ...]:
        return ("lm",)


CONFIG = LtrConfig

# The left-to-right model's size: BERT-base's (Devlin et al., 2019, Table 5, "LTR & No NSP").
PRESETS: dict[str, ModelConfig] = {
    "ltr-tiny": LtrConfig.of_size(2, 128),
    "ltr-base": LtrConfig.of_size(12, 768),
}
