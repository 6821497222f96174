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
    """Sequences sorted by length, in groups that are each padded to their own longest.

    Every group is a slice of the tokens, a block of [rows, length] that attention takes as it is: nothing is gathered or
    scattered in a layer. Groups have the same number of rows and lengths are rounded, so that few shapes occur.

    Args:
        groups: (rows, length) of each, in the order of the tokens; the sum of their products is T.
        causal: bool [sum of the groups' rows], sequences none of whose tokens sees what comes after it, whatever the pattern says;
            None: none.
        others: as for `Tokens`; there is a `real`.
    """

    real: Tensor

    def __init__(
        self,
        shape: tuple[int, int],
        places: Tensor,
        slots: Tensor,
        padding: Tensor,
        positions: Tensor,
        real: Tensor,
        groups: tuple[tuple[int, int], ...],
        causal: Tensor | None = None,
    ) -> None:
        super().__init__(shape, places, slots, padding, positions, real)
        self.groups, self.causal = groups, causal
        self._sizes = [rows * length for rows, length in groups]
        ways = [None] * len(groups) if causal is None else torch.split(causal, [rows for rows, _ in groups])
        parts = zip(groups, torch.split(real, self._sizes), ways, strict=True)
        self._rows = [Rows(group, part.view(group), causal=way) for group, part, way in parts]

    def changed(self, change: Callable[[Tensor], Tensor]) -> Self:
        return type(self)(
            self.shape,
            change(self.places),
            change(self.slots),
            change(self.padding),
            change(self.positions),
            change(self.real),
            self.groups,
            None if self.causal is None else change(self.causal),
        )

    @property
    def reach(self) -> int:
        return max((length for _, length in self.groups), default=1)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, pattern: Pattern, dropout: float, added: Scores | None = None
    ) -> Tensor:
        mixed = []
        parts = (torch.split(part, self._sizes) for part in (query, key, value))
        for rows, *block in zip(self._rows, *parts, strict=True):
            q, k, v = (part.view(*rows.shape, *part.shape[1:]) for part in block)
            mixed.append(rows.attend(q, k, v, pattern, dropout, added).flatten(0, 1))
        return torch.cat(mixed)


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
