"""Static word vectors as a model without layers, made by `cloze static-vectors`.

A word's state is its vector, whatever its sentence. So every task, table and command that reads a
checkpoint also reads word2vec, GloVe and fastText vectors, by `--frozen embeddings`. Pretraining it
trains vectors whose products predict the next word (bigrams). It has no Hugging Face format.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from cloze.core.config import UnionTag
from cloze.model.families.config import ModelConfig, Size

if TYPE_CHECKING:
    from cloze.labs.left_to_right import LeftToRightModel
    from cloze.model.layers.heads import MeanState


class StaticConfig(ModelConfig):
    """One vector per word (Mikolov et al., 2013; Pennington et al., 2014)."""

    heads: ClassVar[Mapping[str, Any]] = {"lm": {}}
    own_objectives: ClassVar[tuple[str, ...]] = ("lm",)
    supports_compile: ClassVar[bool] = False
    supports_pruned_heads: ClassVar[bool] = False
    supports_causal: ClassVar[bool] = False

    family: UnionTag[Literal["static"]] = "static"
    hidden_size: Size = 300
    num_hidden_layers: Literal[0] = 0
    num_attention_heads: Size = 1
    type_vocab_size: Literal[0] = 0

    @property
    def layer_weights(self) -> int:
        return 0

    @property
    def weights_outside_layers(self) -> int:
        return self.vocab_size * self.hidden_size

    @property
    def attention_width(self) -> int:
        """Zero: there are no layers."""
        return 0


CONFIG = StaticConfig

PRESETS: dict[str, ModelConfig] = {"static-tiny": StaticConfig(hidden_size=128)}


def build_model(config: ModelConfig) -> LeftToRightModel:
    from torch import nn

    from cloze.labs.before_bert.bilm import TableEncoder
    from cloze.labs.left_to_right import LeftToRightModel, TiedHead
    from cloze.model.families.models import embeddings

    table = embeddings(config, max_positions=0, norm=nn.Identity())
    return LeftToRightModel(TableEncoder(table, []), TiedHead())


def build_pooler(config: ModelConfig) -> MeanState:
    from cloze.model.layers.heads import MeanState

    return MeanState()
