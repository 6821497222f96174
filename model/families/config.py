"""The shape of a model, as a config: what `pretrain` builds, what every checkpoint carries in its `config.json`.

No torch here: the command line and the orchestrator validate a model's config without loading a framework.
Field names are those of Hugging Face's `BertConfig` where one exists. Each family has a class of its own in its folder, which
says what it has beside this one; `model.families.presets.parse_model` finds it by the field `family`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from pipeline.core.config import Tag
from pipeline.core.errors import UsageError

if TYPE_CHECKING:
    from pipeline.dataset.schema import DatasetInfo

Size = Annotated[int, Field(gt=0)]
Probability = Annotated[float, Field(ge=0.0, lt=1.0)]


class ModelConfig(BaseModel):
    """One encoder. The defaults are those of BERT-base (Devlin et al., 2019, section 3; google-research/bert, modeling.py)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    heads: ClassVar[Mapping[str, Any]] = {"masked_lm": {}, "pair": {"num_labels": 2}}
    """Of every model of the class: what stands on the encoder in pretraining, as a checkpoint's `heads` says it."""

    compiles: ClassVar[bool] = True
    """Of every model of the class: whether torch.compile takes a training step whole and gains by it."""

    both_ways: ClassVar[bool] = True
    """Of every model of the class: whether one that fills masks can also be run from left to right."""

    learns_from_teacher: ClassVar[bool] = False
    """Of every model of the class: whether it can be a student. Then its `model.py` has `first_weights`."""

    usual_vocabulary: ClassVar[int] = 30_522
    """Of every model of the class: pieces of its paper's vocabulary, for plans of a training whose vocabulary is not made yet."""

    usual_batch: ClassVar[int] = 256
    """Of every model of the class: sequences a step in its paper's pretraining, for plans that name none."""

    family: Tag[str]
    """The model family; each family's class allows its own name."""

    vocab_size: Annotated[int, Field(ge=0)] = 0
    """Pieces of the vocabulary, V; 0 takes the size of the dataset's, exactly and without padding."""

    hidden_size: Size = 768
    """Width of the hidden states, D."""

    num_hidden_layers: Size = 12
    """How many encoder layers."""

    num_attention_heads: Size = 12
    """Attention heads of a layer, N; hidden_size must be a multiple of it."""

    intermediate_size: Size = 3072
    """The width inside the feed-forward block."""

    max_position_embeddings: Size = 512
    """The longest row that the model can read, in pieces."""

    type_vocab_size: Size = 2
    """How many segments a row can have."""

    hidden_act: Literal["gelu", "gelu_new", "relu"] = "gelu"
    """The feed-forward block's activation; gelu is the exact one, gelu_new its tanh approximation."""

    hidden_dropout: Probability = 0.1
    """Share of the activations dropped after embeddings and blocks while training."""

    attention_dropout: Probability = 0.1
    """Share of the attention probabilities dropped while training."""

    layer_norm_eps: Annotated[float, Field(gt=0.0)] = 1e-12
    """Added to the variance in every LayerNorm."""

    initializer_range: Annotated[float, Field(gt=0.0)] = 0.02
    """Standard deviation of the truncated normal that weights start from."""

    pad_token_id: Annotated[int, Field(ge=0)] = 0
    """The id that fills a row up to the batch's length."""

    @field_validator("num_attention_heads")
    @classmethod
    def _attention_heads_divide_width(cls, heads: int, info: ValidationInfo) -> int:
        width = info.data.get("hidden_size")
        if width is not None and width % heads:
            nearest = max(1, round(width / heads)) * heads
            raise ValueError(
                f"hidden_size ({width}) must be divisible by num_attention_heads ({heads}); use {nearest} or change the heads"
            )
        return heads

    @classmethod
    def of_size(cls, num_hidden_layers: int, hidden_size: int, **changes: Any) -> ModelConfig:
        """A config by the rule that nearly all published sizes follow: attention heads of width 64, a feed-forward block four
        times as wide as the hidden states (Devlin et al., footnote 3). `changes` says what does not follow it.
        """
        values = {
            "num_hidden_layers": num_hidden_layers,
            "hidden_size": hidden_size,
            "num_attention_heads": hidden_size // 64,
            "intermediate_size": 4 * hidden_size,
        }
        return cls(**{**values, **changes})

    @property
    def head_size(self) -> int:
        """H, the width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def layer_weights(self) -> int:
        """Weights of a layer's matrices."""
        return 4 * self.hidden_size**2 + 2 * self.hidden_size * self.intermediate_size

    @property
    def weights_beside_layers(self) -> int:
        """Weights outside of the layers: the embeddings, what makes them as wide as a layer, and the heads' matrices."""
        tables = (self.vocab_size + self.max_position_embeddings) * self.word_width
        widened = self.hidden_size * self.word_width if self.word_width != self.hidden_size else 0
        head = self.hidden_size * self.word_width if "masked_lm" in self.heads else 0
        return tables + widened + head + (self.hidden_size**2 if "pair" in self.heads else 0)

    @property
    def position_terms(self) -> int:
        """Products with relative positions that an attention score is the sum of, beside that of the contents."""
        return 0

    @property
    def gated(self) -> bool:
        """Whether the feed-forward block multiplies what it raised with a gate."""
        return False

    def window_of(self, layer: int) -> int | None:
        """How far a token sees to either side in the layer of this number, from 0; None: it sees the whole row."""
        del layer
        return None

    @property
    def distinct_layers(self) -> int:
        """Layers with weights of their own."""
        return self.num_hidden_layers

    @property
    def word_width(self) -> int:
        """Width of the word embeddings."""
        return self.hidden_size

    @property
    def backbone(self) -> ModelConfig:
        """Of what fine-tuning keeps: itself, where pretraining adds nothing to encoder and pooler."""
        return self

    @property
    def beside(self) -> tuple[ModelConfig, ...]:
        """Networks that are trained with it, on the same rows."""
        return ()

    def own_objectives(self, pair_task: str | None) -> tuple[str, ...]:
        """What the family trains on by itself: names in `model.objectives.OBJECTIVES`, for a dataset with that pair task."""
        return ("mlm",) if pair_task is None else ("mlm", pair_task)

    def taught_objectives(self, teacher: ModelConfig) -> tuple[str, ...]:
        """What it trains on beside a teacher of that config. Families that learn from none have nothing to add."""
        del teacher
        return self.own_objectives(None)

    def teacher_temperature(self) -> float:
        """The temperature of a teacher's and the student's distributions where they are compared; 1 leaves them as they are."""
        return 1.0

    def loss_weights(self) -> Mapping[str, float]:
        """How much each objective counts in the loss; 1 for those that are not named."""
        return {}


def ways(heads: Mapping[str, Any]) -> tuple[str, ...]:
    """How a checkpoint with these heads names tokens: `lm`, or the objectives of its masked_lm head, of `mlm`, `mntp` and `clm`."""
    if "masked_lm" in heads:
        return tuple(heads["masked_lm"].get("objectives", ("mlm",)))
    return ("lm",) if "lm" in heads else ()


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
