"""Gradient-disentangled embedding sharing (He et al., "DeBERTaV3", 2023, section 3.2): two networks, one table, two gradients.

The table is its owner's to learn, and another network reads it as it is, moved by a table of differences that begins at zero and is
all that this network's gradient reaches.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from model.layers.embeddings import Table

DELTA = ".delta"  # so ends the name of what is to be added to the parameter `….weight`


class MovedTable(Table):
    """A table that the one network learns and the other reads moved: `weight` + `delta`, both float [V, E]."""

    def __init__(self, rows: int, size: int) -> None:
        super().__init__(rows, size)
        self.delta = nn.Parameter(torch.zeros(rows, size))

    def forward(self, ids: Tensor, moved: bool = True) -> Tensor:
        """Args: ids: int64, any shape; moved: as the other network reads it: `delta` alone has a gradient. Returns: float [..., E]."""
        found = embedding(ids, self.weight)
        return found.detach() + embedding(ids, self.delta) if moved else found


class BorrowedTable(nn.Module):
    """A `MovedTable` of another module's as its first network reads it: no parameters here, gradients where the owner is."""

    def __init__(self, owner: MovedTable) -> None:
        super().__init__()
        self._owner = (owner,)  # in a tuple, where torch does not register it

    @property
    def weight(self) -> Tensor:
        """Float [V, E]."""
        return self._owner[0].weight

    def forward(self, ids: Tensor) -> Tensor:
        """Args: ids: int64, any shape. Returns: float [..., E]."""
        found: Tensor = self._owner[0](ids, moved=False)
        return found


def merged(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights by name, with every `delta` added to the table that it moves, and gone: what is left of them after pretraining."""
    found = {name: tensor for name, tensor in state.items() if not name.endswith(DELTA)}
    for name in state.keys() - found.keys():
        table = name.removesuffix(DELTA) + ".weight"
        found[table] = found[table] + state[name]
    return found
