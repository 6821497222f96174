"""Left-to-right model: BERT with causal attention (Devlin et al., 2019, Table 5, "LTR & No NSP").

The masked LM head predicts the next token. In fine-tuning, a sequence's vector is computed from its
last token, which attends to all others, or with `bilstm` from the first state of a bidirectional
LSTM.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from cloze.core.config import UnionTag
from cloze.model.families import bert
from cloze.model.families.config import ModelConfig
from cloze.model.families.key_map import KeyMap

if TYPE_CHECKING:
    from cloze.labs.left_to_right import LeftToRightModel
    from cloze.model.layers.heads import Pooler


class LtrConfig(ModelConfig):
    """Left-to-right model of BERT's ablations (Devlin et al., 2019, section 5.1, Table 5)."""

    heads: ClassVar[Mapping[str, Any]] = {"lm": {}}
    own_objectives: ClassVar[tuple[str, ...]] = ("lm",)

    family: UnionTag[Literal["ltr"]] = "ltr"

    bilstm: bool = False
    """With fine-tuning: add a randomly initialized bidirectional LSTM on top of the encoder (Table
    5, last row)."""


CONFIG = LtrConfig

# The left-to-right model's size: BERT-base's (Devlin et al., 2019, Table 5, "LTR & No NSP").
PRESETS: dict[str, ModelConfig] = {
    "ltr-tiny": LtrConfig.of_size(2, 128),
    "ltr-base": LtrConfig.of_size(12, 768),
}


def build_model(config: LtrConfig) -> LeftToRightModel:
    from cloze.labs.left_to_right import LeftToRightModel
    from cloze.model.families.models import encoder, masked_lm

    return LeftToRightModel(encoder(config, causal=True), masked_lm(config))


def build_pooler(config: LtrConfig) -> Pooler:
    from cloze.labs.left_to_right import LastPooler
    from cloze.labs.papers.bilstm import LstmPooler

    return LstmPooler(config.hidden_size) if config.bilstm else LastPooler(config.hidden_size)


_HEAD = [
    (cloze_name.replace("masked_lm.", "lm."), hf_name)
    for cloze_name, hf_name in bert.HEAD_ROWS
    if cloze_name.startswith("masked_lm.")
]


class LeftToRightFormat(bert.BertFormat):
    family = "ltr"
    keys = KeyMap(bert.encoder_rows("bert") + _HEAD)
    fixed = {**bert.HUB.fixed, "is_decoder": True}
    architectures = {frozenset({"lm"}): "BertLMHeadModel"}


HUB = LeftToRightFormat()
