"""Frozen features: a BiLSTM and a task head on a frozen encoder (Devlin et al. 2019, 5.3, table 7).

    encoder -> states of some layers [B, L, K, D] -> mixed or concatenated -> BiLSTM
    [B, L, 2 * size] -> task head

The encoder has no gradient and no dropout, so its states for a text are constant. The checkpoint
contains all of the encoder. The task's network has a backbone that returns its input, of the
BiLSTM's width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cloze.core.errors import UsageError
from cloze.model.families.config import ModelConfig
from cloze.model.families.models import Backbone
from cloze.model.layers.heads import mean_state
from cloze.model.tasks.options import Frozen
from cloze.model.tasks.task import Samples, Task, TaskMetadata
from cloze.model.train.engines.device_scalars import AsyncCopy

FOUR = 4


def layers_read(choice: str, layers: int) -> list[int]:
    """Return the numbers of the layers of a choice; 0 is the embeddings.

    Raises:
        UsageError: the encoder has too few layers.
    """
    needed = {"second-to-last": 2, "sum-last-four": FOUR, "concat-last-four": FOUR}.get(choice, 1)
    if layers < needed:
        raise UsageError(
            f"frozen ({choice}) needs {needed} layers, the encoder has {layers}; use last or "
            f"sum-all"
        )
    first, last = {
        "embeddings": (0, 0),
        "second-to-last": (layers - 1, layers - 1),
        "last": (layers, layers),
        "sum-all": (1, layers),
    }.get(choice, (layers - FOUR + 1, layers))
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
        lstm_dropout = dropout if how.lstm_layers > 1 else 0.0
        self.dropout = nn.Dropout(dropout)
        self.lstm = nn.LSTM(
            width,
            how.lstm_size,
            how.lstm_layers,
            batch_first=True,
            bidirectional=True,
            dropout=lstm_dropout,
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


class _Given(nn.Module):
    """Encoder that returns its input."""

    def forward(self, hidden: Tensor, *_: Any) -> Tensor:
        return hidden


class _Mean(nn.Module):
    """Pooler: the mean over real positions."""

    def forward(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        return mean_state(hidden, attention_mask)


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
        self.layers = layers_read(how.layers, len(self._parts) - 1)
        self.reader = FeatureBiLSTM(how, len(self.layers), config.hidden_size, dropout)
        self.head = head

    @property
    def _parts(self) -> list[nn.Module]:
        """Modules whose outputs are the states: embeddings and layers."""
        return [
            self.encoder.get_submodule("embeddings"),
            *self.encoder.get_submodule("layers").children(),
        ]

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
        modules = self._parts
        outputs: dict[int, Tensor] = {}

        def keep(number: int) -> Callable[..., None]:
            def hook(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
                outputs[number] = output

            return hook

        hooks = [modules[number].register_forward_hook(keep(number)) for number in self.layers]
        try:
            last_state = self.encoder(
                batch["input_ids"], batch["attention_mask"], batch["token_type_ids"]
            )
        finally:
            for hook in hooks:
                hook.remove()
        outputs[len(modules) - 1] = last_state  # includes the final norm of a pre-norm family
        return torch.stack([outputs[number].float() for number in self.layers], dim=2)

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
    meaning: TaskMetadata,
    dropout: float,
) -> nn.Module:
    """Build the task's network on a backbone, or on frozen features if the metadata has `frozen`.

    Raises:
        UsageError: the encoder has too few layers for the choice.
    """
    options = meaning.get("frozen")
    if not options:
        return task.network(backbone, config, meaning, dropout)
    frozen = Frozen.model_validate(options)
    wide_config = config.model_copy(update={"hidden_size": 2 * frozen.lstm_size})
    head = task.network(Backbone(encoder=_Given(), pooler=_Mean()), wide_config, meaning, dropout)
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
