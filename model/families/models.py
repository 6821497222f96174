"""Models of any family: construction, and loading of weights.

`encoder`, `layer` and `masked_lm` build the parts that most families share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from cloze.core.errors import DataError, UsageError
from cloze.model.families.config import ModelConfig
from cloze.model.families.pretraining import PretrainingModel
from cloze.model.families.registry import FAMILIES
from cloze.model.layers.attention import SelfAttention
from cloze.model.layers.cpu import Linear
from cloze.model.layers.embeddings import Embeddings, merged
from cloze.model.layers.encoder import Encoder, EncoderLayer, FeedForward
from cloze.model.layers.heads import MaskedLMHead, Pooler, initialize
from cloze.pipeline import tokenizer
from cloze.pipeline.tokenizer.tokenizer import Tokenizer


class Transform(Protocol):
    """Pooler whose layers also precede heads on every position."""

    def transform(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Map hidden, float [B, L, D], with attention_mask, bool [B, L], to float [B, L, D]."""
        ...


class Backbone(NamedTuple):
    """Modules that fine-tuning keeps: encoder and pooler (states to a vector per sequence)."""

    encoder: nn.Module
    pooler: nn.Module

    @property
    def transforms(self) -> bool:
        """True if the pooler is a `Transform`, which precedes heads on every position."""
        return hasattr(self.pooler, "transform")


def new_model(config: ModelConfig) -> PretrainingModel:
    """Build the pretraining model in fp32, initialized from torch's current random state.

    Raises:
        UsageError: `vocab_size` is still 0, or the family is unknown.
    """
    if config.vocab_size == 0:
        raise UsageError(
            "vocab_size (0) is not set; set it, or take it from a dataset with for_dataset"
        )
    build = getattr(FAMILIES.find(config.family), "build_model", _build_model)
    model: PretrainingModel = build(config)
    initialize(model, config.initializer_range)
    if config.scaled_projections:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith(config.scaled_projections):
                    # GPT-2, section 2.3: residual layers by 1 / sqrt(N), of which a block has two.
                    parameter.div_(math.sqrt(2 * config.num_hidden_layers))
    return model


def _build_model(config: ModelConfig) -> PretrainingModel:
    """Build BERT's model, with what the family's config says of it."""
    pairs = "pair" in config.heads
    return PretrainingModel(
        encoder(config),
        masked_lm(config),
        pooler=_build_pooler(config) if pairs else None,
        pair=Linear(config.hidden_size, 2) if pairs else None,
    )


def load_model(config: ModelConfig, state: Mapping[str, Tensor]) -> PretrainingModel:
    """Build the pretraining model with the weights of `state`, in evaluation mode.

    Args:
        state: tensors by Cloze's parameter names; used without copying.

    Raises:
        DataError: a parameter is missing, unknown or has another shape; the message names it.
    """
    model = _without_weights(config)  # all weights are replaced, so none is initialized
    _check(config, model.state_dict(), state)
    # `assign`: tensors take the place of the meta device's, which have no memory to copy to.
    model.load_state_dict(dict(state), assign=True)
    return model.eval()


def new_backbone(config: ModelConfig) -> Backbone:
    """Build encoder and pooler, initialized from torch's current random state."""
    model = new_model(config.backbone)
    pooler = model.pooler
    if pooler is None:
        pooler = _build_pooler(config)
        initialize(pooler, config.initializer_range)
    return Backbone(encoder=model.encoder, pooler=pooler)


def load_backbone(config: ModelConfig, state: Mapping[str, Tensor]) -> Backbone:
    """Build encoder and pooler with the weights of `state`, in evaluation mode; heads are ignored.

    A pooler that `state` does not contain is initialized.

    Raises:
        DataError: as for `load_model`.
    """
    backbone, state = new_backbone(config), merged(state)
    pooled = any(name.startswith(("pooler.", "pair.")) for name in state)
    for prefix, module in (("encoder.", backbone.encoder), ("pooler.", backbone.pooler)):
        if prefix == "pooler." and not pooled:
            continue
        weights = {name: tensor for name, tensor in state.items() if name.startswith(prefix)}
        model = {prefix + name: tensor for name, tensor in module.state_dict().items()}
        _check(config, model, weights)
        module.load_state_dict(
            {name.removeprefix(prefix): tensor for name, tensor in weights.items()}, assign=True
        )
        module.eval()
    return backbone


def meta_pooler(config: ModelConfig) -> nn.Module:
    """Build the fine-tuning pooler on the meta device."""
    with torch.device("meta"):
        return _build_pooler(config)


def _build_pooler(config: ModelConfig) -> nn.Module:
    build = getattr(FAMILIES.find(config.family), "build_pooler", None)
    activation = config.pooler_activation
    return Pooler(config.hidden_size, activation) if build is None else build(config)


def is_backbone(name: str) -> bool:
    """Return True if fine-tuning keeps the parameter `name`: encoder or pooler."""
    return name.startswith(("encoder.", "pooler."))


def attach(
    network: nn.Module,
    pieces: Tokenizer | str,
    path: str = "",
    metadata: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Give each module with a method `attach` what is not in its weights.

    Args:
        pieces: tokenizer of the network, or its directory, which is read if a module asks.
        path: checkpoint of the network, or directory of its training.
        metadata: metadata of its task; empty: a pretraining.
    """
    asking: list[Any] = [part for part in network.modules() if hasattr(part, "attach")]
    if asking:
        pieces = tokenizer.load(pieces) if isinstance(pieces, str) else pieces
        for part in asking:
            part.attach(pieces, path, metadata)


# Modules that only training uses: a student's projection, and the retriever with its copies.
DISTILLATION = "distillation"
T = TypeVar("T")


def without_training_modules(state: Mapping[str, T]) -> dict[str, T]:
    """Return a network's weights without those of modules that only training uses."""
    own = (f"{DISTILLATION}.", "retrieval.", "beside_")
    return {name: state[name] for name in state if not name.startswith(own)}


_POSITION = "encoder.embeddings.position.weight"


def first_weights(
    student: ModelConfig, teacher: ModelConfig, state: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return a student's initial weights: "one layer out of two" of the teacher (DistilBERT, 2).

    Student layer i is teacher layer i * T // S, for T and S layers. Embeddings and the LM head are
    copied if the teacher has them. Families share what has equal names.

    Returns:
        Clones of the teacher's tensors whose name and shape fit; empty if widths differ.
    """
    if (student.hidden_size, student.intermediate_size) != (
        teacher.hidden_size,
        teacher.intermediate_size,
    ):
        return {}
    state, shapes = merged(state), parameter_shapes(student)
    weights = {
        name: tensor for name, tensor in state.items() if not name.startswith("encoder.layers.")
    }
    layers, teacher_layers = student.num_hidden_layers, teacher.num_hidden_layers
    for number in range(layers):
        prefix = f"encoder.layers.{number * teacher_layers // layers}."
        layer = {
            name.removeprefix(prefix): tensor
            for name, tensor in state.items()
            if name.startswith(prefix)
        }
        weights |= {f"encoder.layers.{number}.{name}": tensor for name, tensor in layer.items()}
    if _POSITION in weights and _POSITION in shapes:  # relative positions have no table
        # RoBERTa's table begins with rows that no position has.
        own_offset = shapes[_POSITION][0] - student.max_position_embeddings
        offset = len(weights[_POSITION]) - teacher.max_position_embeddings - own_offset
        if offset >= 0:
            weights[_POSITION] = weights[_POSITION][offset : offset + shapes[_POSITION][0]]
    return {
        name: tensor.clone() for name, tensor in weights.items() if shapes.get(name) == tensor.shape
    }


def vocab_parameters(config: ModelConfig) -> tuple[str, ...]:
    """Return the names of parameters with one row per vocabulary token (`per_piece` of modules)."""
    modules = _without_weights(config).named_modules()
    return tuple(
        f"{prefix}.{name}"
        for prefix, module in modules
        for name in getattr(module, "per_piece", ())
    )


def parameter_shapes(config: ModelConfig) -> dict[str, torch.Size]:
    """Return the shapes of the pretraining model's parameters by name."""
    return {name: tensor.shape for name, tensor in _without_weights(config).state_dict().items()}


class _NoInitialization(TorchFunctionMode):
    """Leaves weights as they are: on the meta device their initialization imports torch's compiler,
    for a second.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        values = kwargs or {}
        is_init = getattr(function, "__module__", "") == nn.init.__name__
        if is_init or function in (Tensor.div_, Tensor.__itruediv__):
            return values["tensor"] if "tensor" in values else args[0]
        return function(*args, **values)


def _without_weights(config: ModelConfig) -> PretrainingModel:
    """Build the model on the meta device."""
    with torch.device("meta"), _NoInitialization():
        return new_model(config)


def _check(config: ModelConfig, model: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Check that `state` has the names and shapes of the model's parameters."""
    for name in sorted(model.keys() ^ state.keys()):
        fault = "lack" if name in model else "contain the unknown parameter"
        raise DataError(
            f"the weights {fault} {name}; use a checkpoint of a {config.family} model with the "
            f"same heads"
        )
    for name, tensor in sorted(state.items()):
        if tensor.shape != model[name].shape:
            raise DataError(
                f"{name} has shape {tuple(tensor.shape)}, but the config requires "
                f"{tuple(model[name].shape)}; use the checkpoint's own config"
            )


# Parts that most families share, without initialization.


def norm(config: ModelConfig) -> nn.LayerNorm:
    """Build a LayerNorm of width D."""
    return nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)


def embeddings(
    config: ModelConfig,
    size: int | None = None,
    *,
    max_positions: int | None = None,
    norm: nn.Module | None = None,
    position_offset: int = 0,
    projection: nn.Module | None = None,
) -> Embeddings:
    """Build the embeddings.

    Args:
        size: E. Default: D.
        max_positions: default: the config's.
        norm: default: LayerNorm over E.
        position_offset, projection: as for `Embeddings`.
    """
    size = size or config.hidden_size
    return Embeddings(
        config.vocab_size,
        size,
        max_positions=config.max_position_embeddings if max_positions is None else max_positions,
        segments=config.type_vocab_size,
        norm=norm or nn.LayerNorm(size, eps=config.layer_norm_eps),
        dropout=config.hidden_dropout,
        position_offset=position_offset,
        projection=projection,
    )


def encoder(
    config: ModelConfig,
    *,
    causal: bool = False,
    fused: bool = False,
    embedding_size: int | None = None,
) -> Encoder:
    """Build the encoder.

    Args:
        causal: use causal attention.
        fused: store query, key and value projections as one matrix.
        embedding_size: E, width of embeddings that are projected to D. Default: D, no projection.
    """
    size = embedding_size or config.hidden_size
    table = embeddings(
        config,
        size,
        norm=nn.Identity() if config.pre_norm else None,
        # Rows of the position table before the first position.
        position_offset=config.pad_token_id + 1 if config.computes_with_padding else 0,
        projection=None if size == config.hidden_size else Linear(size, config.hidden_size),
    )
    layers = [
        layer(config, number=number, causal=causal, fused=fused)
        for number in range(config.num_hidden_layers)
    ]
    return Encoder(table, layers, norm(config) if config.pre_norm else nn.Identity())


def layer(
    config: ModelConfig,
    attention: nn.Module | None = None,
    *,
    number: int = 0,
    causal: bool = False,
    fused: bool = False,
    inner_dropout: float = 0.0,
    kind: type[EncoderLayer] = EncoderLayer,
    **options: Any,
) -> EncoderLayer:
    """Build one encoder layer.

    Args:
        attention: default: self-attention.
        number: position of the layer, from 0.
        causal, fused: as for `encoder`.
        inner_dropout: dropout inside the feed-forward block.
        kind: class of the layer.
        options: further arguments of this class.
    """
    attention = attention or SelfAttention(
        config.hidden_size,
        config.heads_of(number),
        head_size=config.head_size,
        dropout=config.attention_dropout,
        causal=causal,
        fused=fused,
    )
    feed_forward = FeedForward(
        config.hidden_size,
        config.intermediate_size,
        activation=config.hidden_act,
        dropout=inner_dropout,
    )
    norms = {
        f"{block}_input_norm" if config.pre_norm else f"{block}_norm": norm(config)
        for block in ("attention", "feed_forward")
    }
    return kind(attention, feed_forward, dropout=config.hidden_dropout, **norms, **options)


def masked_lm(
    config: ModelConfig, size: int | None = None, activation: str | None = None
) -> MaskedLMHead:
    """Build the masked LM head.

    Args:
        size: width of the word embeddings. Default: D.
        activation: default: the config's.
    """
    width = size or config.hidden_size
    norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
    activation = activation or config.head_activation or config.hidden_act
    return MaskedLMHead(
        config.hidden_size, width, config.vocab_size, activation=activation, norm=norm
    )
