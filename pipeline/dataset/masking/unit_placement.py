"""Placement of units of whole words, for the rules that mask words, n-grams and spans.

Words have *slots*, numbered through all rows. An empty slot precedes every run of adjacent words.
So neighbouring slots are neighbouring words, and no unit crosses [SEP] or another special token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cloze.core import random_keys as random
from cloze.core.ragged import I64, ranges
from cloze.core.random_keys import U64
from cloze.pipeline.dataset.masking.candidates import Bools, MaskCandidates, MaskSelection
from cloze.pipeline.dataset.masking.registry import LONGEST_UNIT


@dataclass(frozen=True, slots=True, kw_only=True)
class WordSlots:
    """The words of R rows, by slot."""

    slot: I64  # int64 [W], slot of each word
    offsets: I64  # int64 [R + 1], start of each row's words in `slot`
    slot_offsets: I64  # int64 [R + 1], start of each row's slots; the first slot of a row is empty
    # int64 [S + 1], first candidate of the word in each slot; an empty slot has that of the next
    # slot
    first: I64
    # int64 [C + 1], slot of each candidate; S + 1 at the end, as if another row followed
    of_candidate: I64
    run_left: I64  # int64 [W], words from each word to the end of its run, inclusive
    # uint64 [R, width], one bit per slot of a row, set if the slot has a word. The last number of a
    # row is empty.
    free: U64

    @classmethod
    def of(cls, candidates: MaskCandidates) -> WordSlots:
        opens_run = candidates.opens_run()
        opens = candidates.opens_word(opens_run)
        slot_counts = np.zeros(len(opens) + 1, np.int64)  # slots up to each candidate
        np.cumsum(opens.view(np.int8) + opens_run.view(np.int8), out=slot_counts[1:])
        starts, run_starts = np.flatnonzero(opens), np.flatnonzero(opens_run)
        slots, run_slots = int(slot_counts[-1]), slot_counts[run_starts + 1] - 1
        slot = slot_counts[starts + 1] - 1
        first = np.empty(slots + 1, np.int64)
        first[slot] = starts
        first[run_slots - 1] = run_starts
        first[slots] = len(opens)
        run_ends = np.append(run_slots[1:] - 1, slots)[: len(run_slots)]
        offsets = np.searchsorted(starts, candidates.offsets)
        slot_offsets = slot_counts[candidates.offsets]
        run_words = np.diff(np.append(np.searchsorted(starts, run_starts), len(starts)))
        rows, width = len(offsets) - 1, int(np.diff(slot_offsets).max(initial=1)) // 64 + 2
        is_word = np.zeros(rows * width * 64, np.bool_)
        row_bits = np.arange(rows) * (width * 64) - slot_offsets[:-1]
        is_word[slot + np.repeat(row_bits, np.diff(offsets))] = True
        return cls(
            slot=slot,
            offsets=offsets,
            slot_offsets=slot_offsets,
            first=first,
            of_candidate=np.append(slot_counts[1:] - 1, slots + 1),
            run_left=np.repeat(run_ends, run_words) - slot,
            free=np.packbits(is_word, bitorder="little")
            .view("<u8")
            .astype(np.uint64, copy=False)
            .reshape(rows, width),
        )


# Placement of units, one after another, in every mask until its budget is used up. A mask has one
# bit per slot of its row, so that a unit of up to 60 words is tested and placed by a few operations
# on one number, for all masks at once: a loop over words in Python takes fifty times as long.
#
#     slots of a row     .  the  cat sat  .  on  mats     an empty slot before each run of words
#     closed             1   0    1   0   1   0   0       1: no word, taken, or beside a span
#     window from `on`   0 0 1 …                          free words up to the next closed slot: 2

CHUNK = 8  # places that are drawn at once in each mask
PATIENCE = 2  # chunks without a free place before a unit is shortened
# random streams of a mask's key, distinct from step numbers
USE_LENGTH, USE_REST = (1 << 20, 1 << 21)
ONE, LAST = np.uint64(1), np.uint64(63)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitSpec:
    """The rules by which units are drawn."""

    weights: npt.NDArray[np.float64]  # float64 [n], relative probabilities of 1, 2, … n words
    # units are SpanBERT's spans. Places are drawn from tokens, so longer words are likelier; a
    # length without a free place is kept for other places; spans do not touch; all tokens of a span
    # get the same kind of replacement. Else units are ALBERT's n-grams. Places are drawn from
    # words; each place has its own fixed length; n-grams may touch; each token gets its own
    # replacement.
    are_spans: bool = False

    def __post_init__(self) -> None:
        if len(self.weights) > LONGEST_UNIT:
            raise ValueError(
                f"units have {len(self.weights)} words at most, and only {LONGEST_UNIT} can be "
                f"placed; use fewer"
            )

    def lengths(self, keys: U64) -> npt.NDArray[np.int64]:
        """Return a number of words for each key: int64."""
        lengths = np.ones(keys.shape, np.int64)
        for threshold in np.cumsum(self.weights / self.weights.sum())[:-1].tolist():
            lengths += keys >= np.uint64(int(threshold * 2.0**64))
        return lengths


def mask_units(
    candidates: MaskCandidates, budget: I64, keys: U64, units: UnitSpec
) -> MaskSelection:
    """Place units in every mask until its budget is used up.

    A unit longer than the rest of the budget is shortened by whole words, possibly to none. So the
    budget is never exceeded. It is missed only if no free word is short enough (and touches no
    span).

    Args:
        candidates: candidates of R rows.
        budget: int64 [R, K], maximum tokens of each mask.
        keys: uint64 [R, K].
    """
    placement = _Placement(candidates, budget, keys, units)
    placement.place()
    placement.fill_up()
    return placement.selection(budget)


class _Placement:
    """The units placed so far. Masks are in the order (row, copy)."""

    def __init__(self, candidates: MaskCandidates, budget: I64, keys: U64, units: UnitSpec) -> None:
        # gap: 1 if units must not touch, else 0
        self.candidates, self.units, self.gap = candidates, units, int(units.are_spans)
        self.words, self.copies = WordSlots.of(candidates), keys.shape[1]
        # remaining: int64 [masks], rest of the budgets
        self.keys, self.remaining = keys.reshape(-1), budget.reshape(-1).copy()
        # uint64 [masks * width], one bit per slot, set if no unit may use it
        self.closed = np.repeat(~self.words.free, self.copies, axis=0).reshape(-1)
        # units as numbers: mask, slot in its row, words. Sorted, they have the order of a
        # selection.
        self.placed = [np.zeros(0, np.uint64)]

    def _add(self, mask: I64, slot: I64, size: npt.NDArray[Any]) -> None:
        self.placed.append((mask << 40 | slot << 8 | size).astype(np.uint64))

    def place(self) -> None:
        """Try places in every mask until its budget is used up, or no place is found."""
        units, single = self.units, len(self.units.weights) == 1 and not self.units.are_spans
        mask = np.flatnonzero(self.remaining > 0)
        length = units.lengths(_drawn(self.keys[mask], USE_LENGTH - 1))
        idle, step = np.zeros(len(mask), np.int64), 0
        while len(mask):
            slot, inside, fresh = self._draw(mask, step)
            remaining = self.remaining[mask]
            # A span's neighbours must be free, too: its window begins one slot before.
            start = inside - self.gap
            cell, shift = mask * self.words.free.shape[1] + (start >> 6), start & 63
            place = (slot, cell, shift.astype(np.uint64), remaining)
            sizes = self._try_words(*place) if single else self._try_units(*place, fresh, length)
            self.remaining[mask] = remaining
            is_placed = sizes > 0
            index = np.flatnonzero(is_placed)
            tried = np.tile(mask, CHUNK)[index], inside.reshape(-1)[index], sizes.reshape(-1)[index]
            self._add(*tried)
            idle = np.where(is_placed.any(axis=0), 0, idle + 1)
            is_exhausted = idle >= PATIENCE
            # Shorter units help only if the rest of the budget allows a longer one.
            stuck = is_exhausted
            if units.are_spans:
                stuck = is_exhausted & ((length == 1) | (remaining <= length))
            length = np.where(is_exhausted, (length + 1) // 2, length)
            idle = np.where(is_exhausted, 0, idle)
            active = np.flatnonzero((remaining > 0) & ~stuck)
            mask, length, idle = mask[active], length[active], idle[active]
            step += CHUNK

    def _draw(self, mask: I64, step: int) -> tuple[I64, I64, I64]:
        """Draw `CHUNK` places in each of n masks, those of the steps from `step` on.

        Returns:
            int64 [CHUNK, n] each: slot of the place; slot within the row; number of words that is
            drawn for the place.
        """
        words, units, row = self.words, self.units, mask // self.copies
        key, steps = self.keys[mask], np.arange(step, step + CHUNK)[:, None]
        offsets = self.candidates.offsets if units.are_spans else words.offsets
        pairs = _drawn(key, steps[::2])  # 64 bits are enough for two places
        halves = np.stack([pairs >> np.uint64(32), pairs & np.uint64(0xFFFFFFFF)], axis=1)
        counts = np.diff(offsets)[row].astype(np.uint64)
        drawn = (halves.reshape(CHUNK, -1) * counts >> np.uint64(32)).astype(np.int64)
        picked = offsets[row] + drawn
        slot = (words.of_candidate if units.are_spans else words.slot).take(picked)
        inside = slot - words.slot_offsets[row]
        if len(units.weights) == 1:
            fresh = np.ones_like(slot)
        elif units.are_spans:
            fresh = units.lengths(_drawn(key, steps + USE_LENGTH))
        else:  # a place's own length, limited by its run
            own = units.lengths(_drawn(key, inside + USE_LENGTH))
            fresh = np.minimum(own, words.run_left.take(picked))
        return slot, inside, fresh

    def _try_words(self, slots: I64, cells: I64, shifts: U64, remaining: I64) -> Bools:
        """Try single words, which need no free neighbours, and so only one bit.

        Lowers `remaining`; returns the successes, [CHUNK, n].
        """
        closed, sizes = self.closed, np.zeros(slots.shape, np.bool_)
        tokens = self.words.first.take(slots + 1) - self.words.first.take(slots)
        for attempt, (cell, shift) in enumerate(zip(cells, shifts, strict=True)):
            bits = closed.take(cell)
            is_placed = (((bits >> shift) & ONE) == 0) & (tokens[attempt] <= remaining)
            closed[cell] = bits | (is_placed.astype(np.uint64) << shift)
            remaining -= tokens[attempt] * is_placed
            sizes[attempt] = is_placed
        return sizes

    def _try_units(
        self, slots: I64, cells: I64, shifts: U64, remaining: I64, fresh: I64, length: I64
    ) -> I64:
        """Try units of several words.

        Lowers `remaining` and updates `length` in place; returns the words placed, [CHUNK, n].
        """
        closed, first, of_candidate = self.closed, self.words.first, self.words.of_candidate
        sizes, farthest = np.zeros(slots.shape, np.int64), len(of_candidate) - 1
        gap, margin, are_spans = np.uint64(self.gap), np.uint64(2 * self.gap), self.units.are_spans
        places = zip(slots, cells, shifts, LAST - shifts, strict=True)
        for attempt, (slot, cell, shift, back) in enumerate(places):
            begin = first.take(slot)
            # words within the rest of the budget
            longest = of_candidate.take(np.minimum(begin + remaining, farthest)) - slot
            requested = np.minimum(length if are_spans else fresh[attempt], longest)
            # The window may reach into the next number; a shift by 64 would be undefined.
            low, high = closed.take(cell), closed.take(cell + 1)
            window = ((low >> shift) | ((high << ONE) << back)) >> gap
            # clear bits below the lowest set bit
            free = np.bitwise_count(~window & (window - ONE)).view(np.int8)
            is_placed = (requested > 0) & (free >= requested)
            size = requested * is_placed
            run = ((ONE << (size.astype(np.uint64) + margin)) - ONE) * is_placed
            closed[cell] = low | (run << shift)
            closed[cell + 1] = high | ((run >> ONE) >> back)
            remaining -= first.take(slot + size) - begin
            if are_spans:
                np.copyto(length, fresh[attempt], where=is_placed)
            sizes[attempt] = size
        return sizes

    def fill_up(self) -> None:
        """Use up remaining budgets with single free words, drawn uniformly from those that fit."""
        words, step = self.words, 0
        bits = self.closed.reshape(len(self.keys), -1)
        mask = np.flatnonzero(self.remaining > 0)
        while len(mask):
            free = np.unpackbits(
                (~bits[mask]).astype("<u8").view(np.uint8), axis=1, bitorder="little"
            ).astype(np.bool_)
            slot = words.slot_offsets[mask // self.copies][:, None] + np.arange(free.shape[1])
            slot = np.minimum(slot, len(words.first) - 2)
            tokens = words.first[slot + 1] - words.first[slot]
            is_fitting = free & (tokens <= self.remaining[mask][:, None])
            fit_counts = is_fitting.sum(axis=1)
            nonempty = np.flatnonzero(fit_counts)
            mask, fit_counts = mask[nonempty], fit_counts[nonempty]
            is_fitting, tokens = is_fitting[nonempty], tokens[nonempty]
            pick = random.randint_below(_drawn(self.keys[mask], USE_REST + step), fit_counts)
            taken = np.cumsum(is_fitting, axis=1) > pick.astype(np.int64)[:, None]
            inside = np.argmax(taken, axis=1)
            self._add(mask, inside, np.ones(len(mask), np.int64))
            for near in range(-self.gap, self.gap + 1):
                bit = ((inside + near) & 63).astype(np.uint64)
                bits[mask, (inside + near) >> 6] |= ONE << bit
            self.remaining[mask] -= tokens[np.arange(len(mask)), inside]
            mask, step = mask[self.remaining[mask] > 0], step + 1

    def selection(self, budget: I64) -> MaskSelection:
        """Convert the placed units to a selection; spans are also units of replacement."""
        words, counts = self.words, budget.reshape(-1) - self.remaining
        placed = np.sort(np.concatenate(self.placed)).astype(np.int64)
        row, size = (placed >> 40) // self.copies, placed & 255
        slot = words.slot_offsets[row] + (placed >> 8 & 0xFFFFFFFF)
        starts = words.first[slot]
        tokens = words.first[slot + size] - starts
        unit = None
        if self.units.are_spans:
            opening = self.candidates.index[starts] - self.candidates.rows.offsets[row]
            unit = np.repeat(opening, tokens)
        return MaskSelection(index=ranges(starts, tokens), counts=counts, unit=unit)


def _drawn(keys: U64, numbers: npt.ArrayLike) -> U64:
    """Return the random numbers with these numbers in the streams of `keys`; both broadcast."""
    return random.splitmix64(keys ^ random.splitmix64(numbers))
