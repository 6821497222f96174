"""Model configs: the shape of an encoder, stored in each checkpoint's `config.json`.

No torch, so that the command line validates configs quickly. Field names are those of Hugging
Face's `BertConfig` where it has them. Each family has a subclass in its module;
`cloze.model.families.registry.parse_model` selects it by the field `family`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, ValidationInfo, field_validator

from cloze.core.config import UnionTag, Values
from cloze.core.errors import UsageError

if TYPE_CHECKING:
    from cloze.pipeline.dataset.schema import DatasetInfo
    from cloze.pipeline.tokenizer.special import SpecialTokens

Size = Annotated[int, Field(gt=0)]
Probability = Annotated[float, Field(ge=0.0, lt=1.0)]
# module of a network -> the head that it computes, where names differ
HEAD_OF = {"generator": "masked_lm", "encoder.output": "seq2seq"}


class ModelConfig(Values):
    """Config of an encoder, with the defaults of BERT-base (Devlin et al., 2019, section 3)."""

    model_config = ConfigDict(validate_default=True)

    heads: ClassVar[Mapping[str, Any]] = {"masked_lm": {}, "pair": {"num_labels": 2}}
    """Pretraining heads, in the form of a checkpoint's `heads`."""

    own_objectives: ClassVar[tuple[str, ...]] = ()
    """Default objectives. Empty: mlm, and the objective of the dataset's pairs."""

    is_encoder_decoder: ClassVar[bool] = False
    needs_first_token: ClassVar[bool] = True
    """A decoder writes a text, reading the encoder's states."""

    computes_with_padding: ClassVar[bool] = False
    """The number of the padding token is part of the architecture, not only of a vocabulary."""

    supports_compile: ClassVar[bool] = True
    """torch.compile captures a whole training step and speeds it up."""

    supports_pruned_heads: ClassVar[bool] = True
    """Layers of the class may differ in their number of heads, see `heads_by_layer`."""

    supports_causal: ClassVar[bool] = True
    """Masked language models of the class can also run with causal attention."""

    supports_packed_rows: ClassVar[bool] = True
    """Models of the class can read rows of several sequences that do not see each other."""

    supports_onnx: ClassVar[bool] = True
    """The class can be exported as an ONNX file."""

    pre_norm: ClassVar[bool] = False
    """Normalize the input of each block and the encoder's output, not embeddings and sums."""

    pooler_activation: ClassVar[str] = "tanh"
    """Activation of the pooler, or of the dense layer of fine-tuning in its place."""

    head_activation: ClassVar[str] = ""
    """Activation of the masked LM head. Empty: `hidden_act`."""

    learns_from_teacher: ClassVar[bool] = False
    """The class has its own objectives and loss weights for training with a teacher."""

    position_terms: ClassVar[int] = 0
    """Number of relative-position terms of attention scores."""

    gated: ClassVar[bool] = False
    """The feed-forward block is gated."""

    start_token_id: ClassVar[int | None] = None
    """Id of the token that a decoder reads first; None: there is no decoder."""

    first_target_id: ClassVar[int | None] = None
    """Id with which a decoder's targets begin; None: with the text."""

    scaled_projections: ClassVar[tuple[str, ...]] = ()
    """Ends of the names of matrices whose initial weights are divided by the square root of twice
    the number of layers."""

    default_vocab_size: ClassVar[int] = 30_522
    """Vocabulary size of the paper, for cost estimates before a vocabulary exists."""

    default_batch_size: ClassVar[int] = 256
    """Sequences per step in the paper's pretraining, for cost estimates without a batch size."""

    family: UnionTag[str]
    """Model family; each family's class allows its own name."""

    vocab_size: Annotated[int, Field(ge=0)] = 0
    """Vocabulary size, V. 0: the size of the dataset's vocabulary, without padding."""

    hidden_size: Size = 768
    """Width of the hidden states, D."""

    num_hidden_layers: Size = 12
    """Number of encoder layers."""

    num_attention_heads: Size = 12
    """Attention heads per layer, N; must divide hidden_size."""

    heads_by_layer: tuple[Size, ...] = ()
    """Attention heads of each layer, if `cloze prune` has removed some; the width of a head stays.
    Empty: num_attention_heads everywhere."""

    intermediate_size: Size = 3072
    """Inner width of the feed-forward block."""

    max_position_embeddings: Size = 512
    """Maximum length of a row in tokens."""

    type_vocab_size: Size = 2
    """Number of segment types."""

    hidden_act: Literal["gelu", "gelu_new", "relu"] = "gelu"
    """Activation of the feed-forward block: gelu (exact), gelu_new (tanh approximation) or relu."""

    hidden_dropout: Probability = 0.1
    """Dropout after embeddings and blocks."""

    attention_dropout: Probability = 0.1
    """Dropout of the attention probabilities."""

    layer_norm_eps: Annotated[float, Field(gt=0.0)] = 1e-12
    """Epsilon of every LayerNorm."""

    initializer_range: Annotated[float, Field(gt=0.0)] = 0.02
    """Standard deviation of the truncated normal distribution of initial weights."""

    pad_token_id: Annotated[int, Field(ge=0)] = 0
    """Id of the padding token."""

    @field_validator("num_attention_heads")
    @classmethod
    def _attention_heads_divide_width(cls, heads: int, info: ValidationInfo) -> int:
        width = info.data.get("hidden_size")
        if width is not None and width % heads:
            nearest = max(1, round(width / heads)) * heads
            fitting = max(number for number in range(1, heads) if width % number == 0)
            raise ValueError(
                f"hidden_size ({width}) must be divisible by num_attention_heads ({heads}); use "
                f"{nearest}, or {fitting} heads"
            )
        return heads

    @field_validator("heads_by_layer")
    @classmethod
    def _heads_of_every_layer(cls, heads: tuple[int, ...], info: ValidationInfo) -> tuple[int, ...]:
        layers, most = info.data.get("num_hidden_layers"), info.data.get("num_attention_heads")
        if heads and not cls.supports_pruned_heads:
            raise ValueError(
                f"models of this family ({cls.__name__}) have equal layers; leave it out"
            )
        if heads and (len(heads) != layers or max(heads) > (most or 0)):
            raise ValueError(
                f"heads_by_layer ({list(heads)}) must have a number of at most {most} for each of "
                f"the {layers} layers"
            )
        return heads

    @classmethod
    def of_size(cls, num_hidden_layers: int, hidden_size: int, **changes: Any) -> ModelConfig:
        """Return a config with heads of width 64 and a feed-forward width of 4 D.

        Nearly all published sizes follow this rule (Devlin et al., footnote 3).
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
        """Width of one attention head, H."""
        return self.hidden_size // self.num_attention_heads

    def heads_of(self, layer: int) -> int:
        """Return the number of attention heads in layer `layer`, from 0."""
        return self.heads_by_layer[layer] if self.heads_by_layer else self.num_attention_heads

    @property
    def attention_width(self) -> int:
        """Width of all heads of a layer, the mean over layers; D unless heads were removed."""
        heads = sum(map(self.heads_of, range(self.num_hidden_layers)))
        return heads * self.head_size // self.num_hidden_layers

    @property
    def layer_weights(self) -> int:
        """Number of weights in the matrices of one layer."""
        matrices = 3 if self.gated else 2
        return self.hidden_size * (4 * self.attention_width + matrices * self.intermediate_size)

    @property
    def weights_outside_layers(self) -> int:
        """Number of weights outside the layers: embeddings, their projection, heads' matrices."""
        tables = (self.vocab_size + self.max_position_embeddings) * self.word_width
        projection = (
            self.hidden_size * self.word_width if self.word_width != self.hidden_size else 0
        )
        head = self.hidden_size * self.word_width if "masked_lm" in self.heads else 0
        return tables + projection + head + (self.hidden_size**2 if "pair" in self.heads else 0)

    def window_of(self, layer: int) -> int | None:
        """Return the tokens visible on each side in layer `layer`, from 0; None: the whole row."""
        del layer
        return None

    @property
    def distinct_layers(self) -> int:
        """Number of layers with their own weights."""
        return self.num_hidden_layers

    @property
    def predicted_vocab_size(self) -> int:
        """Number of tokens that pretraining can predict."""
        return self.vocab_size

    @property
    def word_width(self) -> int:
        """Width of the word embeddings."""
        return self.hidden_size

    @property
    def backbone(self) -> ModelConfig:
        """Config of encoder and pooler alone, as fine-tuning uses them."""
        return self

    @property
    def auxiliary_models(self) -> tuple[ModelConfig, ...]:
        """Configs of networks that are trained together with the model, on the same rows."""
        return ()

    def default_objectives(self, pair_task: str | None) -> tuple[str, ...]:
        """Return the family's objectives for a dataset with `pair_task`."""
        return self.own_objectives or (("mlm", pair_task) if pair_task else ("mlm",))

    def distillation_objectives(self, teacher: ModelConfig) -> tuple[str, ...]:
        """Return the objectives of training with a teacher; other families ignore the teacher."""
        del teacher
        return self.default_objectives(None)

    def teacher_temperature(self) -> float:
        """Return the softmax temperature for comparing teacher and student."""
        return 1.0

    def vocabulary_values(self, size: int, special: SpecialTokens) -> dict[str, Any]:
        """Return the values that a model takes from a tokenizer of `size` tokens.

        Raises:
            UsageError: the model reads a token before a text, and the tokenizer has none.
        """
        if self.needs_first_token and not special.begins:
            raise UsageError(
                f"a {type(self).model_fields['family'].default} model reads [CLS] before a text, "
                f"and T5's vocabulary has none; use another vocabulary, or a t5 model"
            )
        return {"vocab_size": size, "pad_token_id": special.pad}

    def loss_weights(self) -> Mapping[str, float]:
        """Return the loss weights by objective; objectives that are absent have weight 1."""
        return {}


def prediction_objectives(heads: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the objectives by which a checkpoint with these heads predicts tokens.

    Either `lm`, or the objectives of the masked_lm head: `mlm`, `mntp`, `clm`; or the noise of an
    encoder-decoder.
    """
    if "seq2seq" in heads:
        return tuple(heads["seq2seq"].get("objectives", ()))
    if "masked_lm" in heads:
        return tuple(heads["masked_lm"].get("objectives", ("mlm",)))
    return ("lm",) if "lm" in heads else ()


def for_dataset(model: ModelConfig, info: DatasetInfo) -> ModelConfig:
    """Return `model` with `vocab_size` 0 replaced by the dataset's vocabulary size, checked.

    Raises:
        UsageError: see `check_fits`.
    """
    if model.vocab_size == 0:
        model = model.model_copy(update=model.vocabulary_values(info.vocab_size, info.special))
    check_fits(model, info)
    return model


def check_fits(model: ModelConfig, info: DatasetInfo) -> None:
    """Check that the model can read the dataset's rows.

    Raises:
        UsageError: too few positions, too small a vocabulary (0 fits every one), or packed rows for
            a family that cannot read them.
    """
    if info.packed and not model.supports_packed_rows:
        raise UsageError(
            f"{model.family} models cannot read packed rows (recipe {info.recipe}); make a dataset "
            f"with `cloze dataset --recipe lm`"
        )
    if model.max_position_embeddings < info.length:
        raise UsageError(
            f"max_position_embeddings ({model.max_position_embeddings}) is less than the dataset's "
            f"length ({info.length}); use {info.length} or more, or make the dataset shorter"
        )
    if 0 < model.vocab_size < info.vocab_size:
        raise UsageError(
            f"vocab_size ({model.vocab_size}) is less than the dataset's vocabulary "
            f"({info.vocab_size}); use {info.vocab_size}, or 0 to take the dataset's"
        )
