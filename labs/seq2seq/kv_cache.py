"""What a decoder has read: the encoder's states, and keys and values of its earlier tokens."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from cloze.model.layers.cpu import attend
from cloze.model.layers.layout import AttentionPattern, BatchLayout, Scores, additive

if TYPE_CHECKING:
    from typing import Self


@dataclass(eq=False)
class Memory:
    """Encoder states that a decoder's cross-attention reads.

    Args:
        states: float [B, S, D].
        real: bool [B, S], true at tokens; None: everywhere.
        kept: keys and values by layer, kept from step to step of a generation; None: not kept.
    """

    states: Tensor
    real: Tensor | None = None
    kept: dict[object, tuple[Tensor, Tensor]] | None = None

    def projected(
        self, layer: object, project: Callable[[Tensor], tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """Return a layer's keys and values, float [B, S, N, H] each."""
        if self.kept is None:
            return project(self.states)
        if layer not in self.kept:
            self.kept[layer] = project(self.states)
        return self.kept[layer]

    def bias(self, dtype: torch.dtype) -> Tensor | None:
        """Return the bias of scores, [B, 1, 1, S], which hides padding; None without padding."""
        return None if self.real is None else additive(self.real[:, None, None], dtype)

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> Memory:
        kept = self.kept and {layer: (change(k), change(v)) for layer, (k, v) in self.kept.items()}
        return Memory(change(self.states), None if self.real is None else change(self.real), kept)

    def repeated(self, times: int) -> Memory:
        """Return the memory of each row `times` times in a row, with kept keys and values."""
        # An empty dict, not the kept one: its keys and values have the single rows' shapes.
        real = None if self.real is None else self.real.repeat_interleave(times, dim=0)
        return Memory(self.states.repeat_interleave(times, dim=0), real, {})


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
        super().__init__((rows, 0), positions=torch.zeros(rows, 0, dtype=torch.int64))
        self.room = room
        # Keys and values of each layer, in running order: float [B, R, N, H].
        self._layers: list[tuple[Tensor, Tensor]] = []
        self._length = 0  # number of cached positions
        self._layer = 0  # next layer that attends

    def advance(self, positions: Tensor, longest: int) -> Self:
        """Set the positions of the next tokens, int64 [B, l] below `longest`; return self."""
        self.positions, self._length = positions, longest
        return self

    def fresh(self, change: Callable[[Tensor], Tensor] | None = None) -> Self:
        """Return self, reset to the first layer, with cached keys and values; or a changed copy."""
        if change is None:
            self.__post_init__()
            self._layer = 0
            return self
        copy = type(self)(self.shape[0], self.room)
        copy._layers = [(change(keys), change(values)) for keys, values in self._layers]
        if self.memory is not None:
            copy.memory = self.memory.map_tensors(change)
        return copy.advance(change(self.positions), self._length)

    @property
    def max_distance(self) -> int:
        return self._length

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        pattern: AttentionPattern,
        dropout: float,
        added: Scores | None = None,
    ) -> Tensor:
        if self._layer == len(self._layers):
            shape = (self.shape[0], self.room, *key.shape[2:])
            self._layers.append((key.new_zeros(shape), value.new_zeros(shape)))
        keys, values = self._layers[self._layer]
        self._layer += 1
        # At their positions, not at the end: rows of a batch have different lengths.
        index = self.positions[:, :, None, None].expand_as(key)
        keys.scatter_(1, index, key)
        values.scatter_(1, index, value)
        cached_keys, cached_values = (
            tensor[:, : self._length].transpose(1, 2) for tensor in (keys, values)
        )
        known = (pattern, query.dtype, False)
        if (bias := self.biases.get(known)) is None:
            bias = self.biases[known] = self._bias(pattern, query.dtype)
        query = query.transpose(1, 2)
        if added is not None:
            bias = bias + added(query, cached_keys)
        return attend(query, cached_keys, cached_values, bias, dropout).transpose(1, 2)

    def _bias(self, pattern: AttentionPattern, dtype: torch.dtype) -> Tensor:
        """Return the bias of scores, [B, 1, l, seen]."""
        offset = (
            torch.arange(self._length, device=self.positions.device) - self.positions[:, :, None]
        )
        # Causal whatever the pattern says: later places hold padding, or nothing yet.
        visible = AttentionPattern(window=pattern.window, causal=True).visible(offset)
        assert visible is not None
        return additive(visible[:, None], dtype)


class RelativeBias(nn.Module):
    """Bias of attention scores by relative position, shared by all layers of a stack (T5).

    Half of the buckets have one distance each, the others grow logarithmically (Raffel et al.,
    2020, section 2.1; mesh-tensorflow, transformer_layers.py, `_relative_position_bucket`).

    Args:
        num_heads: N.
        buckets: number of buckets, over both directions unless `causal`.
        farthest: distance from which on all keys share the last bucket.
        causal: only earlier keys are visible, and have all buckets.
    """

    def __init__(self, num_heads: int, *, buckets: int, farthest: int, causal: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(buckets, num_heads)
        self.farthest, self.causal = farthest, causal

    def forward(self, layout: BatchLayout, query: Tensor, key: Tensor) -> Tensor:
        """Return the bias, float [1 or B, N, L, K], for query [B, N, L, H] and key [B, N, K, H]."""
        known, biases = (query.shape[2], key.shape[2]), layout.relative
        if known not in biases:
            biases[known] = self._bias(layout, query, key)
        return biases[known]

    def _bias(self, layout: BatchLayout, query: Tensor, key: Tensor) -> Tensor:
        asked = torch.arange(query.shape[2], device=query.device)[None]
        # New tokens of a generation are asked at their own positions, among all cached keys.
        if isinstance(layout, KVCache):
            asked = layout.positions
        offset = torch.arange(key.shape[2], device=query.device) - asked[:, :, None]
        bias: Tensor = self.table(self.bucket(offset))
        # [1 or B, L, K, N], since the table's rows are by head.
        return bias.permute(0, 3, 1, 2)

    def bucket(self, offset: Tensor) -> Tensor:
        """Return the bucket of each key position minus query position, int64 of any shape."""
        buckets, first = self.table.num_embeddings, torch.zeros_like(offset)
        if self.causal:
            distance = (-offset).clamp(min=0)
        else:
            buckets //= 2
            # Earlier keys have the first half of the table, later ones the second.
            first, distance = (offset > 0).long() * buckets, offset.abs()
        exact = buckets // 2
        # In transformers' order, whose rounding decides the bucket at some distances.
        # The clamp only keeps log(0) out: `where` takes small distances as they are.
        far = torch.log(distance.clamp(min=1).float() / exact) / math.log(self.farthest / exact)
        far = exact + (far * (buckets - exact)).long()
        return first + torch.where(distance < exact, distance, far.clamp(max=buckets - 1))
