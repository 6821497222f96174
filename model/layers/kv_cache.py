"""The KV cache of text generation."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cloze.model.layers.attention_kernels import attend
from cloze.model.layers.layout import AttentionPattern, BatchLayout, Scores, additive

if TYPE_CHECKING:
    from typing_extensions import Self


class KVCache(BatchLayout):
    """Causal layout of new tokens, [B, l, D], with cached keys and values of earlier tokens.

    Rows may have different lengths: keys and values are stored at their positions. Entries of
    padding after a row's end are not visible, and later tokens overwrite them.

    Args:
        rows: B.
        room: R, maximum tokens per row.

    Attributes:
        positions: int64 [B, l], positions of the new tokens, set by `advance`.
    """

    positions: Tensor

    def __init__(self, rows: int, room: int) -> None:
        super().__init__()
        self.rows, self.room = rows, room
        self.positions = torch.zeros(rows, 0, dtype=torch.int64)
        self._kept: list[
            tuple[Tensor, Tensor]
        ] = []  # keys and values of each layer, in running order: float [B, R, N, H]
        self._seen = 0  # number of cached positions
        self._layer = 0  # next layer that attends

    def advance(self, positions: Tensor, longest: int) -> Self:
        """Set the positions of the next tokens, int64 [B, l] below `longest`; return self."""
        self.positions, self._seen = positions, longest
        return self

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> Self:
        found = type(self)(self.rows, self.room)
        found._kept = [(change(keys), change(values)) for keys, values in self._kept]
        return found.advance(change(self.positions), self._seen)

    def without_cache(self) -> Self:
        """Return self, reset to the first layer; cached keys and values stay."""
        self._made.clear()
        self._layer = 0
        return self

    @property
    def max_distance(self) -> int:
        return self._seen

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        pattern: AttentionPattern,
        dropout: float,
        added: Scores | None = None,
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
        bias = self.cached((pattern.window, query.dtype), lambda: self._bias(pattern, query.dtype))
        return attend(query.transpose(1, 2), before, said, bias, dropout).transpose(1, 2)

    def _bias(self, pattern: AttentionPattern, dtype: torch.dtype) -> Tensor | None:
        """Return the bias of scores, [B, 1, l, seen]."""
        offset = torch.arange(self._seen, device=self.positions.device) - self.positions[:, :, None]
        seen = AttentionPattern(window=pattern.window, causal=True).visible(offset)
        return additive(None if seen is None else seen[:, None], dtype)
