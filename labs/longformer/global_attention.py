"""Sliding-window attention with global tokens (Beltagy et al., "Longformer", 2020, section 3.1).

A token sees its window and the global tokens; a global token sees everything, with separate
projections. Time and memory grow with L * (window + global tokens).

Shapes: B batch, L length, D model, N heads, H per head, G most global tokens of a row, C chunks, W
    one-sided window.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cloze.model.families.pretraining import PretrainingModel
from cloze.model.layers.attention import SelfAttention, gather_positions
from cloze.model.layers.attention_kernels import attend_chunks, neighbour_chunks
from cloze.model.layers.batch import Batch
from cloze.model.layers.cpu import Linear, attend, attention_maps, autocast_input
from cloze.model.layers.encoder import Encoder, rows_of
from cloze.model.layers.layout import AttentionPattern, BatchLayout, additive


@dataclass(eq=False, kw_only=True)
class GlobalAttentionLayout(BatchLayout):
    """Padded rows with global tokens.

    Args:
        shape, real, maps: as for `BatchLayout`.
        everywhere: bool [B, L], true at global tokens.
        global_positions: int64 [B, G], position of each global token in its row, then filler.
        filled: bool [B, G], false at filler.
    """

    everywhere: Tensor
    global_positions: Tensor
    filled: Tensor

    @classmethod
    def first(
        cls, shape: tuple[int, int], real: Tensor | None, device: torch.device
    ) -> GlobalAttentionLayout:
        """Return rows whose first tokens are global."""
        everywhere = torch.zeros(shape, dtype=torch.bool, device=device)
        everywhere[:, 0] = True
        if real is not None:
            everywhere = everywhere & real
        return cls(
            shape,
            real,
            everywhere=everywhere,
            global_positions=torch.zeros(shape[0], 1, dtype=torch.int64, device=device),
            filled=everywhere[:, :1],
        )

    @classmethod
    def with_global_tokens(
        cls, shape: tuple[int, int], real: Tensor | None, everywhere: Tensor
    ) -> GlobalAttentionLayout:
        """Return rows with global tokens at `everywhere`, bool [B, L]; syncs the device once."""
        if real is not None:
            everywhere = everywhere & real
        count = everywhere.sum(1)
        maximum = int(count.max()) if count.numel() else 0
        # A stable sort puts global tokens first, in order; filler is other tokens of the row.
        global_positions = everywhere.to(torch.int8).argsort(dim=1, descending=True, stable=True)[
            :, :maximum
        ]
        filled = torch.arange(maximum, device=everywhere.device) < count[:, None]
        return cls(
            shape, real, everywhere=everywhere, global_positions=global_positions, filled=filled
        )


class GlobalAttention(SelfAttention):
    """Self-attention within a window, with global tokens.

    Args:
        hidden_size, num_heads, dropout: as for `SelfAttention`.
        window: tokens visible on each side.
    """

    def __init__(self, hidden_size: int, num_heads: int, *, dropout: float, window: int) -> None:
        super().__init__(hidden_size, num_heads, dropout=dropout, window=window)
        self.width = window
        self.global_query = Linear(hidden_size, hidden_size)
        self.global_key = Linear(hidden_size, hidden_size)
        self.global_value = Linear(hidden_size, hidden_size)

    def forward(
        self, hidden: Tensor, layout: BatchLayout | None = None, positions: Tensor | None = None
    ) -> Tensor:
        """Compute attention, float [B, L, D] or [P, D].

        Args:
            hidden: float [B, L, D].
            layout: `GlobalAttentionLayout`; any other has no global tokens.
            positions: as for `SelfAttention`.
        """
        if not isinstance(layout, GlobalAttentionLayout) or not layout.global_positions.shape[1]:
            return super().forward(hidden, layout, positions)
        dropout = self.dropout if self.training else 0.0
        hidden = autocast_input(hidden)
        query, key, value = (item.transpose(1, 2) for item in self.project(hidden))
        windowed = _windowed(query, key, value, layout, self.width, dropout)
        index = layout.global_positions[:, :, None].expand(-1, -1, hidden.shape[-1])
        global_queries = self.split(self.global_query(hidden.gather(1, index))).transpose(1, 2)
        keys, values = (
            self.split(item(hidden)).transpose(1, 2)
            for item in (self.global_key, self.global_value)
        )
        real = None
        if layout.real is not None:
            real = additive(layout.real[:, None, None, :], query.dtype)
        global_states = (
            attend(global_queries, keys, values, real, dropout).transpose(1, 2).flatten(2)
        )
        if layout.maps is not None:
            layout.maps.append(_maps(query, key, global_queries, keys, layout, self.pattern))
        mixed = windowed.transpose(1, 2).flatten(2)
        # Filler writes back what its token has already, so no index depends on its amount.
        filled = layout.filled[:, :, None]
        mixed = mixed.scatter(1, index, torch.where(filled, global_states, mixed.gather(1, index)))
        output: Tensor = self.output(gather_positions(mixed, positions))
        return output


def _windowed(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: GlobalAttentionLayout,
    width: int,
    dropout: float,
) -> Tensor:
    """Attend from every token to its window and the global tokens; all tensors are [B, N, L, H]."""
    chunks = -(-query.shape[2] // width)
    known = (AttentionPattern(window=width), query.dtype, True)
    if (bias := layout.biases.get(known)) is None:
        bias = layout.biases[known] = _bias(layout, width, chunks, query.dtype)
    index = layout.global_positions[:, None, :, None].expand(
        -1, query.shape[1], -1, query.shape[-1]
    )
    # Each chunk has the row's global tokens before its 3W neighbours.
    keys, values = (
        torch.cat(
            [
                tensor.gather(2, index)[:, :, None].expand(-1, -1, chunks, -1, -1),
                neighbour_chunks(tensor, width, chunks),
            ],
            dim=3,
        )
        for tensor in (key, value)
    )
    return attend_chunks(query, keys, values, bias, dropout)


def _bias(layout: GlobalAttentionLayout, width: int, chunks: int, dtype: torch.dtype) -> Tensor:
    """Return the bias [B, C, 1, W, G + 3W]: global tokens, then the window without them."""
    # A global token inside of the window would be seen twice.
    local = ~layout.everywhere if layout.real is None else layout.real & ~layout.everywhere
    in_window = layout.visible(AttentionPattern(window=width), local, local.device, in_chunks=True)
    assert in_window is not None
    is_global = layout.filled[:, None, None, :].expand(-1, chunks, width, -1)
    return additive(torch.cat([is_global, in_window], dim=-1)[:, :, None], dtype)


def _maps(
    query: Tensor,
    key: Tensor,
    queries: Tensor,
    keys: Tensor,
    layout: GlobalAttentionLayout,
    pattern: AttentionPattern,
) -> Tensor:
    """Return the probabilities [B, N, L, L] for analysis; memory is not linear in L."""
    positions = torch.arange(layout.shape[1], device=query.device)
    in_window = pattern.visible(positions - positions[:, None])
    assert in_window is not None
    visible = in_window[None] | layout.everywhere[:, None, :]
    real = None
    if layout.real is not None:
        visible = visible & layout.real[:, None, :]
        real = additive(layout.real[:, None, None, :], query.dtype)
    maps = attention_maps(query, key, additive(visible[:, None], query.dtype))
    global_maps = attention_maps(queries, keys, real)
    for row, (token_positions, filled) in enumerate(
        zip(layout.global_positions, layout.filled, strict=True)
    ):
        maps[row, :, token_positions[filled]] = global_maps[row, :, filled]
    return maps


class LongEncoder(Encoder):
    """Encoder that without a layout makes the first token of every row global, for classification.

    Padding is kept: global tokens are found by their rows, and windows are computed in chunks.
    """

    supports_unpadding = False

    def layout_of(self, ids: Tensor, batch: Mapping[str, Any]) -> GlobalAttentionLayout | None:
        """Return rows with the global tokens that the batch names; None: it names none."""
        if (is_global := batch.get("global_attention_mask")) is None:
            return None
        shape, real = (ids.shape[0], ids.shape[1]), batch.get("attention_mask")
        return GlobalAttentionLayout.with_global_tokens(shape, real, is_global.bool())

    def rows(
        self, input_ids: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor | None = None
    ) -> GlobalAttentionLayout:
        """Return padded rows whose first tokens are global."""
        shape = (input_ids.shape[0], input_ids.shape[1])
        return GlobalAttentionLayout.first(shape, attention_mask, input_ids.device)


class LongModel(PretrainingModel):
    """Pretraining model; only tokens that the batch names are global (Longformer, section 5)."""

    def encode(self, batch: Batch, positions: Tensor | None = None) -> Tensor:
        if batch.get("layout") is None and batch.get("global_attention_mask") is None:
            # Without a layout the encoder would make first tokens global, as for classification.
            batch = {**batch, "layout": rows_of(batch["input_ids"], batch.get("attention_mask"))}
        return super().encode(batch, positions)
