"""Batch layouts, computed on the host in numpy, so that the device is never synchronized.

`choose_layout` decides once per run. On a CPU, a batch with little padding keeps padded rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, from_numpy, nn

from cloze.core.ragged import I64, offsets_of, ranges
from cloze.model.data.rows import MaskedRows
from cloze.model.layers.attention import SelfAttention
from cloze.model.layers.attention_kernels import runs_varlen
from cloze.model.layers.encoder import Encoder
from cloze.model.layers.layout import BatchLayout

LayoutKind = Literal["rows", "buckets", "packed", "fixed"]  # the last: packed, of few sizes
Bools = npt.NDArray[np.bool_]
MULTIPLE = 16  # lengths are rounded up to it: few distinct shapes, full tiles in the matrix units
# Groups of rows per batch for attention; more groups: less padding, more operations.
BUCKETS = 4
# Distinct token counts of unpadded batches of one size; a CPU builds a kernel for each.
SHAPES = 32
GROWTH = 1.018
# Maximum share of real tokens in a padded batch; above it, buckets cost a CPU more than they save.
WORTH = 0.85


def choose_layout(
    *, compiled: bool, device: str, varlen: bool, unpads: bool, packed_rows: bool
) -> LayoutKind:
    """Return the layout of a run's batches.

    Args:
        compiled: the model is compiled, which on a CPU needs batches of one fixed shape.
        varlen: the GPU's variable-length kernels support all attention layers of the model.
        unpads: all encoders accept rows without padding.
        packed_rows: rows contain several sequences each.
    """
    if not (unpads or packed_rows) or (compiled and device == "cpu"):
        return "rows"
    if device == "cpu":
        return "buckets"
    return "packed" if varlen else "rows"


def layout_for(
    networks: Iterable[nn.Module],
    device: torch.device,
    dtype: torch.dtype,
    *,
    compiled: bool = False,
    packed_rows: bool = False,
) -> LayoutKind:
    """Return the layout for networks that share batches; `dtype` is that of the attention."""
    modules = [module for network in networks for module in network.modules()]
    sizes = {module.head_size for module in modules if isinstance(module, SelfAttention)}
    return choose_layout(
        compiled=compiled,
        device=device.type,
        varlen=all(runs_varlen(device, dtype, size) for size in sizes),
        unpads=all(module.supports_unpadding for module in modules if isinstance(module, Encoder)),
        packed_rows=packed_rows,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences:
    """Sequences of a padded batch, row by row.

    Attributes:
        shape: (B, L).
        first: int64 [S], start of each sequence in the flattened B * L.
        lengths: int64 [S].
        packed: rows may contain several sequences.
        causal: bool [S], sequences read left to right. None: the model's own attention mode.
    """

    shape: tuple[int, int]
    first: I64
    lengths: I64
    packed: bool = False
    causal: Bools | None = None

    @classmethod
    def alone(cls, lengths: I64, length: int, causal: Bools | None = None) -> Sequences:
        """Return one sequence per row.

        Args:
            lengths: int64 [B], tokens per row.
            length: L, length of the padded rows.
            causal: bool [B], causal rows.
        """
        return cls(
            shape=(len(lengths), length),
            first=np.arange(len(lengths)) * length,
            lengths=lengths,
            causal=causal,
        )

    @classmethod
    def of(cls, rows: MaskedRows, length: int, causal: Bools | None = None) -> Sequences:
        """Return the sequences of rows padded to `length`; `causal`: bool [B], causal rows."""
        begins = np.arange(len(rows.lengths)) * length
        if rows.boundary_counts is None:
            return cls(
                shape=(len(begins), length), first=begins, lengths=rows.lengths, causal=causal
            )
        if causal is not None:
            causal = np.repeat(causal, rows.boundary_counts)
        starts = np.repeat(begins, rows.boundary_counts) + rows.boundaries
        ends = np.append(starts[1:], 0)
        # A row's last sequence ends with its tokens, not where the next row begins.
        ends[np.cumsum(rows.boundary_counts) - 1] = begins + rows.lengths
        return cls(
            shape=(len(rows.lengths), length),
            first=starts,
            lengths=ends - starts,
            packed=True,
            causal=causal,
        )


def make_layout(kind: LayoutKind, sequences: Sequences) -> BatchLayout | None:
    """Return the layout; None for padded rows that `attention_mask` describes completely."""
    if kind in ("packed", "fixed"):
        return packed(sequences, fixed=kind == "fixed")
    mostly_real = int(sequences.lengths.sum()) > WORTH * sequences.shape[0] * sequences.shape[1]
    if kind == "buckets" and (sequences.packed or not mostly_real):
        return buckets(sequences)
    return rows(sequences) if sequences.packed or sequences.causal is not None else None


def rows(sequences: Sequences) -> BatchLayout:
    """Return the layout of padded rows that are packed or partly causal."""
    shape, lengths = sequences.shape, sequences.lengths
    causal = None
    if sequences.causal is not None:
        causal = np.zeros(shape[0], np.bool_)
        # All sequences of a row have one attention mode.
        causal[sequences.first // shape[1]] = sequences.causal
    indices = ranges(sequences.first, lengths)
    number, positions, real = np.zeros((3, shape[0] * shape[1]), np.int64)
    number[indices] = np.repeat(np.arange(len(lengths)), lengths)
    positions[indices] = ranges(np.zeros_like(lengths), lengths)
    real[indices] = 1
    causal_rows = None if causal is None else from_numpy(causal)
    real_mask = from_numpy((real > 0).reshape(shape))
    layout = BatchLayout(shape, real_mask, causal=causal_rows)
    if sequences.packed:
        layout.sequence = from_numpy(number.reshape(shape))
        layout.positions = from_numpy(positions.reshape(shape))
    return layout


def buckets(sequences: Sequences) -> BatchLayout:
    """Return a layout with sequences grouped by similar length."""
    batch, length = sequences.shape
    # Longest first, so that a group's first row gives its width.
    order = np.argsort(-sequences.lengths, kind="stable")
    # A group has a quarter of the rows, times the mean number of sequences in a packed row.
    count = -(-batch // BUCKETS) * -(-len(order) // batch)
    filler = (0, -len(order) % count)  # empty sequences: every group has the same number of rows
    starts = np.pad(sequences.first[order], filler)
    lengths = np.pad(sequences.lengths[order], filler)
    causal = None if sequences.causal is None else np.pad(sequences.causal[order], filler)
    groups: list[tuple[int, int]] = []
    masks = []
    for begin in range(0, len(lengths), count):
        group_lengths = lengths[begin : begin + count, None]
        width = min(length, -(-int(group_lengths[0, 0]) // MULTIPLE) * MULTIPLE)
        # Only filler follows: sequences are in descending order.
        if width == 0:
            break
        groups.append((count, width))
        masks.append((np.arange(width) < group_lengths).ravel())
    is_real = np.concatenate(masks)
    indices = np.flatnonzero(is_real)
    tokens, step = len(indices), MULTIPLE * -(-batch * length // (MULTIPLE * SHAPES))
    # With padding, at least one filler token exists: padded positions read it, without gradient.
    fills = (0, 0 if is_real.all() else step - tokens % step)
    token_index, position = ranges(starts, lengths), ranges(np.zeros_like(lengths), lengths)
    slots, padding = _slots(token_index, batch * length)
    used = count * len(groups)
    return BatchLayout(
        (batch, length),
        from_numpy(np.pad(np.ones(tokens, np.bool_), fills)) if fills[1] else None,
        positions=from_numpy(np.pad(position, fills)),
        flat_positions=from_numpy(np.pad(token_index, fills)),
        places=from_numpy(np.pad(indices, fills, constant_values=int(is_real.argmin()))),
        bounds=from_numpy(offsets_of(lengths[:used]).astype(np.int32)),
        groups=tuple(groups),
        causal=None if causal is None else from_numpy(causal[:used]),
        slots=slots,
        padding=padding,
    )


def fixed_size(count: int) -> int:
    """Round up to few multiples of 8, `GROWTH` apart: filler is 0.9 % of many, in the mean."""
    power = GROWTH ** math.ceil(math.log(count, GROWTH))
    return max(-(-count // 8), math.ceil(power / 8)) * 8


def packed(sequences: Sequences, *, fixed: bool = False) -> BatchLayout:
    """Return the layout without padding; causal sequences come first.

    Args:
        fixed: fill up the tokens to `fixed_size`, in sequences of their own, which no real token
            sees, and the sequences to a power of two by empty ones.
    """
    starts, lengths, causal = sequences.first, sequences.lengths, sequences.causal
    causal_first = (0, 0)
    if causal is not None:
        # Each kind is one slice of the tokens then, and so one call of the kernel.
        order = np.argsort(~causal, kind="stable")
        causal_first = (int(causal.sum()), int(lengths[causal].sum()))
        starts, lengths, causal = starts[order], lengths[order], causal[order]
    token_index, longest, real = ranges(starts, lengths), int(lengths.max()), None
    slots, padding = _slots(token_index, sequences.shape[0] * sequences.shape[1])
    if fixed:
        tokens, longest = len(token_index), sequences.shape[1]
        filler = np.full(fixed_size(tokens) // longest + 1, longest)
        filler = np.diff(np.minimum(offsets_of(filler), fixed_size(tokens) - tokens))
        lengths = np.append(lengths, filler[filler > 0])
        lengths = np.pad(lengths, (0, (1 << len(lengths).bit_length()) - len(lengths)))
        token_index = np.pad(token_index, (0, fixed_size(tokens) - tokens))
        real = from_numpy(np.arange(len(token_index)) < tokens)
        if causal is not None:
            causal = np.pad(causal, (0, len(lengths) - len(causal)))
    position = ranges(np.zeros_like(lengths), lengths)
    return BatchLayout(
        sequences.shape,
        positions=from_numpy(position),
        flat_positions=from_numpy(token_index),
        places=from_numpy(np.repeat(np.arange(len(lengths)) * longest, lengths) + position),
        bounds=from_numpy(offsets_of(lengths).astype(np.int32)),
        groups=((len(lengths), longest),),
        causal=from_numpy(causal) if causal_first[0] and causal is not None else None,
        causal_first=causal_first,
        slots=slots,
        padding=padding,
        real=real,
    )


def _slots(token_index: I64, size: int) -> tuple[Tensor, Tensor]:
    """Return `slots` and `padding` of a layout for tokens at `token_index`, int64 [T]."""
    slots, padding = np.zeros(size, np.int64), np.ones(size, np.bool_)
    slots[token_index], padding[token_index] = np.arange(len(token_index)), False
    return from_numpy(slots), from_numpy(padding)
