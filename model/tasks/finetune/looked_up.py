"""The rows of an embedding table that a fine-tuning looks up, trained as a table of their own.

A row that no text of the task looks up has no gradient: AdamW does nothing but shrink it, like all such rows by the same factor. Kept in
one table with the others they are most of what a step moves through memory: a gradient of zeros to clear and to measure, two moments
of zeros to update. So the rows that are looked up become a table of their own, with one row of ones beneath them which nothing looks
up: what the optimizer makes of it is the factor of all rows that stayed behind. The result is the same but for rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from model.layers.embeddings import Table
from model.layers.encoder import Encoder
from model.tasks.encode import groups_of
from model.tasks.task import Ints, Samples
from model.train.state import Resumed

WORTH = 0.75  # of a table's rows are at most looked up, or it is left as it is
AT_ONCE = 256  # samples that are asked for their ids together
IDS = "input_ids"  # so end the names of what is looked up
# Beside the table in a checkpoint of a training: the factor of the rows that stayed behind, fp32 [1].
SHRUNK = ".shrunk"


class LookedUp(nn.Module):
    """Some rows of a table, trained; in a state dict it is the whole table, and beside it `shrunk`.

    Args:
        table: whose rows they are; it is not used any more.
        rows: their numbers, int64 [n], each once.
    """

    others: Tensor
    rows: Tensor
    places: Tensor

    def __init__(self, table: Table, rows: Ints) -> None:
        super().__init__()
        whole, numbers = table.weight.detach(), torch.from_numpy(rows)
        self.register_buffer("others", whole, persistent=False)
        self.register_buffer("rows", numbers, persistent=False)
        places = torch.full((len(whole),), -1).index_put((numbers,), torch.arange(len(rows)))
        self.register_buffer("places", places, persistent=False)
        self.weight = nn.Parameter(torch.cat([whole[numbers], torch.ones(1, whole.shape[1])]))

    def forward(self, ids: Tensor) -> Tensor:
        """Args: ids: int64, any shape, all among the rows. Returns: float [..., E].

        Raises:
            IndexError: one is not.
        """
        return embedding(self.places[ids], self.weight)

    def whole(self) -> Tensor:
        """The table, float [V, E]."""
        with torch.no_grad():
            return (self.others * self.weight[-1]).index_copy_(0, self.rows, self.weight[:-1])

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        if keep_vars:  # whoever asks wants the parameters themselves
            destination[f"{prefix}weight"] = self.weight
            return
        destination[f"{prefix}weight"] = self.whole()
        destination[f"{prefix[:-1]}{SHRUNK}"] = self.weight.detach()[-1, :1].clone()

    def _load_from_state_dict(self, state_dict: Mapping[str, Tensor], prefix: str, *_: Any) -> None:
        """Take the rows and the factor; the rows that stayed behind are those that training began with."""
        with torch.no_grad():
            self.weight[:-1] = state_dict[f"{prefix}weight"][self.rows]
            self.weight[-1] = state_dict[f"{prefix[:-1]}{SHRUNK}"]


def only_looked_up(
    network: nn.Module, splits: Iterable[Samples], pad: int, resumed: Resumed | None, *, whole: bool = False
) -> None:
    """Let the network train those rows of its word embeddings that occur in the splits, where that is worth it.

    Args:
        network: with an `encoder` of ours.
        pad: the id of padding.
        resumed: a checkpoint of this training, of which this goes on as it was begun.
        whole: the engine wants tables as they are; a checkpoint that was written by another one is changed to that.
    """
    encoder = getattr(network, "encoder", None)
    table = encoder.embeddings.word if isinstance(encoder, Encoder) else None
    if encoder is None or not isinstance(table, Table) or not table.weight.requires_grad:
        return
    if not _reduced(resumed) if resumed is not None else whole:
        return
    rows = _rows(splits, len(table.weight), pad)
    if whole and resumed is not None:
        _filled_up(resumed, rows, len(table.weight))
    elif len(rows) <= WORTH * len(table.weight):
        encoder.embeddings.add_module("word", LookedUp(table, rows))


def plain(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a network that is not to be trained on."""
    return {name: tensor for name, tensor in weights.items() if not name.endswith(SHRUNK)}


def _reduced(resumed: Resumed) -> bool:
    return any(name.endswith(SHRUNK) for name in resumed.weights)


def _rows(splits: Iterable[Samples], size: int, pad: int) -> Ints:
    """The numbers of the rows that are looked up, int64 [n], ascending."""
    seen = np.zeros(size, dtype=np.bool_)
    seen[pad] = True
    for samples in splits:
        for group in groups_of(samples):
            for start in range(0, len(group), AT_ONCE):
                for name, part in samples.batch(group[start : start + AT_ONCE], "rows").items():
                    if name.endswith(IDS):
                        seen[part.numpy().ravel()] = True
    return np.flatnonzero(seen)


def _filled_up(resumed: Resumed, rows: Ints, size: int) -> None:
    """Turn the checkpoint into one of whole tables, in place: the moments of rows without a gradient are zeros."""
    (shrunk,) = (name for name in resumed.weights if name.endswith(SHRUNK))
    del resumed.weights[shrunk]
    table = f"{shrunk.removesuffix(SHRUNK)}.weight/"
    for name, tensor in resumed.optimizer.items():
        if name.startswith(table):
            whole = tensor.new_zeros(size, tensor.shape[1])
            resumed.optimizer[name] = whole.index_copy_(0, torch.from_numpy(rows), tensor[:-1])
