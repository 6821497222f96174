"""Networks of tasks: encoder, pooler and head, new or from a fine-tuned checkpoint.

Frozen features are a BiLSTM and a task head on a frozen encoder (Devlin et al. 2019, 5.3, table 7):

    encoder -> states of some layers [B, L, K, D] -> mixed or concatenated -> BiLSTM
    [B, L, 2 * size] -> task head

The encoder has no gradient and no dropout, so its states for a text are constant. The checkpoint
contains all of the encoder. The task's network has a backbone that returns its input, of the
BiLSTM's width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from cloze.core import random_keys
from cloze.core.errors import DataError, UsageError
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
from cloze.model.layers.encoder import Encoder, layer_count, layer_states
from cloze.model.layers.heads import MeanState, Pooler, initialize, mean_state
from cloze.model.tasks.encode import SECOND
from cloze.model.tasks.options import FrozenLayers
from cloze.model.tasks.task import Samples, Task, TaskMetadata
from cloze.model.train.device_scalars import AsyncCopy

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

    Attributes:
        all_positions: compute the last layer at every position, though the pooler reads the first.

    Args:
        pooler: pooler; its `head_bias` False means a linear layer without bias, as in the Hugging
            Face class.
        head: name of the linear layer in a checkpoint's `heads`.
        pairs: true to use `pair_features` instead of the pooler, without a layer between: a tanh
            layer overfits.
    """

    all_positions: bool = False

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
        first = isinstance(pooler, Pooler) and pooler.reads_first and not self.all_positions
        if first and isinstance(self.encoder, Encoder):
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

    For tags and span ends. A pooler that is a `Transform` is applied to every position: the dense
    layer of ModernBERT, or a BiLSTM.

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

    def states(self, batch: Mapping[str, Any]) -> Tensor:
        """Return the states that are classified, float [B, L, D]."""
        hidden = encode(self.encoder, batch["input_ids"], batch)
        if not self._transforms:
            return hidden
        return cast(Transform, self.pooler).transform(hidden, batch["attention_mask"])

    def forward(self, batch: Mapping[str, Any]) -> Tensor:
        """Return logits, fp32 [B, L, outputs], for a batch of `TextSamples`."""
        logits: Tensor = self.get_submodule(self._head)(self.dropout(self.states(batch)))
        return logits.float()


# Frozen features.


class Frozen(NamedTuple):
    """States of a frozen encoder and the BiLSTM over them; task metadata has them as `frozen`."""

    layers: FrozenLayers
    lstm_size: int
    lstm_layers: int


def layers_read(choice: str, layers: int) -> list[int]:
    """Return the numbers of the layers of a choice; 0 is the embeddings.

    Raises:
        UsageError: the encoder has too few layers.
    """
    first, last = {
        "embeddings": (0, 0),
        "second-to-last": (layers - 1, layers - 1),
        "last": (layers, layers),
        "sum-all": (1, layers),
        "sum-with-embeddings": (0, layers),
    }.get(choice, (layers - 3, layers))
    if first < (0 if choice == "sum-with-embeddings" else min(1, last)):
        raise UsageError(
            f"frozen ({choice}) needs {layers - first + 1} layers, the encoder has {layers}; use "
            f"last or sum-all"
        )
    return list(range(first, last + 1))


class FeatureBiLSTM(nn.Module):
    """BiLSTM over the states of K layers, mixed by a learned average or concatenated.

    The average is ELMo's (Peters et al. 2018, equation 1): softmax weights and a scale.
    """

    def __init__(self, how: Frozen, layers: int, hidden_size: int, dropout: float) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(layers)) if how.layers.startswith("sum") else None
        self.scale = nn.Parameter(torch.ones(1)) if how.layers.startswith("sum") else None
        width = hidden_size if self.weights is not None else hidden_size * layers
        self.dropout = nn.Dropout(dropout)
        self.lstm = nn.LSTM(
            width,
            how.lstm_size,
            how.lstm_layers,
            batch_first=True,
            bidirectional=True,
            dropout=dropout if how.lstm_layers > 1 else 0.0,
        )

    def forward(self, states: Tensor, lengths: Tensor) -> Tensor:
        """Return fp32 [B, L, 2 * size], 0 at padding.

        Args:
            states: float [B, L, K, D].
            lengths: int64 [B] on the host, real tokens, which come first.
        """
        with torch.autocast(states.device.type, enabled=False):  # LSTMs are computed in fp32
            states = states.float()
            if self.weights is None or self.scale is None:
                mixed = states.flatten(2)
            else:
                mixed = self.scale * torch.einsum(
                    "blkd,k->bld", states, self.weights.softmax(dim=0)
                )
            packed = nn.utils.rnn.pack_padded_sequence(
                self.dropout(mixed), lengths, batch_first=True, enforce_sorted=False
            )
            output, _ = self.lstm(packed)
            unpacked, _ = nn.utils.rnn.pad_packed_sequence(
                output, batch_first=True, total_length=states.shape[1]
            )
        return unpacked


class _Identity(nn.Module):
    """Encoder that returns its input."""

    def forward(self, hidden: Tensor, *_: Any) -> Tensor:
        return hidden


class FrozenNetwork(nn.Module):
    """Frozen encoder, BiLSTM, and a task's network.

    Attributes:
        layers: numbers of the encoder states that are read.
    """

    def __init__(
        self, encoder: nn.Module, head: nn.Module, how: Frozen, config: ModelConfig, dropout: float
    ) -> None:
        super().__init__()
        self.encoder = encoder.requires_grad_(False)
        self.layers = layers_read(how.layers, layer_count(encoder))
        self.reader = FeatureBiLSTM(how, len(self.layers), config.hidden_size, dropout)
        self.head = head

    def train(self, mode: bool = True) -> FrozenNetwork:
        super().train(mode)
        self.encoder.eval()
        return self

    def begin(self) -> None:
        """Initialize the trained modules with torch's defaults, from its current random state.

        BERT's initialization is meant for one layer on a pretrained state; with a BiLSTM it delays
        the first hundreds of steps.
        """
        for module in (*self.reader.modules(), *self.head.modules()):
            if isinstance(module, nn.Linear | nn.LSTM):
                module.reset_parameters()

    @torch.no_grad()
    def states(self, batch: Mapping[str, Any]) -> Tensor:
        """Return the encoder's states, float [B, L, K, D]."""
        rows = {**batch, "layout": None}
        states = layer_states(
            self.encoder, self.layers, lambda: encode(self.encoder, batch["input_ids"], rows)
        )
        return torch.stack([state.float() for state in states], dim=2)

    def forward(self, batch: Mapping[str, Any]) -> Any:
        """Return the output of the task's network for a batch."""
        # Asked for before the encoder runs, so that a GPU has work while the host waits.
        lengths = AsyncCopy(batch["attention_mask"].sum(dim=1))
        features = self.reader(self.states(batch), lengths.wait())
        return self.head({**batch, "input_ids": features})


def task_network(
    task: Task[Any, Any],
    backbone: Backbone,
    config: ModelConfig,
    metadata: TaskMetadata,
    dropout: float,
) -> nn.Module:
    """Build the task's network on a backbone, or on frozen features if the metadata has `frozen`.

    Raises:
        UsageError: the encoder has too few layers for the choice, or the model has a decoder.
    """
    options = metadata.get("frozen")
    if not options:
        return task.network(backbone, config, metadata, dropout)
    frozen = Frozen(**options)
    wide_config = config.model_copy(update={"hidden_size": 2 * frozen.lstm_size})
    head = task.network(
        Backbone(encoder=_Identity(), pooler=MeanState()), wide_config, metadata, dropout
    )
    return FrozenNetwork(backbone.encoder, head, frozen, config, dropout)


def check_frozen(samples: Samples) -> None:
    """Check that each sample is one sequence, which frozen features require.

    Raises:
        UsageError: a sample has several sequences, such as the choices of a question.
    """
    input_ids = samples.batch(np.zeros(1, dtype=np.int64), "rows")["input_ids"]
    if input_ids.shape[0] != 1 or input_ids.shape[1] != samples.lengths[0]:
        raise UsageError(
            "frozen features are for tasks whose samples are one sequence each; leave frozen out"
        )


# New and trained networks.


def new_network(
    task: Task[Any, Any],
    config: ModelConfig,
    state: Mapping[str, Tensor] | None,
    metadata: TaskMetadata,
    dropout: float | None,
    seed: int,
) -> nn.Module:
    """Build a network for training, with the weights of `state` or random ones, and a new head.

    The head's weights depend on the seed alone, so pretrained and random encoders start with equal
    heads. Training does not change `state`.
    """
    torch.manual_seed(int(random_keys.fold_in(seed, _BODY)))
    if state is None:
        backbone = new_backbone(config)
    else:  # training changes the tensors that `load_backbone` takes
        own = {name: tensor.clone() for name, tensor in state.items() if is_backbone(name)}
        backbone = load_backbone(config, own)
    network = task_network(
        task, backbone, config, metadata, config.hidden_dropout if dropout is None else dropout
    )
    torch.manual_seed(int(random_keys.fold_in(seed, _HEAD)))
    if hasattr(network, "begin"):  # it has initial weights of its own
        cast(Any, network).begin()
        return network.train()
    for name, module in network.named_children():
        if not is_backbone(f"{name}."):
            initialize(module, config.initializer_range)
    return network.train()


def trained_network(
    task: Task[Any, Any],
    config: ModelConfig,
    state: Mapping[str, Tensor],
    metadata: TaskMetadata,
    where: str,
) -> nn.Module:
    """Build the network of a fine-tuned checkpoint, in evaluation mode.

    Raises:
        DataError: the checkpoint at `where` lacks a weight, or has an extra one or another shape.
    """
    network = task_network(task, new_backbone(config), config, metadata, 0.0)
    expected = network.state_dict()
    # A pooler may be another task's of the same training; some parts only train.
    optional = ("pooler.", "auxiliary.", "distillation.")
    unused = {name for name in state if name.startswith(optional) and name not in expected}
    state = {name: weight for name, weight in state.items() if name not in unused}
    for name in sorted(expected.keys() ^ state.keys()):
        verb = "lacks" if name in expected else "has"
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
