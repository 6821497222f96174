"""Which rows a step trains on: a pure function of (seed, how many samples were consumed), with no state to save.

Sample g of a run is position g % N of epoch g // N, and an epoch visits every row once, in an order of its own: a
format-preserving permutation (a Feistel network on the next power of four, walked until the value lies below N; Black
and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). Any sample is found in O(1), so resuming at any step is
instantaneous, and the order is the same on every number of ranks: a rank takes its slice of each step's samples.

With length bins, samples come in groups of a fixed size whose rows are of one bin, and the groups in a permuted order, so that
batches pad less. With a window, an epoch goes through the rows window by window, so that few compressed blocks are open at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.core import random_keys
from pipeline.core.ragged import offsets_of

I64 = npt.NDArray[np.int64]
ROUNDS = 6  # four make a pseudorandom permutation (Luby and Rackoff); small domains like a few more
_ORDER, _WITHIN, _WINDOWS, _GROUPS, _TURN = 1, 4, 5, 6, 7  # random streams, beside the trainer's


def permute(position: npt.ArrayLike, count: npt.ArrayLike, key: npt.ArrayLike) -> I64:
    """The bijection on [0, count) that `key` names, at `position`.

    Args:
        position: integers in [0, count).
        count: N, at least 1.
        key: uint64. All three broadcast.

    Returns:
        int64 of the broadcast shape.
    """
    arrays = np.broadcast_arrays(np.asarray(position, np.uint64), np.asarray(count, np.uint64), np.asarray(key, np.uint64))
    value, counts, named = (np.array(array) for array in arrays)
    bits = np.frexp(np.maximum(counts.astype(np.float64) - 1, 1))[1].astype(np.uint64)  # bit length, exact below 2**53
    half = np.maximum(np.uint64(1), (bits + np.uint64(1)) >> np.uint64(1))
    pending = np.ones(value.shape, bool)
    while pending.any():  # fewer than four tries each on average, as the domain is below 4 N
        value[pending] = _feistel(value[pending], named[pending], half[pending])
        pending[pending] = value[pending] >= counts[pending]
    return value.astype(np.int64)


def _feistel(value: random_keys.U64, key: random_keys.U64, half: random_keys.U64) -> random_keys.U64:
    low = (np.uint64(1) << half) - np.uint64(1)
    left, right = value >> half, value & low
    for number in range(ROUNDS):
        left, right = right, left ^ (random_keys.mix(random_keys.mix(key ^ np.uint64(number)) ^ right) & low)
    return (left << half) | right


@dataclass(frozen=True, slots=True)
class Bins:
    """Where the rows of each length bin are. Numbered bin after bin, rows form runs that lie together.

    Attributes:
        counts: int64 [bins], rows of each bin.
        places: int64 [runs], ascending: the first number of each run in that numbering.
        rows: int64 [runs], the row that has it.
    """

    counts: I64
    places: I64
    rows: I64

    def row(self, number: I64) -> I64:
        """The rows that have these numbers."""
        run = np.searchsorted(self.places, number, side="right") - 1
        return self.rows[run] + (number - self.places[run])


@dataclass(frozen=True, slots=True)
class Sampler:
    """The order of a run.

    Attributes:
        rows: N.
        copies: mask copies a row; epoch e trains on copy e % copies (RoBERTa, section 4.1). None: on copy e, drawn afresh.
        seed: of the order.
        bins: of rows of similar length; None: all rows are alike.
        group: with bins, samples g from a multiple of it to the next are of one bin (but for what is left over of each).
        window: rows that an epoch goes through before it goes on to others; None: all.
    """

    rows: int
    copies: int | None
    seed: int
    bins: Bins | None = None
    group: int = 1
    window: int | None = None

    def locate(self, samples: npt.ArrayLike) -> tuple[I64, I64]:
        """Row number and mask copy of each global sample number; both int64 of the same shape."""
        samples = np.asarray(samples, np.int64)
        epochs, positions = samples // self.rows, samples % self.rows
        if self.bins is None:
            rows = self._order(positions, np.full_like(positions, self.rows), random_keys.derive(self.seed, _ORDER, epochs))
        else:
            rows = np.empty_like(samples)
            for epoch in np.unique(epochs).tolist():
                mine = epochs == epoch
                rows[mine] = self.bins.row(self._binned(self.bins.counts, positions[mine], epoch))
        return rows, epochs if self.copies is None else epochs % self.copies

    def _order(self, position: I64, count: I64, key: random_keys.U64) -> I64:
        """A permutation of [0, count): of the whole, or of windows and then within each.

        Windows are ranges of the rows, turned by a random number an epoch, so that their borders differ; the last, shorter
        one comes last.
        """
        if self.window is None or not position.size:
            return permute(position, count, key)
        slot, whole = position // self.window, count // self.window
        full = slot < whole
        chosen = np.where(full, 0, whole)
        chosen[full] = permute(slot[full], whole[full], random_keys.derive(key, _WINDOWS)[full])
        size = np.where(full, self.window, count - whole * self.window)
        inside = permute(position - slot * self.window, size, random_keys.derive(key, _WITHIN, chosen))
        turn = random_keys.below(random_keys.derive(key, _TURN), count).astype(np.int64)
        return (chosen * self.window + inside + turn) % count

    def _binned(self, counts: I64, positions: I64, epoch: int) -> I64:
        """The numbers, bin after bin, of the rows at `positions` of an epoch.

        Groups begin at the multiples of `group` in the run's samples, wherever the epoch begins. In front of the first and
        behind the last of them, and in as many groups as are needed, stand the rows that fill no group of their bin.
        """
        group, total = self.group, int(counts.sum())
        head = min(total, -epoch * total % group)
        slots = (total - head) // group
        whole = counts // group
        whole[int(np.argmax(whole))] -= max(0, int(whole.sum()) - slots)
        pure = int(whole.sum())
        starts, pure_starts, rest_starts = offsets_of(counts), offsets_of(whole), offsets_of(counts - whole * group)
        key = random_keys.derive(self.seed, _ORDER, epoch)

        # Where each position is: in front, in a slot, or behind; slots are permuted, and the first `pure` hold whole groups.
        inside = positions - head
        slotted = (inside >= 0) & (inside < slots * group)
        slot = np.zeros_like(positions)
        if slots:
            slot[slotted] = permute(inside[slotted] // group, slots, random_keys.derive(key, _GROUPS))
        place = inside % group
        is_pure = slotted & (slot < pure)
        # What is left over, numbered bin after bin: those in front, those in slots, those behind.
        left = np.where(slotted, head + (slot - pure) * group + place, 0)
        left = np.where(inside < 0, positions, left)
        left = np.where(inside >= slots * group, head + (slots - pure) * group + inside - slots * group, left)
        in_bin = np.where(
            is_pure, np.searchsorted(pure_starts, slot, side="right"), np.searchsorted(rest_starts, left, side="right")
        )
        in_bin = np.minimum(in_bin - 1, len(counts) - 1)
        at = np.where(
            is_pure,
            (slot - pure_starts[in_bin]) * group + place,
            whole[in_bin] * group + left - rest_starts[in_bin],
        )
        rows: I64 = starts[in_bin] + self._order(at, counts[in_bin], random_keys.derive(key, in_bin))
        return rows


def share(start: int, stop: int, part: int, parts: int) -> tuple[int, int]:
    """Part `part` of [start, stop) cut into `parts` pieces whose sizes differ by at most one."""
    size = stop - start
    return start + size * part // parts, start + size * (part + 1) // parts
