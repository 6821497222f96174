"""Networks of tasks: encoder, pooler and head, new or from a fine-tuned checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from cloze.core import random_keys
from cloze.core.errors import DataError
from cloze.model.families.config import ModelConfig
from cloze.model.families.models import (
    Backbone,
    Transform,
    is_backbone,
    load_backbone,
    new_backbone,
)
from cloze.model.families.pretraining import encode
from cloze.model.layers.cpu import Linear
from cloze.model.layers.encoder import Encoder
from cloze.model.layers.heads import Pooler, initialize, mean_state
from cloze.model.tasks.encode import SECOND
from cloze.model.tasks.frozen import FrozenNetwork, task_network
from cloze.model.tasks.task import Task, TaskMetadata

_BODY, _HEAD = 1, 2  # independent random streams


def pair_features(hidden: Tensor, attention_mask: Tensor, second: Tensor) -> Tensor:
    """Return [u; v; |u - v|; u v] of the mean states u and v of a pair's texts, float [B, 4 D].

    As InferSent (Conneau et al. 2017, 3.1), but both texts are in one sequence and attend to each
    other. Means include the special tokens of the text.

    Args:
        hidden: float [B, L, D].
        attention_mask: bool [B, L].
        second: bool [B, L], true at the second text.
    """
    u, v = (mean_state(hidden, attention_mask & mask) for mask in (~second, second))
    return torch.cat([u, v, (u - v).abs(), u * v], dim=-1)


class SequenceClassifier(nn.Module):
    """Encoder, pooler, dropout and a linear layer (Devlin et al. 2019, figure 4a, b).

    Args:
        pooler: pooler; its `head_bias` False means a linear layer without bias, as in the Hugging
            Face class.
        head: name of the linear layer in a checkpoint's `heads`.
        pairs: true to use `pair_features` instead of the pooler, without a layer between: a tanh
            layer overfits.
    """

    def __init__(
        self,
        encoder: nn.Module,
        pooler: nn.Module,
        hidden_size: int,
        outputs: int,
        dropout: float,
        head: str = "classifier",
        pairs: bool = False,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        if not pairs:
            self.pooler = pooler
        self._pairs = pairs
        self.dropout = nn.Dropout(dropout)
        self._head = head
        size = 4 * hidden_size if pairs else hidden_size
        self.add_module(
            head, Linear(size, outputs, bias=pairs or getattr(pooler, "head_bias", True))
        )

    def forward(self, batch: Mapping[str, Any]) -> Tensor:
        """Return logits, fp32 [B, outputs], for a batch of `TextSamples`."""
        ids, mask = batch["input_ids"], batch["attention_mask"]
        pooler = None if self._pairs else self.pooler
        if isinstance(self.encoder, Encoder) and isinstance(pooler, Pooler) and pooler.reads_first:
            first_positions = torch.arange(0, ids.numel(), ids.shape[1], device=ids.device)
            hidden = encode(self.encoder, ids, batch, first_positions)[:, None]
        else:
            hidden = encode(self.encoder, ids, batch)
        pooled = (
            pair_features(hidden, mask, batch[SECOND]) if pooler is None else pooler(hidden, mask)
        )
        logits: Tensor = self.get_submodule(self._head)(self.dropout(pooled))
        return logits.float()


class TokenClassifier(nn.Module):
    """Encoder, dropout and a linear layer per position (Devlin et al. 2019, figure 4c, d).

    For tags and span ends. A pooler that is a `Transform` is applied to every position, as in
    ModernBERT.

    Args:
        head: name of the linear layer in a checkpoint's `heads`.
    """

    def __init__(
        self, backbone: Backbone, hidden_size: int, outputs: int, dropout: float, head: str
    ) -> None:
        super().__init__()
        self.encoder = backbone.encoder
        self._transforms = backbone.transforms
        if self._transforms:
            self.pooler = backbone.pooler
        self.dropout = nn.Dropout(dropout)
        self._head = head
        self.add_module(head, Linear(hidden_size, outputs))

    def forward(self, batch: Mapping[str, Any]) -> Tensor:
        """Return logits, fp32 [B, L, outputs], for a batch of `TextSamples`."""
        hidden = encode(self.encoder, batch["input_ids"], batch)
        if self._transforms:
            hidden = cast(Transform, self.pooler).transform(hidden)
        logits: Tensor = self.get_submodule(self._head)(self.dropout(hidden))
        return logits.float()


def new_network(
    task: Task[Any, Any],
    config: ModelConfig,
    state: Mapping[str, Tensor] | None,
    meaning: TaskMetadata,
    dropout: float | None,
    seed: int,
) -> nn.Module:
    """Build a network for training, with the weights of `state` or random ones, and a new head.

    The head's weights depend on the seed alone, so pretrained and random encoders start with equal
    heads. Training does not change `state`.
    """
    torch.manual_seed(int(random_keys.fold_in(seed, _BODY)))
    backbone = new_backbone(config) if state is None else load_backbone(config, _copy(state))
    network = task_network(
        task, backbone, config, meaning, config.hidden_dropout if dropout is None else dropout
    )
    torch.manual_seed(int(random_keys.fold_in(seed, _HEAD)))
    if isinstance(network, FrozenNetwork):
        network.begin()
        return network.train()
    for name, module in network.named_children():
        if not is_backbone(f"{name}."):
            initialize(module, config.initializer_range)
    return network.train()


def trained_network(
    task: Task[Any, Any],
    config: ModelConfig,
    state: Mapping[str, Tensor],
    meaning: TaskMetadata,
    where: str,
) -> nn.Module:
    """Build the network of a fine-tuned checkpoint, in evaluation mode.

    Raises:
        DataError: the checkpoint at `where` lacks a weight, or has an extra one or another shape.
    """
    network = task_network(task, new_backbone(config), config, meaning, 0.0)
    expected = network.state_dict()
    # Drops a pooler that another task of the same training used.
    state = {
        name: weight
        for name, weight in state.items()
        if name in expected or not name.startswith("pooler.")
    }
    for name in sorted(expected.keys() ^ state.keys()):
        verb = "lacks" if name in expected else "holds"
        raise DataError(
            f"{where} {verb} {name}, unlike a model for the task {task.name}; name one that `cloze "
            f"finetune` made"
        )
    for name, tensor in expected.items():
        if state[name].shape != tensor.shape:
            shapes = f"{tuple(state[name].shape)}, its task asks for {tuple(tensor.shape)}"
            raise DataError(f"{name} in {where} has the shape {shapes}; fine-tune again")
    network.load_state_dict(dict(state))
    return network.eval()


def _copy(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Clone the backbone's tensors, which `load_backbone` uses directly and training changes."""
    return {name: tensor.clone() for name, tensor in state.items() if is_backbone(name)}
