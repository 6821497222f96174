"""Batches' layouts, made on the host in numpy: where each token lies, so that the device is never asked.

Which one a run uses is decided once (`choose`); that a batch on a CPU is too full for it, by its lengths.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from model.data.rows import MaskedRows
from model.layers.attention import SelfAttention
from model.layers.encoder import Encoder
from model.layers.layout import Layout, Rows
from model.layers.unpadded import Buckets, Packed
from model.layers.varlen import runs_varlen
from pipeline.core.ragged import I64, offsets_of, ranges

Kind = Literal["rows", "buckets", "packed"]
Bools = npt.NDArray[np.bool_]
MULTIPLE = 16  # lengths are rounded up to it: few distinct shapes, and full tiles in the matrix units
BUCKETS = 4  # groups that a batch's rows are cut into for attention: more means less padding and more operations
SHAPES = 32  # numbers of tokens that unpadded batches of one size may have: each new one is a kernel that a CPU has to build
WORTH = 0.85  # of a padded batch must remain at most this share, or buckets cost a CPU more than they save


def choose(*, compiled: bool, device: str, varlen: bool, unpads: bool, packed_rows: bool) -> Kind:
    """The layout of a run's batches.

    Args:
        compiled: the model goes through torch.compile, for batches of one fixed shape.
        device: the type of device.
        varlen: the GPU's variable-length kernels take all the model's attention.
        unpads: all encoders take rows without padding.
        packed_rows: rows hold several sequences each.
    """
    if compiled or not (unpads or packed_rows):
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
) -> Kind:
    """`choose` for networks that see the same batches, and the dtype that attention is computed in."""
    parts = [part for network in networks for part in network.modules()]
    sizes = {part.head_size for part in parts if isinstance(part, SelfAttention)}
    return choose(
        compiled=compiled,
        device=device.type,
        varlen=all(runs_varlen(device, dtype, size) for size in sizes),
        unpads=all(part.unpads for part in parts if isinstance(part, Encoder)),
        packed_rows=packed_rows,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences:
    """The sequences of a padded batch, row after row.

    Attributes:
        shape: (B, L).
        first: int64 [S], where in the flattened B * L each begins.
        lengths: int64 [S].
        several: whether a row may hold more than one.
        causal: bool [S], which are read from left to right; None: as the model reads.
    """

    shape: tuple[int, int]
    first: I64
    lengths: I64
    several: bool = False
    causal: Bools | None = None

    @classmethod
    def alone(cls, lengths: I64, length: int, causal: Bools | None = None) -> Sequences:
        """One a row, of `lengths` [B], in rows padded to `length`; causal: bool [B]."""
        return cls(shape=(len(lengths), length), first=np.arange(len(lengths)) * length, lengths=lengths, causal=causal)

    @classmethod
    def of(cls, rows: MaskedRows, length: int, causal: Bools | None = None) -> Sequences:
        """Those of rows padded to `length`. Args: causal: bool [B], the rows that are read from left to right."""
        if rows.boundary_counts is None:
            return cls.alone(rows.lengths, length, causal)
        if causal is not None:
            causal = np.repeat(causal, rows.boundary_counts)
        begins = np.arange(len(rows.lengths)) * length
        first = np.repeat(begins, rows.boundary_counts) + rows.boundaries
        ends = np.append(first[1:], 0)
        ends[np.cumsum(rows.boundary_counts) - 1] = begins + rows.lengths
        return cls(shape=(len(rows.lengths), length), first=first, lengths=ends - first, several=True, causal=causal)


def make_layout(kind: Kind, sequences: Sequences) -> Layout | None:
    """The layout of a batch; None: padded rows of one sequence each, which the batch's attention_mask says all of."""
    if kind == "packed":
        return packed(sequences)
    full = int(sequences.lengths.sum()) > WORTH * sequences.shape[0] * sequences.shape[1]
    if kind == "buckets" and (sequences.several or not full):
        return buckets(sequences)
    return rows(sequences) if sequences.several or sequences.causal is not None else None


def rows(sequences: Sequences) -> Rows:
    """Padded rows of several sequences, or of which some are read from left to right."""
    shape, lengths = sequences.shape, sequences.lengths
    causal = None
    if sequences.causal is not None:
        causal = np.zeros(shape[0], np.bool_)
        causal[sequences.first // shape[1]] = sequences.causal  # the sequences of a row are all read alike
    places = ranges(sequences.first, lengths)
    number, positions, real = np.zeros((3, shape[0] * shape[1]), np.int64)
    number[places] = np.repeat(np.arange(len(lengths)), lengths)
    positions[places] = ranges(np.zeros_like(lengths), lengths)
    real[places] = 1
    way = None if causal is None else _tensor(causal)
    there = _tensor((real > 0).reshape(shape))
    if not sequences.several:
        return Rows(shape, there, causal=way)
    return Rows(shape, there, _tensor(number.reshape(shape)), _tensor(positions.reshape(shape)), way)


def buckets(sequences: Sequences) -> Buckets:
    """Sequences in groups of similar lengths."""
    batch, length = sequences.shape
    order = np.argsort(-sequences.lengths, kind="stable")
    count = -(-batch // BUCKETS) * -(-len(order) // batch)
    filler = (0, -len(order) % count)  # empty sequences: every group has as many rows
    first, lengths = (np.pad(part[order], filler) for part in (sequences.first, sequences.lengths))
    causal = None if sequences.causal is None else np.pad(sequences.causal[order], filler)
    groups: list[tuple[int, int]] = []
    kept = []
    for begin in range(0, len(lengths), count):
        own = lengths[begin : begin + count, None]
        width = min(length, -(-int(own[0, 0]) // MULTIPLE) * MULTIPLE)
        if width == 0:
            break
        groups.append((count, width))
        kept.append((np.arange(width) < own).ravel())
    there = np.concatenate(kept)
    taken = np.flatnonzero(there)
    tokens, step = len(taken), MULTIPLE * -(-batch * length // (MULTIPLE * SHAPES))
    # Where there is padding, a token at least fills up: the two are taken for each other, and have no gradient.
    fills = (0, 0 if there.all() else step - tokens % step)
    block = np.full(len(there), tokens)
    block[taken] = np.arange(tokens)
    place, position = ranges(first, lengths), ranges(np.zeros_like(lengths), lengths)
    slots, padding = _slots(place, np.arange(tokens), batch * length)
    return Buckets(
        (batch, length),
        places=_tensor(np.pad(place, fills)),
        slots=_tensor(slots),
        padding=_tensor(padding),
        positions=_tensor(np.pad(position, fills)),
        real=_tensor(np.pad(np.ones(tokens, np.bool_), fills)) if fills[1] else None,
        blocks=_tensor(block),
        found=_tensor(np.pad(taken, fills, constant_values=int(there.argmin()))),
        groups=tuple(groups),
        causal=None if causal is None else _tensor(causal[: sum(count for count, _ in groups)]),
    )


def packed(sequences: Sequences) -> Packed:
    """Real tokens end to end, first those of sequences that are read from left to right."""
    first, lengths, causal = sequences.first, sequences.lengths, sequences.causal
    before = (0, 0)
    if causal is not None:
        order = np.argsort(~causal, kind="stable")
        before = (int(causal.sum()), int(lengths[causal].sum()))
        first, lengths = first[order], lengths[order]
    place = ranges(first, lengths)
    slots, padding = _slots(place, np.arange(len(place)), sequences.shape[0] * sequences.shape[1])
    positions, bounds = ranges(np.zeros_like(lengths), lengths), offsets_of(lengths).astype(np.int32)
    tensors = _tensor(place), _tensor(slots), _tensor(padding), _tensor(positions), _tensor(bounds)
    return Packed(sequences.shape, *tensors, longest=int(lengths.max()), causal=before)


def _tensor(array: np.ndarray[Any, Any]) -> Tensor:
    return torch.from_numpy(array)


def _slots(places: I64, numbers: I64, size: int) -> tuple[I64, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
    """`slots` and `padding` of `Tokens`: at the `places` of real tokens stand their `numbers`."""
    slots, padding = np.zeros(size, np.int64), np.ones(size, np.bool_)
    slots[places], padding[places] = numbers, False
    return slots, padding
