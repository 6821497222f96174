"""Units of one or more whole words, placed one after another in every mask until its budget is used up.

What whole-word, n-gram and span masks share. There is one mask for each (row, copy). All masks are worked on together, a step a try: a
place is drawn, and the unit is put there if all its words are free. Which words are taken is kept in bits, 64 to a number, so a unit's
whole neighbourhood is looked at in one operation. What a mask becomes depends on its key and its row alone: numbers are drawn by the
number of the step, and `CHUNK` steps at a time, which is only faster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.core import random_keys as random
from pipeline.core.ragged import I64, ranges
from pipeline.core.random_keys import U64
from pipeline.dataset.masking.candidates import Candidates, Selection
from pipeline.dataset.masking.table import LONGEST_UNIT
from pipeline.dataset.masking.word_slots import WordSlots

CHUNK = 8
PATIENCE = 2  # chunks in which a mask found no place for a unit, before the unit is made shorter
USE_LENGTH, USE_REST = 1 << 20, 1 << 21  # random streams of a mask's key, beside the numbers of the steps
ONE, LAST = np.uint64(1), np.uint64(63)


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """How units are made.

    Attributes:
        weights: float64 [n], how likely 1, 2, … n words are, but for a common factor.
        by_token: places are drawn uniformly from tokens (and meet longer words more often), not from words.
        persistent: a length that finds no place is kept, and another place is tried; else each place draws its own length,
            always the same one.
        apart: no unit touches another one.
        as_one: all pieces of a unit get the same kind of replacement.
    """

    weights: npt.NDArray[np.float64]
    by_token: bool
    persistent: bool
    apart: bool
    as_one: bool

    def __post_init__(self) -> None:
        if len(self.weights) > LONGEST_UNIT:
            raise ValueError(f"units have {len(self.weights)} words at most, and only {LONGEST_UNIT} can be placed; use fewer")

    def lengths(self, keys: U64) -> npt.NDArray[np.int64]:
        """A number of words for each key: int64."""
        found = np.ones(keys.shape, np.int64)
        for threshold in np.cumsum(self.weights / self.weights.sum())[:-1].tolist():
            found += keys >= np.uint64(int(threshold * 2.0**64))
        return found


@dataclass(slots=True, kw_only=True)
class PlacedUnits:
    """What is placed so far. Masks are in the order (row, copy).

    Attributes:
        words: of the batch.
        copies: K.
        keys: uint64 [masks].
        closed: uint64 [masks * width], a bit for each slot: whether no unit may take it any more.
        left: int64 [masks], what is left of the budgets.
        placed: units as numbers: mask, slot within its row, words. Sorted, they are in the order of a selection.
    """

    words: WordSlots
    copies: int
    keys: U64
    closed: U64
    left: I64
    placed: list[U64]

    def note(self, mask: I64, slot: I64, size: npt.NDArray[Any]) -> None:
        self.placed.append((mask << 40 | slot << 8 | size).astype(np.uint64))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tries:
    """`CHUNK` places in each of n masks: arrays [CHUNK, n].

    Attributes:
        slot: the slot of the place.
        inside: the same within its row.
        begin: the candidate that opens the word there.
        fresh: int64, the number of words drawn for the place.
        cell: where in `PlacedUnits.closed` the neighbourhood of the place begins.
        shift: uint64, at which bit.
    """

    slot: I64
    inside: I64
    begin: I64
    fresh: I64
    cell: I64
    shift: U64


def place(candidates: Candidates, budget: I64, keys: U64, units: Units) -> Selection:
    """Units in every mask until its budget is used up.

    A unit that is longer than what is left of the budget is shortened by whole words, down to none. So the budget is never
    exceeded, and it falls short only where no free word (that touches no unit, if they are apart) is short enough.

    Args:
        candidates: of R rows.
        budget: int64 [R, K], the most tokens of each mask.
        keys: uint64 [R, K].
        units: how they are made.
    """
    words, copies = WordSlots.of(candidates), keys.shape[1]
    closed = np.repeat(~words.free, copies, axis=0).reshape(-1)
    state = PlacedUnits(
        words=words, copies=copies, keys=keys.reshape(-1), closed=closed, left=budget.reshape(-1).copy(), placed=[]
    )
    mask = np.flatnonzero(state.left > 0)
    length = units.lengths(random.mix(state.keys[mask] ^ random.mix(USE_LENGTH - 1)))
    idle, step = np.zeros(len(mask), np.int64), 0
    while len(mask):
        tries = _draw(state, candidates, units, mask, step)
        left = state.left[mask]
        single = len(units.weights) == 1 and not units.apart
        sizes = _single_words(state, left, tries) if single else _long_units(state, units, left, tries, length)
        state.left[mask] = left
        found = sizes > 0
        which = np.flatnonzero(found)
        state.note(np.tile(mask, CHUNK)[which], tries.inside.reshape(-1)[which], sizes.reshape(-1)[which])
        idle = np.where(found.any(axis=0), 0, idle + 1)
        worn = idle >= PATIENCE
        # Shorter units help only where the budget's rest would take a longer one.
        stuck = worn & ((length == 1) | (left <= length)) if units.persistent else worn
        length = np.where(worn, (length + 1) // 2, length)
        idle = np.where(worn, 0, idle)
        keep = np.flatnonzero((left > 0) & ~stuck)
        mask, length, idle = mask[keep], length[keep], idle[keep]
        step += CHUNK
    _fill_up(state, units)
    return _selection(state, candidates, budget.reshape(-1) - state.left, as_one=units.as_one)


def _draw(state: PlacedUnits, candidates: Candidates, units: Units, mask: I64, step: int) -> Tries:
    """The places that the masks try in the steps from `step` on."""
    words, row, gap = state.words, mask // state.copies, int(units.apart)
    key, steps = state.keys[mask], np.arange(step, step + CHUNK)[:, None]
    offsets = candidates.offsets if units.by_token else words.offsets
    pairs = random.mix(key ^ random.mix(steps[::2]))  # a number of 64 bits is enough for two places
    draws = np.stack([pairs >> np.uint64(32), pairs & np.uint64(0xFFFFFFFF)], axis=1).reshape(CHUNK, -1)
    picked = offsets[row] + (draws * np.diff(offsets)[row].astype(np.uint64) >> np.uint64(32)).astype(np.int64)
    slot = (words.of_candidate if units.by_token else words.slot).take(picked)
    inside = slot - words.slot_offsets[row]
    if len(units.weights) == 1:
        fresh = np.ones_like(slot)
    elif units.persistent:
        fresh = units.lengths(random.mix(key ^ random.mix(steps + USE_LENGTH)))
    else:  # a place's own length, which ends with its run
        fresh = np.minimum(units.lengths(random.mix(key ^ random.mix(inside + USE_LENGTH))), words.run_left.take(picked))
    return Tries(
        slot=slot,
        inside=inside,
        begin=words.first.take(slot),
        fresh=fresh,
        cell=mask * words.free.shape[1] + ((inside - gap) >> 6),
        shift=((inside - gap) & 63).astype(np.uint64),
    )


def _single_words(state: PlacedUnits, left: I64, tries: Tries) -> npt.NDArray[Any]:
    """Try single words, which need no look at their neighbourhood. Lowers `left`; returns 1 for each success [CHUNK, n]."""
    closed, sizes = state.closed, np.zeros(tries.slot.shape, np.bool_)
    tokens = state.words.first.take(tries.slot + 1) - tries.begin
    for at in range(CHUNK):
        bits = closed.take(tries.cell[at])
        found = (((bits >> tries.shift[at]) & ONE) == 0) & (tokens[at] <= left)
        closed[tries.cell[at]] = bits | (found.astype(np.uint64) << tries.shift[at])
        left -= tokens[at] * found
        sizes[at] = found
    return sizes


def _long_units(state: PlacedUnits, units: Units, left: I64, tries: Tries, length: I64) -> npt.NDArray[Any]:
    """Try units of several words. Lowers `left`, and gives `length` its new values; returns the words placed [CHUNK, n]."""
    closed, first, of_candidate = state.closed, state.words.first, state.words.of_candidate
    sizes = np.zeros(tries.slot.shape, np.int64)
    back = LAST - tries.shift
    farthest, gap, margin = len(of_candidate) - 1, np.uint64(units.apart), np.uint64(2 * units.apart)
    for at in range(CHUNK):
        slot, begin, cell, shift = tries.slot[at], tries.begin[at], tries.cell[at], tries.shift[at]
        fits = of_candidate.take(np.minimum(begin + left, farthest)) - slot  # words within what is left of the budget
        wanted = np.minimum(length if units.persistent else tries.fresh[at], fits)
        low, high = closed.take(cell), closed.take(cell + 1)
        window = ((low >> shift) | ((high << ONE) << back[at])) >> gap
        free = np.bitwise_count(~window & (window - ONE)).view(np.int8)  # clear bits below the lowest set one
        found = (wanted > 0) & (free >= wanted)
        size = wanted * found
        run = ((ONE << (size.astype(np.uint64) + margin)) - ONE) * found
        closed[cell] = low | (run << shift)
        closed[cell + 1] = high | ((run >> ONE) >> back[at])
        left -= first.take(slot + size) - begin
        if units.persistent:
            np.copyto(length, tries.fresh[at], where=found)
        sizes[at] = size
    return sizes


def _fill_up(state: PlacedUnits, units: Units) -> None:
    """Where budgets are left: one free word after another, uniformly from those that are short enough, while there are any."""
    words, gap, step = state.words, int(units.apart), 0
    bits = state.closed.reshape(len(state.keys), -1)
    mask = np.flatnonzero(state.left > 0)
    while len(mask):
        free = np.unpackbits((~bits[mask]).astype("<u8").view(np.uint8), axis=1, bitorder="little").astype(np.bool_)
        slot = words.slot_offsets[mask // state.copies][:, None] + np.arange(free.shape[1])
        slot = np.minimum(slot, len(words.first) - 2)
        tokens = words.first[slot + 1] - words.first[slot]
        fit = free & (tokens <= state.left[mask][:, None])
        many = fit.sum(axis=1)
        some = np.flatnonzero(many)
        mask, fit, tokens, many = mask[some], fit[some], tokens[some], many[some]
        wanted = random.below(random.mix(state.keys[mask] ^ random.mix(USE_REST + step)), many).astype(np.int64)
        inside = np.argmax(np.cumsum(fit, axis=1) > wanted[:, None], axis=1)
        state.note(mask, inside, np.ones(len(mask), np.int64))
        for near in range(-gap, gap + 1):
            bits[mask, (inside + near) >> 6] |= ONE << ((inside + near) & 63).astype(np.uint64)
        state.left[mask] -= tokens[np.arange(len(mask)), inside]
        mask, step = mask[state.left[mask] > 0], step + 1


def _selection(state: PlacedUnits, candidates: Candidates, counts: I64, as_one: bool) -> Selection:
    """What was placed as a selection; `as_one`: each unit is a unit of replacement too."""
    words = state.words
    units = np.sort(np.concatenate([np.zeros(0, np.uint64), *state.placed])).astype(np.int64)
    row, size = (units >> 40) // state.copies, units & 255
    slot = words.slot_offsets[row] + (units >> 8 & 0xFFFFFFFF)
    starts = words.first[slot]
    tokens = words.first[slot + size] - starts
    if not as_one:
        return Selection(index=ranges(starts, tokens), counts=counts)
    opening = candidates.index[starts] - candidates.rows.offsets[row]
    return Selection(index=ranges(starts, tokens), counts=counts, unit=np.repeat(opening, tokens))
