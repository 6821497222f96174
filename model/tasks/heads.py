"""A task's network: encoder, pooler and head, to train from a pretrained checkpoint or from nothing, or read back from a fine-tuned one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from model.data.batch import LAYOUT
from model.families.config import ModelConfig
from model.families.models import Backbone, Transform, is_backbone, new_backbone, restore_backbone
from model.layers.encoder import Encoder
from model.layers.heads import Pooler, initialize, mean_state
from model.tasks.features import FrozenNetwork, task_network
from model.tasks.task import Meaning, Task
from pipeline.core import random_keys
from pipeline.core.errors import DataError

_BODY, _HEAD = 1, 2  # independent random streams


def pair_features(hidden: Tensor, attention_mask: Tensor, second: Tensor) -> Tensor:
    """What the mean states u and v of a pair's texts say beside each other: [u; v; |u - v|; u v] (Conneau et al. 2017, InferSent, 3.1).

    Both texts stand in one sequence, so each mean has seen the other text. It includes the special tokens that frame its text.

    Args: hidden: float [B, L, D]; attention_mask: bool [B, L]; second: bool [B, L], where the second text is. Returns: float [B, 4 D].
    """
    u, v = (mean_state(hidden, attention_mask & part) for part in (~second, second))
    return torch.cat([u, v, (u - v).abs(), u * v], dim=-1)


class SequenceClassifier(nn.Module):
    """Encoder, pooler, dropout, and one linear layer on the pooled output (Devlin et al. 2019, figure 4a, b).

    Args:
        pooler: where its `head_bias` is false, the linear layer has no bias, as the family's class at Hugging Face has none.
        head: the linear layer's name, as a checkpoint's `heads` says it.
        pairs: read `pair_features` instead of the pooled output, with no layer between: one of tanh learns the examples by heart.
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
        self.add_module(head, nn.Linear(size, outputs, bias=pairs or getattr(pooler, "head_bias", True)))

    def forward(self, batch: Mapping[str, Any]) -> Tensor:
        """Logits, fp32 [B, outputs], of a batch as `TextSamples.batch` makes it."""
        ids, real = batch["input_ids"], batch["attention_mask"]
        segments, pooler = batch["token_type_ids"], None if self._pairs else self.pooler
        if isinstance(self.encoder, Encoder) and isinstance(pooler, Pooler) and pooler.reads_first:
            first = torch.arange(0, ids.numel(), ids.shape[1], device=ids.device)
            hidden = self.encoder(ids, real, segments, batch.get(LAYOUT), first)[:, None]
        else:
            hidden = self.encoder(ids, real, segments, batch.get(LAYOUT))
        pooled = pair_features(hidden, real, segments.bool()) if pooler is None else pooler(hidden, real)
        logits: Tensor = self.get_submodule(self._head)(self.dropout(pooled))
        return logits.float()


class TokenClassifier(nn.Module):
    """Encoder, dropout, and one linear layer on every position's state (Devlin et al. 2019, figure 4c, d): tags, or ends of spans.

    A family whose pooler says so has its layers between, on every position, as ModernBERT does.

    Args:
        head: the linear layer's name, as a checkpoint's `heads` says it.
    """

    def __init__(self, backbone: Backbone, hidden_size: int, outputs: int, dropout: float, head: str) -> None:
        super().__init__()
        self.encoder = backbone.encoder
        self._transforms = backbone.transforms
        if self._transforms:
            self.pooler = backbone.pooler
        self.dropout = nn.Dropout(dropout)
        self._head = head
        self.add_module(head, nn.Linear(hidden_size, outputs))

    def forward(self, batch: Mapping[str, Any]) -> Tensor:
        """Logits, fp32 [B, L, outputs], of a batch as `TextSamples.batch` makes it."""
        hidden = self.encoder(batch["input_ids"], batch["attention_mask"], batch["token_type_ids"], batch.get(LAYOUT))
        if self._transforms:
            hidden = cast(Transform, self.pooler).transform(hidden)
        logits: Tensor = self.get_submodule(self._head)(self.dropout(hidden))
        return logits.float()


def new_network(
    task: Task[Any, Any],
    config: ModelConfig,
    state: Mapping[str, Tensor] | None,
    meaning: Meaning,
    dropout: float | None,
    seed: int,
) -> nn.Module:
    """A network to train: the encoder and pooler of `state`, or random ones where it is None, and a new head.

    The head's weights depend on the seed alone, so a pretrained and a random encoder start under the same one.
    `state` is not changed by training.
    """
    torch.manual_seed(int(random_keys.derive(seed, _BODY)))
    backbone = new_backbone(config) if state is None else restore_backbone(config, _copy(state))
    network = task_network(task, backbone, config, meaning, config.hidden_dropout if dropout is None else dropout)
    torch.manual_seed(int(random_keys.derive(seed, _HEAD)))
    if isinstance(network, FrozenNetwork):
        network.begin()
        return network.train()
    for name, part in network.named_children():
        if not is_backbone(f"{name}."):
            initialize(part, config.initializer_range)
    return network.train()


def trained_network(
    task: Task[Any, Any], config: ModelConfig, state: Mapping[str, Tensor], meaning: Meaning, where: str
) -> nn.Module:
    """The network of a fine-tuned checkpoint, in evaluation mode.

    Raises:
        DataError: the checkpoint at `where` lacks a weight of the network, or has one more, or one of another shape.
    """
    network = task_network(task, new_backbone(config), config, meaning, 0.0)
    wanted = network.state_dict()
    for name in sorted(wanted.keys() ^ state.keys()):
        has = "lacks" if name in wanted else "holds"
        raise DataError(f"{where} {has} {name}, unlike a model for the task {task.name}; name one that `cloze finetune` made")
    for name, tensor in wanted.items():
        if state[name].shape != tensor.shape:
            shapes = f"{tuple(state[name].shape)}, its task asks for {tuple(tensor.shape)}"
            raise DataError(f"{name} in {where} has the shape {shapes}; fine-tune again")
    network.load_state_dict(dict(state))
    return network.eval()


def _copy(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The backbone's tensors, cloned: `restore` takes tensors as they are, and training writes into them."""
    return {name: tensor.clone() for name, tensor in state.items() if is_backbone(name)}
