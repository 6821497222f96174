"""How a batch lies in memory on its way through the layers, and which tokens see which.

A layer computes on hidden states and asks its layout to attend; it does not know which of these it runs in:

    Rows      [B, L, D], padding included, as the batch comes
    Buckets   [T, D], rows of similar lengths side by side, with hardly any padding: what a CPU is fast at
    Packed    [T, D], real tokens alone, end to end, for the GPU's variable-length kernels (`varlen.py`)

Shapes: B batch, L length, T tokens, D model, N heads, H per head.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from model.layers.attention_kernels import attend, attention_maps, banded
from model.layers.varlen import varlen_attention

BUCKETS = 4  # groups that a batch's rows are cut into: more means less padding, smaller matrices and more operations
MULTIPLE = 16  # lengths are rounded up to it, as the collator does it: few distinct shapes, and full tiles in the matrix units
BAND_PAYS = 4  # a window's attention is computed in bands where rows are at least this many times its one-sided width

T = TypeVar("T")


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

    @abstractmethod
    def attend(self, query: Tensor, key: Tensor, value: Tensor, pattern: Pattern, dropout: float) -> Tensor:
        """Mix values by attention: float [..., N, H] each, where hidden states are [..., D]. Returns the same shape."""

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
        starts: bool [B, L], true where a sequence of a packed row begins; None: a row is one sequence.
        maps: where to put each layer's attention probabilities, float [B, N, L, L], which then are all computed.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        real: Tensor | None = None,
        starts: Tensor | None = None,
        maps: list[Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.shape = shape
        self.real = real
        self.sequence = None if starts is None else starts.cumsum(1)
        self.positions = None if starts is None else restarted(starts)
        self.maps = maps

    def attend(self, query: Tensor, key: Tensor, value: Tensor, pattern: Pattern, dropout: float) -> Tensor:
        query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
        if self.maps is None and pattern.window is not None and self.shape[1] >= BAND_PAYS * pattern.window:
            band = self.once((pattern, query.dtype, "band"), lambda: self._band(pattern, query))
            return banded(query, key, value, band, pattern.window, dropout).transpose(1, 2)
        bias = self.once((pattern, query.dtype), lambda: self._bias(pattern, query))
        if self.maps is not None:
            self.maps.append(attention_maps(query, key, bias))
        return attend(query, key, value, bias, dropout).transpose(1, 2)

    def _bias(self, pattern: Pattern, like: Tensor) -> Tensor | None:
        """What to add to scores, [1 or B, 1, 1 or L, L]; None: nothing."""
        place = torch.arange(self.shape[1], device=like.device)
        seen = pattern.visible(place - place[:, None])
        seen = None if seen is None else seen[None, None]
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
        seen = seen & neighbours(real, width, chunks)[:, :, None, :]
        if self.sequence is not None:
            query, key = chunked(self.sequence, width, chunks), neighbours(self.sequence, width, chunks)
            seen = seen & (key[:, :, None, :] == query[:, :, :, None])
        bias = additive(seen[:, :, None], like.dtype)
        assert bias is not None
        return bias


class Tokens(Layout):
    """A layout that leaves padding out: [T, D].

    Attributes:
        places: int64 [T], where in the flattened B * L each token comes from.
        real: bool [T], false for the few that only fill up; None: all are real.
        positions: int64 [T].
        shape: (B, L).
    """

    def __init__(self, places: Tensor, real: Tensor | None, positions: Tensor, shape: tuple[int, int]) -> None:
        super().__init__()
        self.places, self.real, self.positions, self.shape = places, real, positions, shape

    def take(self, values: Tensor) -> Tensor:
        """[B, L] to [T]."""
        return values.flatten()[self.places]

    def find(self, wanted: Tensor) -> Tensor:
        """Where in T the positions of the flattened B * L are, int64 [P]; 0 for those that are left out."""
        kept = torch.arange(len(self.places), device=wanted.device)
        if self.real is not None:
            kept = kept[self.real]
        found = kept.new_zeros(self.shape[0] * self.shape[1])
        return found.index_copy_(0, self.places[kept], kept)[wanted]

    def put_back(self, hidden: Tensor) -> Tensor:
        """[T, D] to [B, L, D], with zeros where there was padding."""
        found: Tensor = _PutBack.apply(hidden, self.places, self.real, self.shape)  # type: ignore[no-untyped-call]
        return found


class Buckets(Tokens):
    """Sequences sorted by length, in groups that are each padded to their own longest.

    Every group is a slice of the tokens, a block of [rows, length] that attention takes as it is: nothing is gathered or
    scattered in a layer. Groups have the same number of rows and lengths are rounded, so that few shapes occur.

    Args:
        groups: (rows, length) of each, in the order of the tokens; the sum of their products is T.
    """

    def __init__(
        self, places: Tensor, real: Tensor, positions: Tensor, shape: tuple[int, int], groups: list[tuple[int, int]]
    ) -> None:
        super().__init__(places, real, positions, shape)
        self.groups = groups
        sizes = [rows * length for rows, length in groups]
        self.rows = [Rows(group, part.view(group)) for group, part in zip(groups, torch.split(real, sizes), strict=True)]
        self._sizes = sizes

    def attend(self, query: Tensor, key: Tensor, value: Tensor, pattern: Pattern, dropout: float) -> Tensor:
        mixed = []
        parts = (torch.split(part, self._sizes) for part in (query, key, value))
        for rows, *block in zip(self.rows, *parts, strict=True):
            q, k, v = (part.view(*rows.shape, *part.shape[1:]) for part in block)
            mixed.append(rows.attend(q, k, v, pattern, dropout).flatten(0, 1))
        return torch.cat(mixed)


class Packed(Tokens):
    """Real tokens end to end.

    Args:
        bounds: int32 [S + 1], where each of S sequences begins among the tokens, and T at the end.
        longest: tokens of the longest sequence.
    """

    def __init__(self, places: Tensor, positions: Tensor, shape: tuple[int, int], bounds: Tensor, longest: int) -> None:
        super().__init__(places, None, positions, shape)
        self.bounds, self.longest = bounds, longest

    def attend(self, query: Tensor, key: Tensor, value: Tensor, pattern: Pattern, dropout: float) -> Tensor:
        return varlen_attention(query, key, value, self.bounds, self.longest, pattern.window, pattern.causal, dropout)


def buckets(real: Tensor, starts: Tensor | None) -> Buckets:
    """The bucketed layout of a batch.

    Args:
        real: bool [B, L].
        starts: as for `Rows`.
    """
    first, lengths = sequences(real, starts)
    batch, length = real.shape
    order = lengths.argsort(descending=True, stable=True)
    rows = -(-batch // BUCKETS) * -(-len(order) // batch)
    filler = (0, -len(order) % rows)  # empty sequences: every group has as many rows
    first, lengths = (torch.nn.functional.pad(part[order], filler) for part in (first, lengths))
    groups, places, kept, positions = [], [], [], []
    for begin in range(0, len(lengths), rows):
        own, start = lengths[begin : begin + rows, None], first[begin : begin + rows, None]
        width = min(length, -(-int(own[0]) // MULTIPLE) * MULTIPLE)
        if width == 0:
            break
        place = torch.arange(width, device=real.device)
        groups.append((rows, width))
        inside = place < own
        kept.append(inside.flatten())
        places.append(torch.where(inside, start + place, start).flatten())
        positions.append(place.where(inside, 0).flatten())
    return Buckets(torch.cat(places), torch.cat(kept), torch.cat(positions), (batch, length), groups)


def packed(real: Tensor, starts: Tensor | None) -> Packed:
    """The packed layout of a batch; arguments as for `buckets`."""
    batch, length = real.shape
    _, lengths = sequences(real, starts)
    bounds = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
    place = torch.arange(length, device=real.device).expand(real.shape) if starts is None else restarted(starts)
    return Packed(real.flatten().nonzero().squeeze(1), place[real], (batch, length), bounds, int(lengths.max()))


def sequences(real: Tensor, starts: Tensor | None) -> tuple[Tensor, Tensor]:
    """Where each sequence begins in the flattened B * L, and how many tokens it has: int64 [S] each."""
    batch, length = real.shape
    if starts is None:
        return torch.arange(batch, device=real.device) * length, real.sum(1)
    begins = starts & real
    begins[:, 0] |= real[:, 0]
    first = begins.flatten().nonzero().squeeze(1)
    number = begins.flatten().cumsum(0)[real.flatten()] - 1
    return first, torch.bincount(number, minlength=len(first))


def begins(sequence_starts: Tensor, real: Tensor) -> Tensor:
    """Where sequences begin, bool [B, L].

    Args:
        sequence_starts: integers [S + 1], as the collator makes them: where each sequence begins among the real tokens, row after
            row, and how many these are.
        real: bool [B, L].
    """
    number = real.flatten().cumsum(0) - 1  # of each real token
    marked = torch.zeros(real.numel() + 1, dtype=torch.bool, device=real.device)
    marked = marked.index_fill(0, sequence_starts[:-1].long(), True)
    return marked[number.clamp(min=0)].view(real.shape) & real


def restarted(starts: Tensor) -> Tensor:
    """Positions that begin at 0 with every sequence: int64 [B, L] from bool [B, L]."""
    place = torch.arange(starts.shape[1], device=starts.device).expand(starts.shape)
    return place - place.where(starts, 0).cummax(1).values


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


class _PutBack(torch.autograd.Function):
    """Scatter to distinct places; the gradient is a gather. (Of torch's own indexing it is an accumulating scatter.)"""

    @staticmethod
    def forward(context, hidden: Tensor, places: Tensor, real: Tensor | None, shape: tuple[int, int]) -> Tensor:  # type: ignore[no-untyped-def]
        context.save_for_backward(places, real)
        rows = hidden.new_zeros(shape[0] * shape[1], hidden.shape[-1])
        if real is not None:
            chosen = real.nonzero().squeeze(1)
            places, hidden = places[chosen], hidden[chosen]
        return rows.index_copy_(0, places, hidden).view(*shape, -1)

    @staticmethod
    def backward(context, gradient: Tensor):  # type: ignore[no-untyped-def]
        places, real = context.saved_tensors
        taken = gradient.flatten(0, 1)[places]
        return taken if real is None else taken * real[:, None], None, None, None
