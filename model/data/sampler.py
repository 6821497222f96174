"""Stateless sampler: the rows of a step are a pure function of (seed, samples consumed).

Sample g of a run is position g % N of epoch g // N. An epoch visits every row once, one drawing
of the dataset after another, so that a document comes once in each. The order of a drawing is
given by a format-preserving permutation: a Feistel network on the next power of four, iterated
until the value is below N (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). Any
sample is found in O(1), so resuming takes no time. A rank takes its slice of each step's samples,
so the order does not depend on the number of ranks.

With length bins, samples come in groups of rows of one bin, in permuted order, so that batches have
less padding. With a window, an epoch reads the rows window by window, so that few compressed record
batches are open at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cloze.core import random_keys
from cloze.core.ragged import I64, offsets_of
from cloze.model.random_streams import Stream

# 4 rounds give a pseudorandom permutation (Luby and Rackoff); small domains need some more
ROUNDS = 6
# parts of the key of a pass
_WITHIN, _WINDOWS, _GROUPS, _TURN = 4, 5, 6, 7


def permute(position: npt.ArrayLike, count: npt.ArrayLike, key: npt.ArrayLike) -> I64:
    """Apply the bijection on [0, count) with key `key` to `position`; all three broadcast.

    Args:
        position: integers in [0, count).
        count: N, at least 1.
        key: uint64.

    Returns:
        int64 of the broadcast shape.
    """
    arrays = np.broadcast_arrays(
        np.asarray(position, np.uint64), np.asarray(count, np.uint64), np.asarray(key, np.uint64)
    )
    # Copies, as broadcast arrays are views with shared values.
    value, counts, keys = map(np.array, arrays)
    # Bit length, exact below 2**53.
    bits = np.frexp(np.maximum(counts.astype(np.float64) - 1, 1))[1].astype(np.uint64)
    # Both halves of the network have the same number of bits, so its domain is a power of four.
    half = np.maximum(np.uint64(1), (bits + np.uint64(1)) >> np.uint64(1))
    pending = np.ones(value.shape, bool)
    while pending.any():  # fewer than four iterations each on average: the domain is below 4 N
        # A value outside of [0, N) is permuted again (cycle walking). The cycle that it is on leads
        # back into [0, N), and no two values meet, so the result is a bijection of [0, N).
        value[pending] = _feistel(value[pending], keys[pending], half[pending])
        pending[pending] = value[pending] >= counts[pending]
    return value.astype(np.int64)


def _feistel(
    value: random_keys.U64, key: random_keys.U64, half: random_keys.U64
) -> random_keys.U64:
    low = (np.uint64(1) << half) - np.uint64(1)
    left, right = value >> half, value & low
    for number in range(ROUNDS):
        # A round can be undone whatever `mixed` is, so every key gives a bijection.
        mixed = random_keys.splitmix64(random_keys.splitmix64(key ^ np.uint64(number)) ^ right)
        left, right = right, left ^ (mixed & low)
    return (left << half) | right


@dataclass(frozen=True, slots=True)
class LengthBins:
    """Rows of each length bin, as runs of consecutive rows in bin order.

    Attributes:
        counts: int64 [D * bins], rows per bin of the first drawing, then of the second, ….
        run_starts: int64 [runs], ascending: first number of each run in bin order.
        rows: int64 [runs], first row of each run.
    """

    counts: I64
    run_starts: I64
    rows: I64

    def row(self, number: I64) -> I64:
        """Return the rows with these numbers in bin order."""
        run = np.searchsorted(self.run_starts, number, side="right") - 1
        return self.rows[run] + (number - self.run_starts[run])


@dataclass(frozen=True, slots=True)
class Sampler:
    """Sample order of a run.

    Attributes:
        rows: N.
        copies: mask copies per row; epoch e uses copy e % copies (RoBERTa, section 4.1). None: copy
            e, with dynamic masking.
        bins: length bins; None: one bin.
        group: with bins, samples from one multiple of `group` to the next are of one bin, except
            for the remainders of the bins.
        window: rows that an epoch finishes before it reads others; None: all rows.
        drawings: D, drawings of the rows; more than one have `bins`.
    """

    rows: int
    copies: int | None
    seed: int
    bins: LengthBins | None = None
    group: int = 1
    window: int | None = None
    drawings: int = 1

    def locate(self, samples: npt.ArrayLike) -> tuple[I64, I64]:
        """Return row and mask copy of each global sample number; both int64 [B]."""
        samples = np.asarray(samples, np.int64)
        epochs, positions = samples // self.rows, samples % self.rows
        counts = np.array([self.rows]) if self.bins is None else self.bins.counts
        counts = counts.reshape(self.drawings, -1)
        starts = offsets_of(counts.sum(axis=1))
        drawing = np.searchsorted(starts, positions, side="right") - 1
        # A drawing of an epoch is a pass, with a key and so an order of its own.
        passes, positions = epochs * self.drawings + drawing, positions - starts[drawing]
        if counts.shape[1] == 1:
            key = random_keys.fold_in(self.seed, Stream.ORDER, passes)
            order = permute if self.window is None else self._by_windows
            rows = order(positions, counts[drawing, 0], key)
        else:
            rows = np.empty_like(samples)
            for number in np.unique(passes).tolist():
                selected, (epoch, own) = passes == number, divmod(number, self.drawings)
                first = epoch * self.rows + int(starts[own])
                # By pass, since the borders of its groups depend on the sample that begins it.
                rows[selected] = self._binned(counts[own], positions[selected], number, first)
        rows += starts[drawing]
        if self.bins is not None:
            rows = self.bins.row(rows)
        return rows, epochs if self.copies is None else epochs % self.copies

    def _by_windows(self, position: I64, count: I64, key: random_keys.U64) -> I64:
        """Permute [0, count): windows, and then the rows within each window.

        Windows are ranges of rows, rotated by a random offset per epoch, so that their borders
        differ. The shorter last window comes last.
        """
        assert self.window is not None
        slot, full_windows = position // self.window, count // self.window
        in_full_window = slot < full_windows
        windows = np.where(in_full_window, 0, full_windows)
        windows[in_full_window] = permute(
            slot[in_full_window],
            full_windows[in_full_window],
            random_keys.fold_in(key, _WINDOWS)[in_full_window],
        )
        size = np.where(in_full_window, self.window, count - full_windows * self.window)
        inside = permute(
            position - slot * self.window, size, random_keys.fold_in(key, _WITHIN, windows)
        )
        rotation = random_keys.randint_below(random_keys.fold_in(key, _TURN), count).astype(
            np.int64
        )
        # A rotation modulo `count` keeps the bijection, and moves the borders of the windows.
        return (windows * self.window + inside + rotation) % count

    def _binned(self, counts: I64, positions: I64, number: int, first: int) -> I64:
        """Return the numbers in bin order of the rows at `positions` of pass `number`.

        Groups begin at the multiples of `group` in the run's samples, even within a pass, whose
        first sample is `first`. Rows that fill no group of their bin come before the first group,
        after the last one, and in the slots left over.
        """
        group, total = self.group, int(counts.sum())
        # Rows up to the first multiple of `group` in the samples of the run, where groups begin.
        head = min(total, -first % group)
        slots = (total - head) // group
        full_groups = counts // group
        # The head can leave a slot less than there are groups; the largest bin gives up one.
        full_groups[int(np.argmax(full_groups))] -= max(0, int(full_groups.sum()) - slots)
        pure = int(full_groups.sum())
        rests = counts - full_groups * group
        starts, pure_starts, rest_starts = map(offsets_of, (counts, full_groups, rests))
        key = random_keys.fold_in(self.seed, Stream.ORDER, number)

        # Classify each position: before the slots, in one, or after. Slots are permuted; the first
        # `pure` contain whole groups.
        inside = positions - head
        slotted = (inside >= 0) & (inside < slots * group)
        slot = np.zeros_like(positions)
        if slots:
            groups_key = random_keys.fold_in(key, _GROUPS)
            slot[slotted] = permute(inside[slotted] // group, slots, groups_key)
        group_offset = inside % group
        is_pure = slotted & (slot < pure)
        # Number the remainders in bin order: before, in and after the slots.
        remainder = np.where(slotted, head + (slot - pure) * group + group_offset, 0)
        remainder = np.where(inside < 0, positions, remainder)
        remainder = np.where(
            inside >= slots * group,
            head + (slots - pure) * group + inside - slots * group,
            remainder,
        )
        in_bin = np.where(
            is_pure,
            np.searchsorted(pure_starts, slot, side="right"),
            np.searchsorted(rest_starts, remainder, side="right"),
        )
        in_bin = np.minimum(in_bin - 1, len(counts) - 1)
        offset = np.where(
            is_pure,
            (slot - pure_starts[in_bin]) * group + group_offset,
            full_groups[in_bin] * group + remainder - rest_starts[in_bin],
        )
        order = permute if self.window is None else self._by_windows
        rows: I64 = starts[in_bin] + order(offset, counts[in_bin], random_keys.fold_in(key, in_bin))
        return rows


def shard_range(start: int, stop: int, part: int, parts: int) -> tuple[int, int]:
    """Return range `part` of [start, stop) split into `parts` ranges that differ by at most one."""
    size = stop - start
    return start + size * part // parts, start + size * (part + 1) // parts


def micro_batch_ranges(
    start: int, stop: int, rank: int, world_size: int, accumulation: int
) -> list[tuple[int, int]]:
    """Return the ranges [start, stop) of a rank's micro-batches of a step; some may be empty."""
    rank_range = shard_range(start, stop, rank, world_size)
    return [shard_range(*rank_range, index, accumulation) for index in range(accumulation)]
