"""Rows that grow at their ends, for a model that writes: what was read before is not computed again.

Each layer's keys and values of all tokens so far are kept; a step brings the new tokens alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from model.layers.attention_kernels import attend
from model.layers.layout import Layout, Pattern, Scores, additive

if TYPE_CHECKING:
    from typing_extensions import Self


class Decoding(Layout):
    """New tokens of rows, [B, l, D], over the keys and values of the tokens before them. No token sees what comes after it.

    Rows may have different lengths: a token's keys and values are kept at its position. What a row's padding leaves behind the
    row's end is not seen from any position before, and is written over by the tokens that come there.

    Args:
        rows: B.
        room: the most tokens of a row, R.

    Attributes:
        positions: int64 [B, l], of the new tokens; `step` says them.
    """

    positions: Tensor

    def __init__(self, rows: int, room: int) -> None:
        super().__init__()
        self.rows, self.room = rows, room
        self.positions = torch.zeros(rows, 0, dtype=torch.int64)
        self._kept: list[tuple[Tensor, Tensor]] = []  # of each layer, in the order of running: float [B, R, N, H] twice
        self._seen = 0  # positions of which something is kept
        self._layer = 0  # that attends next

    def step(self, positions: Tensor, longest: int) -> Self:
        """Say where the tokens of the next forward pass are: int64 [B, l], all below `longest`. Returns itself."""
        self.positions, self._seen = positions, longest
        return self

    def changed(self, change: Callable[[Tensor], Tensor]) -> Self:
        found = type(self)(self.rows, self.room)
        found._kept = [(change(keys), change(values)) for keys, values in self._kept]
        return found.step(change(self.positions), self._seen)

    def fresh(self) -> Self:
        """Itself at the first layer: what is kept goes from one forward pass into the next."""
        self._made.clear()
        self._layer = 0
        return self

    @property
    def reach(self) -> int:
        return self._seen

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, pattern: Pattern, dropout: float, added: Scores | None = None
    ) -> Tensor:
        assert added is None, "no family that writes adds scores of its own"
        if self._layer == len(self._kept):
            shape = (self.rows, self.room, *key.shape[2:])
            self._kept.append((key.new_zeros(shape), value.new_zeros(shape)))
        keys, values = self._kept[self._layer]
        self._layer += 1
        places = self.positions[:, :, None, None].expand_as(key)
        keys.scatter_(1, places, key)
        values.scatter_(1, places, value)
        before, said = (part[:, : self._seen].transpose(1, 2) for part in (keys, values))
        bias = self.once((pattern.window, query.dtype), lambda: self._bias(pattern, query.dtype))
        return attend(query.transpose(1, 2), before, said, bias, dropout).transpose(1, 2)

    def _bias(self, pattern: Pattern, dtype: torch.dtype) -> Tensor | None:
        """What to add to scores, [B, 1, l, seen]."""
        offset = torch.arange(self._seen, device=self.positions.device) - self.positions[:, :, None]
        seen = Pattern(window=pattern.window, causal=True).visible(offset)
        return additive(None if seen is None else seen[:, None], dtype)
