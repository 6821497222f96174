"""Models of any family: the pretraining model, construction, and loading of weights.

Shapes: B batch, L length, D model, V vocabulary, M masked positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from cloze.core.errors import DataError, UsageError
from cloze.model.families.config import ModelConfig
from cloze.model.families.table import family_attribute
from cloze.model.layers.attention import gather_positions
from cloze.model.layers.embeddings import merged
from cloze.model.layers.encoder import Encoder
from cloze.model.layers.heads import initialize


class PretrainingModel(nn.Module):
    """Encoder with pretraining heads.

    Attributes:
        predicts_all_positions: compute and return the last layer's states at every position. If
            False, most of the last layer is computed only where heads read it (one position in
            six). That saves a tenth of a BERT-mini's arithmetic, a twentieth of BERT-base's.

    Args:
        encoder: maps token ids to hidden states.
        masked_lm: maps (states [M, D], word embeddings [V, E]) to logits [M, V].
        pooler: maps hidden states to one vector per sequence; None if pretraining needs none.
        pair: classifies sentence pairs from the pooler's output; None without a pair task.
    """

    predicts_all_positions: bool = True

    def __init__(
        self,
        encoder: Encoder,
        masked_lm: nn.Module,
        *,
        pooler: nn.Module | None = None,
        pair: nn.Linear | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.pooler = pooler
        self.masked_lm = masked_lm
        self.pair = pair

    def forward(self, batch: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return the heads' logits, and hidden states.

        Args:
            batch: input_ids and token_type_ids, int64 [B, L]; attention_mask, bool [B, L];
                masked_positions, int64 [M], indices into the flattened B * L; optional layout, as
                for `Encoder.forward`; optional masked_places, int64 [M], positions that predict the
                masked tokens; optional causal_positions, int64 [C], positions that predict next
                tokens. Labels are not used.

        Returns:
            mlm_logits: [M, V], at masked positions only, which saves a fifth of BERT-base's
                arithmetic.
            pair_logits: [B, 2], with a pair head.
            clm_logits: [C, V], of the masked LM head, with causal_positions.
            hidden: [B, L, D], if `predicts_all_positions`.
        """
        places = self.head_positions(batch)
        if self.predicts_all_positions:
            hidden = self.encode(batch)
            states = [gather_positions(hidden, chosen) for chosen in places.values()]
        else:
            read = self.encode(batch, torch.cat(list(places.values())))
            states = list(torch.split(read, [len(chosen) for chosen in places.values()]))
        outputs = self.logits(dict(zip(places, states, strict=True)), batch)
        return {**outputs, "hidden": hidden} if self.predicts_all_positions else outputs

    def head_positions(self, batch: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return the positions that the heads read, by name: int64, in the flattened B * L."""
        found = {"masked": batch.get("masked_places", batch["masked_positions"])}
        if "causal_positions" in batch:
            found["causal"] = batch["causal_positions"]
        if self.pair is not None:
            rows, length = batch["input_ids"].shape
            found["first"] = torch.arange(
                0, rows * length, length, device=batch["input_ids"].device
            )
        return found

    def logits(self, states: Mapping[str, Tensor], batch: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return the heads' logits from `states`, float [P, D] by the names of `head_positions`."""
        words = self.encoder.embeddings.word.weight
        outputs = {"mlm_logits": self.masked_lm(states["masked"], words)}
        if "causal" in states:
            outputs["clm_logits"] = self.masked_lm(states["causal"], words)
        if self.pair is not None and self.pooler is not None:
            outputs["pair_logits"] = self.pair(self.pooler(states["first"][:, None]))
        return outputs

    def encode(self, batch: Mapping[str, Any], wanted: Tensor | None = None) -> Tensor:
        """Return hidden states, float [B, L, D], or [P, D] at the wanted flat positions."""
        return encoded(self.encoder, batch["input_ids"], batch, wanted)


def encoded(
    encoder: nn.Module, ids: Tensor, batch: Mapping[str, Any], wanted: Tensor | None = None
) -> Tensor:
    """Run an encoder on a batch with these ids: float [B, L, D], or [P, D] at `wanted`."""
    hidden: Tensor = encoder(
        ids, batch.get("attention_mask"), batch["token_type_ids"], batch.get("layout"), wanted
    )
    return hidden


# Construction and loading.


class Transform(Protocol):
    """Pooler whose layers also precede heads on every position."""

    def transform(self, hidden: Tensor) -> Tensor:
        """Map float [..., D] to float [..., D]."""
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
            "vocab_size (0) is still open; set it, or take it from a dataset with for_dataset"
        )
    model: PretrainingModel = family_attribute(config.family, "model:new_model")(config)
    return model


def load_model(config: ModelConfig, state: Mapping[str, Tensor]) -> PretrainingModel:
    """Build the pretraining model with the weights of `state`, in evaluation mode.

    Args:
        state: tensors by Cloze's parameter names; used without copying.

    Raises:
        DataError: a parameter is missing, unknown or has another shape; the message names it.
    """
    model = _without_weights(config)  # all weights are replaced, so none is initialized
    _check(config, model.state_dict(), state)
    model.load_state_dict(dict(state), assign=True)
    return model.eval()


def new_backbone(config: ModelConfig) -> Backbone:
    """Build encoder and pooler, initialized from torch's current random state."""
    model = new_model(config.backbone)
    pooler = model.pooler
    if pooler is None:
        pooler = family_attribute(config.family, "model:new_pooler")(config)
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
        given = {name: tensor for name, tensor in state.items() if name.startswith(prefix)}
        _check(
            config, {prefix + name: tensor for name, tensor in module.state_dict().items()}, given
        )
        module.load_state_dict(
            {name.removeprefix(prefix): tensor for name, tensor in given.items()}, assign=True
        )
        module.eval()
    return backbone


def meta_pooler(config: ModelConfig) -> nn.Module:
    """Build the fine-tuning pooler on the meta device."""
    with torch.device("meta"):
        pooler: nn.Module = family_attribute(config.family, "model:new_pooler")(config)
    return pooler


def is_backbone(name: str) -> bool:
    """Return True if fine-tuning keeps the parameter `name`: encoder or pooler."""
    return name.startswith(("encoder.", "pooler."))


def first_weights(
    student: ModelConfig, teacher: ModelConfig, state: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return a student's initial weights, taken from the teacher's `state`."""
    taken: dict[str, Tensor] = family_attribute(student.family, "model:first_weights")(
        student, teacher, merged(state)
    )
    return taken


def vocab_parameters(config: ModelConfig) -> tuple[str, ...]:
    """Return the names of parameters with one row per vocabulary token (`per_piece` of modules)."""
    modules = _without_weights(config).named_modules()
    return tuple(
        f"{prefix}.{name}"
        for prefix, module in modules
        for name in getattr(module, "per_piece", ())
    )


def _without_weights(config: ModelConfig) -> PretrainingModel:
    """Build the model on the meta device."""
    with torch.device("meta"):
        return new_model(config)


def _check(config: ModelConfig, wanted: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    for name in sorted(wanted.keys() ^ given.keys()):
        fault = "lack" if name in wanted else "do not fit the model: they hold"
        raise DataError(
            f"the weights {fault} {name}; use a checkpoint of a {config.family} model with the "
            f"same heads"
        )
    for name, tensor in sorted(given.items()):
        if tensor.shape != wanted[name].shape:
            shapes = f"{tuple(tensor.shape)}, the config says {tuple(wanted[name].shape)}"
            raise DataError(f"{name} has the shape {shapes}; use the checkpoint's own config")
