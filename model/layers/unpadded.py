"""Layouts that leave padding out: every layer but attention takes [T, D] as it takes [B, L, D].

Made by `model.data.layouts`, on the host. Shapes: see `layout.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from model.layers.layout import Layout, Pattern, Rows, Scores
from model.layers.varlen import varlen_attention

if TYPE_CHECKING:
    from typing_extensions import Self


class Tokens(Layout):
    """A layout of [T, D].

    Args:
        shape: (B, L).
        places: int64 [T], where in the flattened B * L each token comes from.
        slots: int64 [B * L], the other way round: where among the T the token of each place is; 0 where there is none.
        padding: bool [B * L], true where there is none.
        positions: int64 [T], see `Layout`.
        real: bool [T], false for the few that only fill up; None: all are real.
    """

    positions: Tensor

    def __init__(
        self,
        shape: tuple[int, int],
        places: Tensor,
        slots: Tensor,
        padding: Tensor,
        positions: Tensor,
        real: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.shape, self.places, self.slots, self.padding = shape, places, slots, padding
        self.positions, self.real = positions, real

    def take(self, values: Tensor) -> Tensor:
        """[B, L] to [T]."""
        return values.flatten().index_select(0, self.places)

    def find(self, wanted: Tensor) -> Tensor:
        """Where in T the positions of the flattened B * L are, int64 [P]; 0 for those that are left out."""
        return self.slots.index_select(0, wanted)

    def put_back(self, hidden: Tensor) -> Tensor:
        """[T, D] to [B, L, D], with zeros where there was padding."""
        found: Tensor = _PutBack.apply(hidden, self)  # type: ignore[no-untyped-call]
        return found.view(*self.shape, -1)


class Buckets(Tokens):
    """Real tokens end to end, of which attention alone makes blocks: sequences of similar lengths are a group, each padded to the
    group's longest.

    All but attention computes on no padding, but for a few tokens at the end that make T a number that comes again. Groups have the
    same number of rows and lengths are rounded, so that few shapes occur there, too.

    Args:
        blocks: int64 [G], which of the T stands at each place of the groups' blocks, these end to end; at padding one that only fills up.
        found: int64 [T], the other way round: at which place of the blocks each token stands; at padding those that only fill up.
        groups: (rows, length) of each, the longest first; the sum of their products is G.
        causal: bool [sum of the groups' rows], sequences none of whose tokens sees what comes after it, whatever the pattern says;
            None: none.
        others: as for `Tokens`.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        places: Tensor,
        slots: Tensor,
        padding: Tensor,
        positions: Tensor,
        real: Tensor | None,
        blocks: Tensor,
        found: Tensor,
        groups: tuple[tuple[int, int], ...],
        causal: Tensor | None = None,
    ) -> None:
        super().__init__(shape, places, slots, padding, positions, real)
        self.blocks, self.found, self.groups, self.causal = blocks, found, groups, causal
        self._parts = torch.split(blocks, [rows * length for rows, length in groups])
        ways = [None] * len(groups) if causal is None else torch.split(causal, [rows for rows, _ in groups])
        there = [None] * len(groups) if real is None else [real.index_select(0, part) for part in self._parts]
        self._rows = [
            Rows(group, None if own is None else own.view(group), causal=way)
            for group, own, way in zip(groups, there, ways, strict=True)
        ]

    def changed(self, change: Callable[[Tensor], Tensor]) -> Self:
        return type(self)(
            self.shape,
            change(self.places),
            change(self.slots),
            change(self.padding),
            change(self.positions),
            None if self.real is None else change(self.real),
            change(self.blocks),
            change(self.found),
            self.groups,
            None if self.causal is None else change(self.causal),
        )

    @property
    def reach(self) -> int:
        return max((length for _, length in self.groups), default=1)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, pattern: Pattern, dropout: float, added: Scores | None = None
    ) -> Tensor:
        heads, size = query.shape[1:]
        there, back = self.once(("heads", heads), lambda: self._by_heads(heads))
        blocks = [_carried(part.reshape(-1, size), there, back) for part in (query, key, value)]
        sizes = [heads * rows * length for rows, length in self.groups]
        mixed = []
        for rows, *parts in zip(self._rows, *(torch.split(block, sizes) for block in blocks), strict=True):
            q, k, v = (part.view(rows.shape[0], heads, rows.shape[1], size).transpose(1, 2) for part in parts)
            mixed.append(rows.attend(q, k, v, pattern, dropout, added).transpose(1, 2).reshape(-1, size))
        return _carried(torch.cat(mixed), back, there).view_as(query)

    def _by_heads(self, heads: int) -> tuple[Tensor, Tensor]:
        """`blocks` and `found` for heads, of which each token has so many, one behind the other, and a block's row has all places of
        the first one, then those of the next: as products of matrices want them. int64 [G * N] and [T * N].
        """
        head = torch.arange(heads, device=self.blocks.device)
        there, spots, first = [], [], 0
        for (rows, length), part in zip(self.groups, self._parts, strict=True):
            there.append((part.view(rows, 1, length) * heads + head[:, None]).flatten())
            size = rows * heads * length
            places = torch.arange(first, first + size, device=head.device).view(rows, heads, length)
            spots.append(places.transpose(1, 2).reshape(-1, heads))
            first += size
        return torch.cat(there), torch.cat(spots).index_select(0, self.found).flatten()


class Packed(Tokens):
    """Real tokens end to end.

    Args:
        bounds: int32 [S + 1], where each of S sequences begins among the tokens, and T at the end.
        longest: tokens of the longest sequence.
        causal: (S, T) of the sequences that stand first, none of whose tokens sees what comes after it, whatever the pattern says.
        others: as for `Tokens`.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        places: Tensor,
        slots: Tensor,
        padding: Tensor,
        positions: Tensor,
        bounds: Tensor,
        longest: int,
        causal: tuple[int, int] = (0, 0),
    ) -> None:
        super().__init__(shape, places, slots, padding, positions)
        self.bounds, self.longest, self.causal = bounds, longest, causal

    def changed(self, change: Callable[[Tensor], Tensor]) -> Self:
        return type(self)(
            self.shape,
            change(self.places),
            change(self.slots),
            change(self.padding),
            change(self.positions),
            change(self.bounds),
            self.longest,
            self.causal,
        )

    @property
    def reach(self) -> int:
        return self.longest

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, pattern: Pattern, dropout: float, added: Scores | None = None
    ) -> Tensor:
        if added is None:
            return self._attend(query, key, value, pattern, dropout)
        rows, places, back = self.once("padded", self._padded)  # the kernel has no room for scores of others
        query, key, value = (part.index_select(0, places).view(*rows.shape, *part.shape[1:]) for part in (query, key, value))
        return rows.attend(query, key, value, pattern, dropout, added).flatten(0, 1).index_select(0, back)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, pattern: Pattern, dropout: float) -> Tensor:
        """By the kernel: once, or for the sequences of either way."""
        sequences, tokens = self.causal
        if not sequences:
            return varlen_attention(query, key, value, self.bounds, self.longest, pattern.window, pattern.causal, dropout)
        mixed = []
        for causal, own, bounds in (
            (True, slice(tokens), self.bounds[: sequences + 1]),
            (pattern.causal, slice(tokens, None), self.bounds[sequences:] - tokens),
        ):
            if len(bounds) > 1:
                part = (query[own], key[own], value[own], bounds, self.longest)
                mixed.append(varlen_attention(*part, pattern.window, causal, dropout))
        return torch.cat(mixed)

    def _padded(self) -> tuple[Rows, Tensor, Tensor]:
        """One sequence a row; where among the T its places are, int64 [S * longest]; and where there the tokens are, int64 [T]."""
        place = torch.arange(self.longest, device=self.bounds.device)
        first, behind = self.bounds[:-1, None], self.bounds[1:, None]
        sequences = self.causal[0]
        causal = torch.arange(len(first), device=place.device) < sequences if sequences else None
        rows = Rows((len(first), self.longest), place < behind - first, causal=causal)
        count = len(self.places)
        number = (
            torch.searchsorted(self.bounds, torch.arange(count, device=place.device, dtype=self.bounds.dtype), right=True) - 1
        )
        return rows, (first + place).flatten().clamp(max=count - 1), number * self.longest + self.positions


def _carried(values: Tensor, there: Tensor, back: Tensor) -> Tensor:
    """The rows of [S, H] that `there`, int64 [R], names; `back`, int64 [S], says where among these each is that has a gradient."""
    found: Tensor = _Carried.apply(values, there, back)  # type: ignore[no-untyped-call]
    return found


class _Carried(torch.autograd.Function):
    """A gather both ways, of rows that are asked for once, or whose gradients are zero."""

    @staticmethod
    def forward(context, values: Tensor, there: Tensor, back: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        context.save_for_backward(back)
        return values.index_select(0, there)

    @staticmethod
    def backward(context, gradient: Tensor):  # type: ignore[no-untyped-def]
        return gradient.index_select(0, context.saved_tensors[0]), None, None


class _PutBack(torch.autograd.Function):
    """A gather both ways. (Of torch's own indexing the gradient is an accumulating scatter.)"""

    @staticmethod
    def forward(context, hidden: Tensor, layout: Tokens) -> Tensor:  # type: ignore[no-untyped-def]
        context.save_for_backward(layout.places, layout.real)
        return hidden.index_select(0, layout.slots).masked_fill_(layout.padding[:, None], 0.0)

    @staticmethod
    def backward(context, gradient: Tensor):  # type: ignore[no-untyped-def]
        places, real = context.saved_tensors
        taken = gradient.index_select(0, places)
        return taken if real is None else taken.mul_(real[:, None]), None
