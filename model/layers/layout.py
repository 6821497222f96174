"""Batch layouts: the arrangement of tokens in memory, and which tokens see which.

A layer computes on hidden states and calls its layout for attention, independent of the class:

PaddedLayout: [B, L, D], padding included.
BucketedLayout: [T, D], real tokens; attention forms blocks of similar lengths, fast on CPUs.
PackedLayout: [T, D], real tokens, for the GPU's variable-length kernels.
KVCache: [B, l, D], new tokens of rows in generation, with cached earlier ones.

The second and third are in `unpadded.py`. The collator computes layouts on the host
(`cloze.model.data.layouts`); they never synchronize with the device.

Shapes: B batch, L length, T tokens, D model, N heads, H per head.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from cloze.model.layers.attention_kernels import (
    attend,
    attend_chunks,
    attention_maps,
    neighbour_chunks,
)

if TYPE_CHECKING:
    from typing_extensions import Self

# Minimum ratio of row length to one-sided window for computing attention in bands.
BAND_PAYS = 4

T = TypeVar("T")
Scores = Callable[
    [Tensor, Tensor], Tensor
]  # maps queries and keys, float [B, N, L, H], to a term of their scores, [1 or B, N, L, L]


@dataclass(frozen=True, slots=True)
class AttentionPattern:
    """Tokens of its own sequence that a token sees.

    Attributes:
        window: maximum distance; None: unlimited.
        causal: hide later tokens.
    """

    window: int | None = None
    causal: bool = False

    def visible(self, offset: Tensor) -> Tensor | None:
        """Return key visibility by key position minus query position; None if all are visible."""
        mask = None if self.window is None else offset.abs() <= self.window
        if self.causal:
            mask = offset <= 0 if mask is None else mask & (offset <= 0)
        return mask


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

    def repeated(self, times: int) -> Memory:
        """Return the memory of each row `times` times in a row, with kept keys and values."""
        real = None if self.real is None else self.real.repeat_interleave(times, dim=0)
        return Memory(self.states.repeat_interleave(times, dim=0), real, {})


class BatchLayout(ABC):
    """Arrangement of one batch.

    Attributes:
        memory: encoder states that cross-attention reads; None except in decoders.
        positions: int64, position of each token in its sequence, in the shape of hidden states
            without D; None: 0 to L - 1 in every row.
    """

    memory: Memory | None = None  # of the class, so that dataclasses do not see a field

    positions: Tensor | None

    def __post_init__(self) -> None:
        self._cache: dict[object, object] = {}

    @property
    @abstractmethod
    def max_distance(self) -> int:
        """Upper bound of sequence lengths; tokens that see each other are closer."""

    @abstractmethod
    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        pattern: AttentionPattern,
        dropout: float,
        added: Scores | None = None,
    ) -> Tensor:
        """Compute attention for query, key and value, float [..., N, H]; return that shape.

        Args:
            pattern: visible tokens.
            dropout: dropout of the probabilities; 0 outside training.
            added: function that gives an additional term of the scores, for blocks of L tokens, L
                at most `max_distance`.
        """

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Return the layout with changed tensors and an empty cache; layouts are dataclasses."""
        values = {attribute.name: getattr(self, attribute.name) for attribute in fields(self)}  # type: ignore[arg-type]
        return type(self)(
            **{
                name: change(value) if isinstance(value, Tensor) else value
                for name, value in values.items()
            }
        )

    def to(self, device: torch.device, non_blocking: bool = False) -> Self:
        """Copy the layout to a device, as `Tensor.to`."""
        return self.map_tensors(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        """Copy the layout to page-locked memory, for asynchronous transfer to a GPU."""
        return self.map_tensors(Tensor.pin_memory)

    def without_cache(self) -> Self:
        """Return the layout with an empty cache, for a new forward pass."""
        return self.map_tensors(lambda tensor: tensor)

    def cached(self, name: object, make: Callable[[], T]) -> T:
        """Return `make()`, computed at the first call with `name` and shared by all layers."""
        if name not in self._cache:
            self._cache[name] = make()
        return self._cache[name]  # type: ignore[return-value]


@dataclass(eq=False)
class PaddedLayout(BatchLayout):
    """Padded rows, [B, L, D].

    Args:
        shape: (B, L).
        real: bool [B, L], true at tokens; None: everywhere.
        sequence: int64 [B, L], sequence number of each token in packed rows; other sequences are
            hidden. None: one sequence per row.
        positions: int64 [B, L], see `BatchLayout`; packed rows only.
        causal: bool [B], rows with causal attention in addition to the pattern; None: no row.
        maps: list for each layer's attention probabilities, float [B, N, L, L]; None: not computed.
    """

    shape: tuple[int, int]
    real: Tensor | None = None
    sequence: Tensor | None = None
    positions: Tensor | None = None
    causal: Tensor | None = None
    maps: list[Tensor] | None = None

    @property
    def max_distance(self) -> int:
        return self.shape[1]

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        pattern: AttentionPattern,
        dropout: float,
        added: Scores | None = None,
    ) -> Tensor:
        query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
        if (
            added is None
            and self.maps is None
            and pattern.window is not None
            and self.shape[1] >= BAND_PAYS * pattern.window
        ):
            band = self.cached((pattern, query.dtype, "band"), lambda: self._band(pattern, query))
            keys, values = (
                neighbour_chunks(tensor, pattern.window, band.shape[1]) for tensor in (key, value)
            )
            return attend_chunks(query, keys, values, band, dropout).transpose(1, 2)
        bias = self.cached((pattern, query.dtype), lambda: self._bias(pattern, query))
        if added is not None:
            scores = added(query, key)
            bias = scores if bias is None else scores + bias
        if self.maps is not None:
            self.maps.append(attention_maps(query, key, bias))
        return attend(query, key, value, bias, dropout).transpose(1, 2)

    def _bias(self, pattern: AttentionPattern, like: Tensor) -> Tensor | None:
        """Return the bias of scores, [1 or B, 1, 1 or L, L]; None for no bias."""
        if pattern.window is not None and pattern.window >= self.shape[1] - 1:
            pattern = AttentionPattern(causal=pattern.causal)  # the window covers the whole row
        visible = self._visible(
            pattern, self.real, lambda row: row[:, :, None], lambda row: row[:, None], like.device
        )
        return None if visible is None else additive(visible[:, None], like.dtype)

    def _band(self, pattern: AttentionPattern, like: Tensor) -> Tensor:
        """Return the bias of `attend_chunks`, [1 or B, C, 1, W, 3W]."""
        real = torch.ones(1, self.shape[1], dtype=torch.bool, device=like.device)
        visible = self.visible_in_chunks(pattern, real if self.real is None else self.real)
        return additive(visible[:, :, None], like.dtype)

    def visible_in_chunks(self, pattern: AttentionPattern, real: Tensor) -> Tensor:
        """Return the keys that are visible to each chunk of W queries, W being the window.

        Args:
            real: bool [1 or B, L], keys that any query sees.

        Returns:
            bool [1 or B, C, W, 3W], C = ceil(L / W): by query of the chunk, and by key of the chunk
            and its two neighbours; False outside the row.
        """
        width, length = pattern.window or 1, self.shape[1]
        chunks = -(-length // width)

        def as_queries(row: Tensor) -> Tensor:
            filled = pad(row, (0, chunks * width - length))
            return filled.view(len(row), chunks, width, 1)

        def as_keys(row: Tensor) -> Tensor:
            filled = pad(row, (width, (chunks + 1) * width - length))
            return filled.unfold(1, 3 * width, width)[:, :, None]

        visible = self._visible(pattern, real, as_queries, as_keys, real.device)
        assert visible is not None
        return visible

    def _visible(
        self,
        pattern: AttentionPattern,
        real: Tensor | None,
        as_queries: Callable[[Tensor], Tensor],
        as_keys: Callable[[Tensor], Tensor],
        device: torch.device,
    ) -> Tensor | None:
        """Return which keys each query sees, broadcast over rows; None: all see all.

        Args:
            as_queries, as_keys: arrange a value per token, [1 or B, L], by query and by key.
        """
        positions = torch.arange(self.shape[1], device=device)[None]
        query, key = as_queries(positions), as_keys(positions)
        visible = pattern.visible(key - query)
        terms = []
        if self.causal is not None:
            terms.append((key <= query) | ~self.causal.view(-1, *[1] * (query.dim() - 1)))
        if self.sequence is not None:
            terms.append(as_queries(self.sequence) == as_keys(self.sequence))
        if real is not None:
            terms.append(as_keys(real))
        for term in terms:
            visible = term if visible is None else visible & term
        return visible


@dataclass(eq=False)
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

    rows: int
    room: int
    positions: Tensor = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.positions = torch.zeros(self.rows, 0, dtype=torch.int64)
        # Keys and values of each layer, in running order: float [B, R, N, H].
        self._layers: list[tuple[Tensor, Tensor]] = []
        self._length = 0  # number of cached positions
        self._layer = 0  # next layer that attends

    def advance(self, positions: Tensor, longest: int) -> Self:
        """Set the positions of the next tokens, int64 [B, l] below `longest`; return self."""
        self.positions, self._length = positions, longest
        return self

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> Self:
        copy = type(self)(self.rows, self.room)
        copy._layers = [(change(keys), change(values)) for keys, values in self._layers]
        copy.memory = self.memory
        return copy.advance(change(self.positions), self._length)

    def without_cache(self) -> Self:
        """Return self, reset to the first layer; cached keys and values stay."""
        self._cache.clear()
        self._layer = 0
        return self

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
            shape = (self.rows, self.room, *key.shape[2:])
            self._layers.append((key.new_zeros(shape), value.new_zeros(shape)))
        keys, values = self._layers[self._layer]
        self._layer += 1
        index = self.positions[:, :, None, None].expand_as(key)
        keys.scatter_(1, index, key)
        values.scatter_(1, index, value)
        cached_keys, cached_values = (
            tensor[:, : self._length].transpose(1, 2) for tensor in (keys, values)
        )
        bias = self.cached((pattern.window, query.dtype), lambda: self._bias(pattern, query.dtype))
        query = query.transpose(1, 2)
        if added is not None:
            bias = bias + added(query, cached_keys)
        return attend(query, cached_keys, cached_values, bias, dropout).transpose(1, 2)

    def _bias(self, pattern: AttentionPattern, dtype: torch.dtype) -> Tensor:
        """Return the bias of scores, [B, 1, l, seen]."""
        offset = (
            torch.arange(self._length, device=self.positions.device) - self.positions[:, :, None]
        )
        visible = AttentionPattern(window=pattern.window, causal=True).visible(offset)
        assert visible is not None
        return additive(visible[:, None], dtype)


def additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a bias that hides all keys except those at which `visible`, bool, is True.

    The value -10000 is the reference program's (google-research/bert, modeling.py, `adder`). Its
    exponential is exactly 0 in fp32, it fits fp16 and bf16, and rows of padding stay finite.
    """
    return visible.logical_not().to(dtype) * -10000.0
