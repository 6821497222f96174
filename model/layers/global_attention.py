"""Sliding-window attention with global tokens (Beltagy et al., "Longformer", 2020, section 3.1).

A token sees its window and the global tokens; a global token sees everything, and has projections of its own for that. Time and
memory grow with L times (window + global tokens).

Shapes: B batch, L length, D model, N heads, H per head, G most global tokens of a row, C chunks, W one-sided window.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from model.layers.attention import SelfAttention, once_cast, taken
from model.layers.attention_kernels import around, attend, attend_chunks, attention_maps
from model.layers.layout import Layout, Pattern, Rows, additive, chunked, neighbours

if TYPE_CHECKING:
    from typing_extensions import Self


class LongRows(Rows):
    """Rows some of whose tokens are global.

    Args:
        shape, real, maps: as for `Rows`.
        everywhere: bool [B, L], true at global tokens.
        places: int64 [B, G], where in its row each of them is, and whatever other places to fill up behind.
        filled: bool [B, G], false where that is.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        real: Tensor | None,
        everywhere: Tensor,
        places: Tensor,
        filled: Tensor,
        maps: list[Tensor] | None = None,
    ) -> None:
        super().__init__(shape, real, maps=maps)
        self.everywhere, self.places, self.filled = everywhere, places, filled

    @classmethod
    def first(cls, shape: tuple[int, int], real: Tensor | None, device: torch.device) -> LongRows:
        """Rows whose first tokens are global."""
        everywhere = torch.zeros(shape, dtype=torch.bool, device=device)
        everywhere[:, 0] = True
        if real is not None:
            everywhere = everywhere & real
        return cls(shape, real, everywhere, torch.zeros(shape[0], 1, dtype=torch.int64, device=device), everywhere[:, :1])

    @classmethod
    def marked(cls, shape: tuple[int, int], real: Tensor | None, everywhere: Tensor) -> LongRows:
        """Rows whose tokens are global where `everywhere`, bool [B, L], says so. It waits for the device once, to count them."""
        if real is not None:
            everywhere = everywhere & real
        count = everywhere.sum(1)
        most = int(count.max()) if count.numel() else 0
        places = everywhere.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :most]
        filled = torch.arange(most, device=everywhere.device) < count[:, None]
        return cls(shape, real, everywhere, places, filled)

    def changed(self, change: Callable[[Tensor], Tensor]) -> Self:
        real = None if self.real is None else change(self.real)
        return type(self)(self.shape, real, change(self.everywhere), change(self.places), change(self.filled), self.maps)

    def recording(self, maps: list[Tensor]) -> LongRows:
        return LongRows(self.shape, self.real, self.everywhere, self.places, self.filled, maps)


class GlobalAttention(SelfAttention):
    """`SelfAttention` within a window, and global tokens; without any it is that and no more.

    Args:
        hidden_size, num_heads, dropout: as for `SelfAttention`.
        window: how far a token sees to either side.
    """

    def __init__(self, hidden_size: int, num_heads: int, *, dropout: float, window: int) -> None:
        super().__init__(hidden_size, num_heads, dropout=dropout, window=window)
        self.width = window
        self.global_query = nn.Linear(hidden_size, hidden_size)
        self.global_key = nn.Linear(hidden_size, hidden_size)
        self.global_value = nn.Linear(hidden_size, hidden_size)

    def forward(self, hidden: Tensor, layout: Layout | None = None, chosen: Tensor | None = None) -> Tensor:
        """Args: hidden: float [B, L, D]; layout: `LongRows`, or any other for no global tokens; chosen: as for `SelfAttention`.
        Returns: float [B, L, D] or [P, D].
        """
        if not isinstance(layout, LongRows) or not layout.places.shape[1]:
            return super().forward(hidden, layout, chosen)
        dropout = self.dropout if self.training else 0.0
        hidden = once_cast(hidden)
        query, key, value = (part.transpose(1, 2) for part in self.project(hidden))
        windowed = _windowed(query, key, value, layout, self.width, dropout)
        places = layout.places[:, :, None].expand(-1, -1, hidden.shape[-1])
        picked = self.split(self.global_query(hidden.gather(1, places))).transpose(1, 2)
        keys, values = (self.split(part(hidden)).transpose(1, 2) for part in (self.global_key, self.global_value))
        real = additive(None if layout.real is None else layout.real[:, None, None, :], query.dtype)
        seen = attend(picked, keys, values, real, dropout).transpose(1, 2).flatten(2)
        if layout.maps is not None:
            layout.maps.append(_maps(query, key, picked, keys, layout, self.pattern))
        mixed = windowed.transpose(1, 2).flatten(2)
        filled = layout.filled[:, :, None]
        mixed = mixed.scatter(1, places, torch.where(filled, seen, mixed.gather(1, places)))
        output: Tensor = self.output(taken(mixed, chosen))
        return output


def _windowed(query: Tensor, key: Tensor, value: Tensor, layout: LongRows, width: int, dropout: float) -> Tensor:
    """Every token over its window and the global tokens: [B, N, L, H] each, and so is the result."""
    chunks = -(-query.shape[2] // width)
    bias = layout.once((width, query.dtype, "window"), lambda: _bias(layout, width, chunks, query.dtype))
    places = layout.places[:, None, :, None].expand(-1, query.shape[1], -1, query.shape[-1])
    keys, values = (
        torch.cat([part.gather(2, places)[:, :, None].expand(-1, -1, chunks, -1, -1), around(part, width, chunks)], dim=3)
        for part in (key, value)
    )
    return attend_chunks(query, keys, values, bias, dropout)


def _bias(layout: LongRows, width: int, chunks: int, dtype: torch.dtype) -> Tensor:
    """[B, C, 1, W, G + 3W]: the global tokens, then the window, in which they do not count again."""
    place = torch.arange(layout.shape[1], device=layout.everywhere.device)[None]
    offset = neighbours(place, width, chunks)[:, :, None, :] - chunked(place, width, chunks)[:, :, :, None]
    local = ~layout.everywhere if layout.real is None else layout.real & ~layout.everywhere
    near = (offset.abs() <= width) & neighbours(local, width, chunks)[:, :, None, :]
    far = layout.filled[:, None, None, :].expand(-1, chunks, width, -1)
    bias = additive(torch.cat([far, near], dim=-1)[:, :, None], dtype)
    assert bias is not None
    return bias


def _maps(query: Tensor, key: Tensor, chosen: Tensor, keys: Tensor, layout: LongRows, pattern: Pattern) -> Tensor:
    """The probabilities as one [B, N, L, L], those of global tokens by their own projections. For analysis: not linear in L."""
    place = torch.arange(layout.shape[1], device=query.device)
    seen = pattern.visible(place - place[:, None])
    assert seen is not None
    visible = seen[None] | layout.everywhere[:, None, :]
    real = None if layout.real is None else layout.real[:, None, None, :]
    visible = visible[:, None] if real is None else visible[:, None] & real
    found = attention_maps(query, key, additive(visible, query.dtype))
    own = attention_maps(chosen, keys, additive(real, query.dtype))
    for row, (places, filled) in enumerate(zip(layout.places, layout.filled, strict=True)):
        found[row, :, places[filled]] = own[row, :, filled]
    return found
