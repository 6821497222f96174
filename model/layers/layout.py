"""How a batch lies in memory on its way through the layers, and which tokens see which.

A layer computes on hidden states and asks its layout to attend; it does not know which of these it runs in:

    Rows      [B, L, D], padding included, as the batch comes
    Buckets   [T, D], real tokens end to end, of which attention makes blocks of similar lengths: what a CPU is fast at
    Packed    [T, D], real tokens alone, end to end, for the GPU's variable-length kernels
    Decoding  [B, l, D], the new tokens of rows that a model writes, over what is kept of those before

`Buckets` and `Packed` are in `unpadded.py`, `Decoding` in `decoding.py`. The collator makes a batch's layout on the host (`model.data.layouts`), and nothing
in a layout asks the device for a number: a GPU never waits for the host here, nor the host for the GPU.

Shapes: B batch, L length, T tokens, D model, N heads, H per head.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from model.layers.attention_kernels import attend, attention_maps, banded

if TYPE_CHECKING:
    from typing_extensions import Self

BAND_PAYS = 4  # a window's attention is computed in bands where rows are at least this many times its one-sided width

T = TypeVar("T")
Scores = Callable[
    [Tensor, Tensor], Tensor
]  # queries and keys, float [B, N, L, H], to what is added to their scores, [B, N, L, L]


@dataclass(frozen=True, slots=True)
class Pattern:
    """Which tokens of its own sequence a token sees.

    Attributes:
        window: those at most this far away, on either side; None: all.
        causal: those that do not come after it.
    """

    window: int | None = None
    causal: bool = False

    def visible(self, offset: Tensor) -> Tensor | None:
        """Whether a key is seen from a query, by key position minus query position; None: all are."""
        seen = None if self.window is None else offset.abs() <= self.window
        if self.causal:
            seen = offset <= 0 if seen is None else seen & (offset <= 0)
        return seen


class Layout(ABC):
    """One batch's arrangement.

    Attributes:
        positions: int64, of each token in its own sequence, of the shape that the hidden states have before D; None: 0 to L - 1
            in every row.
    """

    positions: Tensor | None

    def __init__(self) -> None:
        self._made: dict[object, object] = {}

    @property
    @abstractmethod
    def reach(self) -> int:
        """At least as many as the longest sequence has tokens: no two that see each other are as far apart."""

    @abstractmethod
    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, pattern: Pattern, dropout: float, added: Scores | None = None
    ) -> Tensor:
        """Mix values by attention: float [..., N, H] each, where hidden states are [..., D]. Returns the same shape.

        Args:
            pattern: who sees whom.
            dropout: share of the probabilities dropped; 0 outside training.
            added: what the scores have beside the products of queries and keys; it is asked for blocks of L tokens in a row, L at
                most `reach`.
        """

    @abstractmethod
    def changed(self, change: Callable[[Tensor], Tensor]) -> Self:
        """The same layout of changed tensors, with nothing made `once` yet."""

    def to(self, device: torch.device, non_blocking: bool = False) -> Self:
        """The same on a device, as `Tensor.to`."""
        return self.changed(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        """The same in page-locked memory, from where a GPU fetches it while it computes."""
        return self.changed(Tensor.pin_memory)

    def fresh(self) -> Self:
        """The same with nothing made `once` yet: what a forward pass begins with, so that none keeps another's tensors."""
        return self.changed(lambda tensor: tensor)

    def once(self, name: object, make: Callable[[], T]) -> T:
        """What `make` gives, made when it is first asked for: all layers share it."""
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]  # type: ignore[return-value]


class Rows(Layout):
    """The batch as it comes, [B, L, D].

    Args:
        shape: (B, L).
        real: bool [B, L], true where there is a token; None: everywhere.
        sequence: int64 [B, L], of packed rows: the number of the sequence that each token is of; others are not seen. None: a row
            is one sequence.
        positions: int64 [B, L], of packed rows: see `Layout`.
        causal: bool [B], rows none of whose tokens sees what comes after it, whatever the pattern says; None: none.
        maps: where to put each layer's attention probabilities, float [B, N, L, L], which then are all computed.
        one_each: whether the positions that a layer is asked for are one a row, in the order of the rows, which are one sequence each:
            then it asks nothing of the others.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        real: Tensor | None = None,
        sequence: Tensor | None = None,
        positions: Tensor | None = None,
        causal: Tensor | None = None,
        maps: list[Tensor] | None = None,
        one_each: bool = False,
    ) -> None:
        super().__init__()
        self.shape, self.real, self.sequence, self.positions = shape, real, sequence, positions
        self.causal, self.maps, self.one_each = causal, maps, one_each

    def changed(self, change: Callable[[Tensor], Tensor]) -> Self:
        real, sequence, positions, causal = (
            None if tensor is None else change(tensor) for tensor in (self.real, self.sequence, self.positions, self.causal)
        )
        return type(self)(self.shape, real, sequence, positions, causal, self.maps, self.one_each)

    def recording(self, maps: list[Tensor]) -> Rows:
        """The same rows, whose attention probabilities go to `maps`."""
        return Rows(self.shape, self.real, self.sequence, self.positions, self.causal, maps)

    @property
    def reach(self) -> int:
        return self.shape[1]

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, pattern: Pattern, dropout: float, added: Scores | None = None
    ) -> Tensor:
        query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
        if added is None and self.maps is None and pattern.window is not None and self.shape[1] >= BAND_PAYS * pattern.window:
            band = self.once((pattern, query.dtype, "band"), lambda: self._band(pattern, query))
            return banded(query, key, value, band, pattern.window, dropout).transpose(1, 2)
        bias = self.once((pattern, query.dtype), lambda: self._bias(pattern, query))
        if added is not None:
            scores = added(query, key)
            bias = scores if bias is None else scores + bias
        if self.maps is not None:
            self.maps.append(attention_maps(query, key, bias))
        return attend(query, key, value, bias, dropout).transpose(1, 2)

    def attend_once(self, query: Tensor, key: Tensor, value: Tensor, pattern: Pattern, place: Tensor) -> Tensor:
        """As `attend` for one query a row, outside training.

        Args:
            query: float [B, N, H].
            key, value: float [B, L, N, H].
            pattern: as for `attend`.
            place: int64 [B], where in its row each query stands.

        Returns:
            float [B, N, H].
        """
        bias = self.once((pattern, query.dtype), lambda: self._bias(pattern, query))
        if bias is not None:
            own = place if bias.shape[2] > 1 else torch.zeros_like(place)
            bias = bias.expand(len(place), -1, -1, -1)[torch.arange(len(place), device=place.device), :, own, None]
        return attend(query.unsqueeze(2), key.transpose(1, 2), value.transpose(1, 2), bias, 0.0).squeeze(2)

    def _bias(self, pattern: Pattern, like: Tensor) -> Tensor | None:
        """What to add to scores, [1 or B, 1, 1 or L, L]; None: nothing."""
        if pattern.window is not None and pattern.window >= self.shape[1] - 1:
            pattern = Pattern(causal=pattern.causal)  # it hides nothing of rows as short as these
        place = torch.arange(self.shape[1], device=like.device)
        seen = pattern.visible(place - place[:, None])
        seen = None if seen is None else seen[None, None]
        if self.causal is not None:
            before = (place <= place[:, None]) | ~self.causal[:, None, None, None]
            seen = before if seen is None else seen & before
        if self.sequence is not None:
            same = (self.sequence[:, :, None] == self.sequence[:, None, :])[:, None]
            seen = same if seen is None else seen & same
        if self.real is not None:
            real = self.real[:, None, None, :]
            seen = real if seen is None else seen & real
        return additive(seen, like.dtype)

    def _band(self, pattern: Pattern, like: Tensor) -> Tensor:
        """The same for `banded`: [1 or B, C, 1, W, 3W], where W is the window and C the number of chunks."""
        width, length = pattern.window or 1, self.shape[1]
        chunks = -(-length // width)
        place = torch.arange(length, device=like.device)[None]
        real = torch.ones_like(place, dtype=torch.bool) if self.real is None else self.real
        query, key = chunked(place, width, chunks), neighbours(place, width, chunks)
        seen = pattern.visible(key[:, :, None, :] - query[:, :, :, None])
        assert seen is not None
        if self.causal is not None:
            seen = seen & ((key[:, :, None, :] <= query[:, :, :, None]) | ~self.causal[:, None, None, None])
        seen = seen & neighbours(real, width, chunks)[:, :, None, :]
        if self.sequence is not None:
            query, key = chunked(self.sequence, width, chunks), neighbours(self.sequence, width, chunks)
            seen = seen & (key[:, :, None, :] == query[:, :, :, None])
        bias = additive(seen[:, :, None], like.dtype)
        assert bias is not None
        return bias


def additive(seen: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """What to add to attention scores so that nothing but the `seen` is attended to; None: nothing to hide.

    The value -10000 is the reference program's (google-research/bert, modeling.py, `adder`): its exponential is
    exactly 0 in fp32, it fits fp16 and bf16, and a row of nothing but padding stays finite, which -inf would not.
    """
    return None if seen is None else seen.logical_not().to(dtype) * -10000.0


def chunked(values: Tensor, width: int, chunks: int) -> Tensor:
    """[B, L] to [B, C, W], filled up with zeros at the end."""
    filled = torch.nn.functional.pad(values, (0, chunks * width - values.shape[1]))
    return filled.view(len(values), chunks, width)


def neighbours(values: Tensor, width: int, chunks: int) -> Tensor:
    """[B, L] to [B, C, 3W]: each chunk's own and the one before and behind it, zeros (false) beyond the row."""
    filled = torch.nn.functional.pad(values, (width, (chunks + 1) * width - values.shape[1]))
    return filled.unfold(1, 3 * width, width)
