"""Frozen features: an encoder that is only read, a BiLSTM on what it says, and a task's head (Devlin et al. 2019, 5.3, table 7).

    encoder ─► states of some layers [B, L, K, D] ─► mixed or side by side ─► two-layer BiLSTM [B, L, 2 * size] ─► the task's head

The encoder takes no gradient and no dropout, so what it says of a text never changes: training computes it once a split and reads it
from a file (`stored`); evaluating and using a checkpoint compute it as they go. The encoder is in the checkpoint, whole.

A task does not know of this: its network is made on a backbone that gives back what it is given, as wide as the BiLSTM.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from model.data.batch import Batch, move
from model.data.layouts import Kind
from model.families.config import ModelConfig
from model.families.models import Backbone
from model.layers.heads import mean_state
from model.tasks.encode import evaluation_batches
from model.tasks.options import Frozen
from model.tasks.task import Ints, Meaning, Samples, Task
from model.train.distributed import World
from model.train.interfaces import Interrupted
from model.train.precision import Precision, autocast
from pipeline.core import storage
from pipeline.core.errors import ClozeError, UsageError
from pipeline.core.ragged import offsets_of

FOUR = 4
STATES = "states"  # an entry of a batch: fp32 [B, L, K, D], what the encoder says of it


def layers_read(choice: str, layers: int) -> list[int]:
    """The numbers of the layers that a choice reads, 0 the embeddings.

    Raises:
        UsageError: the encoder has too few.
    """
    needed = {"second-to-last": 2, "sum-last-four": FOUR, "concat-last-four": FOUR}.get(choice, 1)
    if layers < needed:
        raise UsageError(f"frozen ({choice}) needs {needed} layers, the encoder has {layers}; use last or sum-all")
    first, last = {
        "embeddings": (0, 0),
        "second-to-last": (layers - 1, layers - 1),
        "last": (layers, layers),
        "sum-all": (1, layers),
    }.get(choice, (layers - FOUR + 1, layers))
    return list(range(first, last + 1))


class Reader(nn.Module):
    """States of K layers to one a position: a BiLSTM over their learned average, or over all of them side by side.

    The average is ELMo's (Peters et al. 2018, equation 1): weights through a softmax, and a scale.
    """

    def __init__(self, how: Frozen, layers: int, hidden_size: int, dropout: float) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(layers)) if how.layers.startswith("sum") else None
        self.scale = nn.Parameter(torch.ones(1)) if how.layers.startswith("sum") else None
        width = hidden_size if self.weights is not None else hidden_size * layers
        between = dropout if how.lstm_layers > 1 else 0.0
        self.dropout = nn.Dropout(dropout)
        self.lstm = nn.LSTM(width, how.lstm_size, how.lstm_layers, batch_first=True, bidirectional=True, dropout=between)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """Args: states: float [B, L, K, D]; mask: bool [B, L], real tokens first. Returns: fp32 [B, L, 2 * size], 0 at padding."""
        with torch.autocast(states.device.type, enabled=False):  # LSTMs are computed in fp32
            states = states.float()
            if self.weights is None or self.scale is None:
                mixed = states.flatten(2)
            else:
                mixed = self.scale * torch.einsum("blkd,k->bld", states, self.weights.softmax(dim=0))
            packed = nn.utils.rnn.pack_padded_sequence(
                self.dropout(mixed), mask.sum(dim=1).cpu(), batch_first=True, enforce_sorted=False
            )
            read, _ = self.lstm(packed)
            found, _ = nn.utils.rnn.pad_packed_sequence(read, batch_first=True, total_length=mask.shape[1])
        return found


class _Given(nn.Module):
    """An encoder that gives back what it is given instead of ids."""

    def forward(self, hidden: Tensor, *_: Any) -> Tensor:
        return hidden


class _Mean(nn.Module):
    """A pooler: the mean over the real positions."""

    def forward(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        return mean_state(hidden, attention_mask)


class FrozenNetwork(nn.Module):
    """The frozen encoder, the reader, and a task's network on it.

    Attributes:
        layers: which of the encoder's states are read.
    """

    def __init__(self, encoder: nn.Module, head: nn.Module, how: Frozen, config: ModelConfig, dropout: float) -> None:
        super().__init__()
        self.encoder = encoder.requires_grad_(False)
        self.layers = layers_read(how.layers, len(self._parts) - 1)
        self.reader = Reader(how, len(self.layers), config.hidden_size, dropout)
        self.head = head

    @property
    def _parts(self) -> list[nn.Module]:
        """What gives the states: the embeddings and each layer."""
        return [self.encoder.get_submodule("embeddings"), *self.encoder.get_submodule("layers").children()]

    def train(self, mode: bool = True) -> FrozenNetwork:
        super().train(mode)
        self.encoder.eval()
        return self

    def begin(self) -> None:
        """Give what is trained torch's own first values, from its current random state.

        BERT's are for one layer on a pretrained state: below a BiLSTM's they hold up its first hundreds of steps.
        """
        for part in (*self.reader.modules(), *self.head.modules()):
            if isinstance(part, nn.Linear | nn.LSTM):
                part.reset_parameters()

    @torch.no_grad()
    def states(self, batch: Mapping[str, Any]) -> Tensor:
        """What the encoder says: float [B, L, K, D]."""
        parts = self._parts
        found: dict[int, Tensor] = {}

        def keep(number: int) -> Callable[..., None]:
            def hook(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
                found[number] = output

            return hook

        hooks = [parts[number].register_forward_hook(keep(number)) for number in self.layers]
        try:
            last = self.encoder(batch["input_ids"], batch["attention_mask"], batch["token_type_ids"])
        finally:
            for hook in hooks:
                hook.remove()
        found[len(parts) - 1] = last  # with the norm that a pre-norm family has at the end
        return torch.stack([found[number].float() for number in self.layers], dim=2)

    def forward(self, batch: Mapping[str, Any]) -> Any:
        """What the task's network says of a batch; its `states` are computed where it brings none."""
        states = batch[STATES] if STATES in batch else self.states(batch)
        return self.head({**batch, "input_ids": self.reader(states, batch["attention_mask"])})


def task_network(task: Task[Any, Any], backbone: Backbone, config: ModelConfig, meaning: Meaning, dropout: float) -> nn.Module:
    """The task's network on a backbone; on frozen features where its meaning says so.

    Raises:
        UsageError: the encoder has too few layers for the choice.
    """
    said = meaning.get("frozen")
    if not said:
        return task.network(backbone, config, meaning, dropout)
    how = Frozen.model_validate(said)
    wide = config.model_copy(update={"hidden_size": 2 * how.lstm_size})
    head = task.network(Backbone(encoder=_Given(), pooler=_Mean()), wide, meaning, dropout)
    return FrozenNetwork(backbone.encoder, head, how, config, dropout)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSamples:
    """Samples whose batches bring the encoder's states along.

    Attributes:
        plain: the samples without.
        states: fp32 [T, K, D], a sample after the other; a file in memory.
        offsets: int64 [n + 1], where each begins.
    """

    plain: Samples
    states: npt.NDArray[np.float32]
    offsets: Ints

    def __len__(self) -> int:
        return len(self.plain)

    @property
    def lengths(self) -> Ints:
        return self.plain.lengths

    @property
    def truncated(self) -> int:
        return self.plain.truncated

    @property
    def lost(self) -> Mapping[str, int]:
        return self.plain.lost

    def batch(self, chosen: Sequence[int] | Ints, layout: Kind = "rows") -> Batch:
        """As the plain samples', with `states`, fp32 [B, L, K, D], 0 at padding."""
        del layout  # the encoder is not run
        batch = self.plain.batch(chosen, "rows")
        states = torch.zeros(*batch["input_ids"].shape, *self.states.shape[1:])
        for row, i in enumerate(chosen):
            begin, end = int(self.offsets[i]), int(self.offsets[i + 1])
            states[row, : end - begin] = torch.from_numpy(np.array(self.states[begin:end]))
        return {**batch, STATES: states}


def plain(samples: Samples) -> Samples:
    """The samples as their task made them."""
    return samples.plain if isinstance(samples, StoredSamples) else samples


def stored(
    network: FrozenNetwork,
    samples: Samples,
    path: str,
    world: World,
    precision: Precision,
    stop_asked: Callable[[], bool] = lambda: False,
) -> StoredSamples:
    """Compute what the encoder says of all samples, shared out among the ranks, unless the file `path` has it already.

    Args:
        network: on `world.device`.
        path: a file on a local disk, that belongs to this encoder and these samples.

    Raises:
        UsageError: a sample is several sequences.
        ClozeError: the disk has too little room.
        Interrupted: a rank was asked to stop.
    """
    offsets = offsets_of(samples.lengths)
    one = samples.batch(np.zeros(1, dtype=np.int64), "rows")
    if one["input_ids"].shape[0] != 1 or one["input_ids"].shape[1] != samples.lengths[0]:
        raise UsageError("frozen features are for tasks whose samples are one sequence each; leave frozen out")
    shape = (int(offsets[-1]), *network.states(move(one, world.device)).shape[2:])
    if world.total([int(os.path.exists(path))])[0] < world.size:
        _fill(network, samples, f"{path}.part", shape, offsets, world, precision, stop_asked)
        if world.first:
            os.replace(f"{path}.part", path)
        world.total([0])  # all have written, and the file has its name
    return StoredSamples(plain=samples, states=np.load(path, mmap_mode="r"), offsets=offsets)


def _fill(
    network: FrozenNetwork,
    samples: Samples,
    path: str,
    shape: tuple[int, ...],
    offsets: Ints,
    world: World,
    precision: Precision,
    stop_asked: Callable[[], bool],
) -> None:
    def make() -> int:
        storage.make_dirs(os.path.dirname(path))
        needed = 4 * int(np.prod(shape))
        free = shutil.disk_usage(os.path.dirname(path)).free
        if free < needed:
            raise ClozeError(
                f"{path} takes {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free; free some space, or read one layer (frozen=last)"
            )
        np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape).flush()
        return 0

    world.first_decides(make)
    states = np.load(path, mmap_mode="r+")
    batches = evaluation_batches(samples.lengths)
    training = network.training
    network.eval()
    try:
        for round_ in range(-(-len(batches) // world.size)):
            if world.total([int(stop_asked())])[0]:
                raise Interrupted
            number = round_ * world.size + world.rank
            if number >= len(batches):
                continue
            with autocast(precision, world.device.type):
                found = network.states(move(samples.batch(batches[number], "rows"), world.device)).cpu().numpy()
            for row, i in enumerate(batches[number]):
                states[offsets[i] : offsets[i + 1]] = found[row, : offsets[i + 1] - offsets[i]]
    finally:
        network.train(training)
    states.flush()
    world.total([0])
