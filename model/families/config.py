"""The shape of a model, as a config: what `pretrain` builds, what every checkpoint carries in its `config.json`.

No torch here: the command line and the orchestrator validate a model's config without loading a framework.
Field names are those of Hugging Face's `BertConfig` where one exists. A family that has more to say, or less, has a config
class of its own beside its builder (`model.families.table.FAMILIES`), which `parse_model` finds by the field `family`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from model.families.table import FAMILIES, config_class
from pipeline.core.config import Tag
from pipeline.core.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from pipeline.dataset.schema import DatasetInfo

Size = Annotated[int, Field(gt=0)]
Probability = Annotated[float, Field(ge=0.0, lt=1.0)]


class ModelConfig(BaseModel):
    """One encoder. The defaults are those of BERT-base (Devlin et al., 2019, section 3; google-research/bert, modeling.py).

    Attributes:
        family: a name in `model.families.table.FAMILIES`.
        vocab_size: V; 0 takes the size of the dataset's vocabulary, exactly and without padding.
        hidden_size: D.
        num_hidden_layers: how many encoder layers.
        num_attention_heads: N; D must be a multiple of it.
        intermediate_size: the width inside the feed-forward block.
        max_position_embeddings: the longest L that the model can read.
        type_vocab_size: how many segments a row can have.
        hidden_act: the feed-forward block's activation; `gelu` is the exact one, `gelu_new` its tanh approximation.
        hidden_dropout: share of the activations dropped after embeddings and blocks while training.
        attention_dropout: share of the attention probabilities dropped while training.
        layer_norm_eps: added to the variance in every LayerNorm.
        initializer_range: standard deviation of the truncated normal that weights start from.
        pad_token_id: the id that fills a row up to the batch's length.

    Of every model of the class:
        heads: what stands on the encoder in pretraining, as a checkpoint's `heads` says it.
        compiles: whether torch.compile takes a training step whole and gains by it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    heads: ClassVar[Mapping[str, Any]] = {"masked_lm": {}, "pair": {"num_labels": 2}}
    compiles: ClassVar[bool] = True

    family: Tag[str] = "bert"
    vocab_size: Annotated[int, Field(ge=0)] = 0
    hidden_size: Size = 768
    num_hidden_layers: Size = 12
    num_attention_heads: Size = 12
    intermediate_size: Size = 3072
    max_position_embeddings: Size = 512
    type_vocab_size: Size = 2
    hidden_act: Literal["gelu", "gelu_new", "relu"] = "gelu"
    hidden_dropout: Probability = 0.1
    attention_dropout: Probability = 0.1
    layer_norm_eps: Annotated[float, Field(gt=0.0)] = 1e-12
    initializer_range: Annotated[float, Field(gt=0.0)] = 0.02
    pad_token_id: Annotated[int, Field(ge=0)] = 0

    @field_validator("family")
    @classmethod
    def _known_family(cls, value: str) -> str:
        if value not in FAMILIES:
            raise ValueError(f"there is no such model family; {did_you_mean(value, FAMILIES)}")
        return value

    @field_validator("num_attention_heads")
    @classmethod
    def _heads_divide_width(cls, heads: int, info: ValidationInfo) -> int:
        width = info.data.get("hidden_size")
        if width is not None and width % heads:
            nearest = max(1, round(width / heads)) * heads
            raise ValueError(
                f"hidden_size ({width}) must be divisible by num_attention_heads ({heads}); use {nearest} or change the heads"
            )
        return heads

    @property
    def head_size(self) -> int:
        """H, the width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    def own_objectives(self, pair_task: str | None) -> tuple[str, ...]:
        """What the family trains on by itself: names in `model.objectives.OBJECTIVES`, for a dataset with that pair task."""
        return ("mlm",) if pair_task is None else ("mlm", pair_task)

    def taught_objectives(self, teacher: ModelConfig) -> tuple[str, ...]:
        """What it trains on beside a teacher of that config. Families that learn from none have nothing to add."""
        del teacher
        return self.own_objectives(None)

    def loss_weights(self) -> Mapping[str, float]:
        """How much each objective counts in the loss; 1 for those that are not named."""
        return {}


def parse_model(values: Mapping[str, Any]) -> ModelConfig:
    """The config of `values`, of the class that their `family` (bert by default) has.

    Raises:
        pydantic.ValidationError: a key is unknown to the family, or a value out of range.
    """
    family = values.get("family", "bert")
    return config_class(family if family in FAMILIES else "bert").model_validate(dict(values))


def for_dataset(model: ModelConfig, info: DatasetInfo) -> ModelConfig:
    """`model` with what it leaves open (`vocab_size` 0) taken from the dataset, checked against it.

    Raises:
        UsageError: see `check_fits`.
    """
    if model.vocab_size == 0:
        model = model.model_copy(update={"vocab_size": info.vocab_size, "pad_token_id": info.special.pad})
    check_fits(model, info)
    return model


def check_fits(model: ModelConfig, info: DatasetInfo) -> None:
    """Refuse a model that cannot read the dataset's rows, before any training starts.

    Raises:
        UsageError: too few positions, or too small a vocabulary (0 fits every one).
    """
    if model.max_position_embeddings < info.length:
        raise UsageError(
            f"max_position_embeddings ({model.max_position_embeddings}) is less than the dataset's length ({info.length});"
            f" use {info.length} or more, or make the dataset shorter"
        )
    if 0 < model.vocab_size < info.vocab_size:
        raise UsageError(
            f"vocab_size ({model.vocab_size}) is less than the dataset's vocabulary ({info.vocab_size});"
            f" use {info.vocab_size}, or 0 to take the dataset's"
        )
