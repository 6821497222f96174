"""ELMo (Peters et al., 2018): two language models of LSTMs, one per direction, over characters.

Its rows are words (`cloze vocab --kind words`), each read by its characters. It has no Hugging Face
format. In fine-tuning a text's vector is the mean of its states; the paper's use is by `--frozen
sum-with-embeddings`, its equation 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from cloze.core.config import UnionTag
from cloze.labs.before_bert.static import build_pooler as build_pooler
from cloze.model.families.config import ModelConfig, Size

if TYPE_CHECKING:
    from cloze.labs.before_bert.bilm import BiLmModel


class ElmoConfig(ModelConfig):
    """ELMo; defaults are the paper's model (93.6M weights without softmax; bilm-tf)."""

    heads: ClassVar[Mapping[str, Any]] = {"bilm": {}}
    own_objectives: ClassVar[tuple[str, ...]] = ("bilm",)
    supports_compile: ClassVar[bool] = False
    supports_pruned_heads: ClassVar[bool] = False
    supports_causal: ClassVar[bool] = False
    supports_packed_rows: ClassVar[bool] = False
    default_vocab_size: ClassVar[int] = 793_471  # of the 1 Billion Word Benchmark
    default_batch_size: ClassVar[int] = 384

    family: UnionTag[Literal["elmo"]] = "elmo"
    hidden_size: Annotated[int, Field(gt=0, multiple_of=2)] = 1024
    num_hidden_layers: Size = 2
    num_attention_heads: Size = 1
    intermediate_size: Size = 4096
    type_vocab_size: Literal[0] = 0

    filters: Annotated[tuple[tuple[Size, Size], ...], Field(min_length=1)] = (
        (1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024),
    )  # fmt: skip
    """Width in characters and number of each group of convolutions."""

    character_size: Size = 16
    """Width of the characters' vectors."""

    highway_layers: Annotated[int, Field(ge=0)] = 2
    """Number of highway layers after the convolutions."""

    softmax_size: Annotated[int, Field(ge=0)] = 0
    """Number of words that can be predicted, the most frequent ones; others count as [UNK]. 0: the
    whole vocabulary."""

    @property
    def predicted_vocab_size(self) -> int:
        return min(self.softmax_size or self.vocab_size, self.vocab_size)

    @property
    def layer_weights(self) -> int:
        width, cells = self.hidden_size // 2, self.intermediate_size
        return 2 * cells * (8 * width + width)

    @property
    def weights_outside_layers(self) -> int:
        total = sum(number for _, number in self.filters)
        convolutions = self.character_size * sum(width * number for width, number in self.filters)
        words = self.predicted_vocab_size * (self.hidden_size // 2)
        return convolutions + total * (2 * self.highway_layers * total + self.hidden_size) + words

    @property
    def attention_width(self) -> int:
        """Zero: the layers have no attention."""
        return 0


CONFIG = ElmoConfig

# Sizes of the released models (allennlp.org/elmo): cells of 4096, 2048 and 1024.
PRESETS: dict[str, ModelConfig] = {
    "elmo-tiny": ElmoConfig(
        hidden_size=128,
        intermediate_size=256,
        filters=((1, 16), (2, 16), (3, 32), (4, 64)),
        highway_layers=1,
    ),
    "elmo-small": ElmoConfig(hidden_size=256, intermediate_size=1024, highway_layers=1),
    "elmo-medium": ElmoConfig(hidden_size=512, intermediate_size=2048, highway_layers=1),
    "elmo": ElmoConfig(),
}


def build_model(config: ElmoConfig) -> BiLmModel:
    from cloze.labs.before_bert import bilm

    size = config.hidden_size // 2
    embeddings = bilm.CharacterEmbeddings(
        config.vocab_size,
        filters=config.filters,
        character_size=config.character_size,
        highway_layers=config.highway_layers,
        size=size,
        dropout=config.hidden_dropout,
    )
    layers = [
        bilm.BiLmLayer(
            size, config.intermediate_size, residual=number > 0, dropout=config.hidden_dropout
        )
        for number in range(config.num_hidden_layers)
    ]
    words = config.predicted_vocab_size
    head = bilm.BiLmHead(size, words, every_word=words == config.vocab_size)
    return bilm.BiLmModel(bilm.BiLmEncoder(embeddings, layers), head)
