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
from cloze.pipeline.dataset.masking.candidates import MaskCandidates, MaskSelection
from cloze.pipeline.dataset.masking.registry import LONGEST_UNIT


@dataclass(frozen=True, slots=True, kw_only=True)
class WordSlots:
    """The words of R rows, by slot.

    Attributes:
        slot: int64 [W], slot of each word.
        offsets: int64 [R + 1], start of each row's words in `slot`.
        slot_offsets: int64 [R + 1], start of each row's slots; the first slot of a row is empty.
        first: int64 [S + 1], first candidate of the word in each slot; an empty slot has that of
            the next slot.
        of_candidate: int64 [C + 1], slot of each candidate; S + 1 at the end, as if another row
            followed.
        run_left: int64 [W], words from each word to the end of its run, inclusive.
        free: uint64 [R, width], one bit per slot of a row, set if the slot has a word. The last
            number of a row is empty.
    """

    slot: I64
    offsets: I64
    slot_offsets: I64
    first: I64
    of_candidate: I64
    run_left: I64
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
        is_word[
            slot + np.repeat(np.arange(rows) * (width * 64) - slot_offsets[:-1], np.diff(offsets))
        ] = True
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


# Placement of units, one after another, in every mask until its budget is used up.

CHUNK = 8
PATIENCE = 2  # chunks without a free place before a unit is shortened
# random streams of a mask's key, distinct from step numbers
USE_LENGTH, USE_REST = (1 << 20, 1 << 21)
ONE, LAST = np.uint64(1), np.uint64(63)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitSpec:
    """The rules by which units are drawn.

    Attributes:
        weights: float64 [n], relative probabilities of 1, 2, … n words.
        are_spans: units are SpanBERT's spans. Places are drawn from tokens, so longer words are
            likelier; a length without a free place is kept for other places; spans do not touch;
            all tokens of a span get the same kind of replacement. Else units are ALBERT's n-grams.
            Places are drawn from words; each place has its own fixed length; n-grams may touch;
            each token gets its own replacement.
    """

    weights: npt.NDArray[np.float64]
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


@dataclass(slots=True, kw_only=True)
class PlacementState:
    """The units placed so far. Masks are in the order (row, copy).

    Attributes:
        words: words of the batch.
        copies: K.
        keys: uint64 [masks].
        closed: uint64 [masks * width], one bit per slot, set if no unit may use it.
        remaining: int64 [masks], rest of the budgets.
        placed: units as numbers: mask, slot in its row, words. Sorted, they have the order of a
            selection.
    """

    words: WordSlots
    copies: int
    keys: U64
    closed: U64
    remaining: I64
    placed: list[U64]

    def add(self, mask: I64, slot: I64, size: npt.NDArray[Any]) -> None:
        self.placed.append((mask << 40 | slot << 8 | size).astype(np.uint64))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementCandidates:
    """`CHUNK` places in each of n masks: arrays [CHUNK, n].

    Attributes:
        slot: slot of the place.
        inside: slot within the row.
        begin: first candidate of the word in the slot.
        fresh: int64, number of words drawn for the place.
        cell: index in `PlacementState.closed` of the start of the place's neighbourhood.
        shift: uint64, bit of that start.
    """

    slot: I64
    inside: I64
    begin: I64
    fresh: I64
    cell: I64
    shift: U64


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
        units: rules by which units are drawn.
    """
    words, copies = WordSlots.of(candidates), keys.shape[1]
    closed = np.repeat(~words.free, copies, axis=0).reshape(-1)
    state = PlacementState(
        words=words,
        copies=copies,
        keys=keys.reshape(-1),
        closed=closed,
        remaining=budget.reshape(-1).copy(),
        placed=[],
    )
    mask = np.flatnonzero(state.remaining > 0)
    length = units.lengths(random.splitmix64(state.keys[mask] ^ random.splitmix64(USE_LENGTH - 1)))
    idle, step = np.zeros(len(mask), np.int64), 0
    while len(mask):
        tries = _draw(state, candidates, units, mask, step)
        remaining = state.remaining[mask]
        if len(units.weights) == 1 and not units.are_spans:
            sizes = _single_words(state, remaining, tries)
        else:
            sizes = _long_units(state, units, remaining, tries, length)
        state.remaining[mask] = remaining
        is_placed = sizes > 0
        placed_index = np.flatnonzero(is_placed)
        state.add(
            np.tile(mask, CHUNK)[placed_index],
            tries.inside.reshape(-1)[placed_index],
            sizes.reshape(-1)[placed_index],
        )
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
    _fill_up(state, units)
    return _selection(state, candidates, budget.reshape(-1) - state.remaining, units)


def _draw(
    state: PlacementState, candidates: MaskCandidates, units: UnitSpec, mask: I64, step: int
) -> PlacementCandidates:
    """Draw the places that the masks try from step `step` on."""
    words, row, gap = state.words, mask // state.copies, int(units.are_spans)
    key, steps = state.keys[mask], np.arange(step, step + CHUNK)[:, None]
    offsets = candidates.offsets if units.are_spans else words.offsets
    # 64 bits are enough for two places
    pairs = random.splitmix64(key ^ random.splitmix64(steps[::2]))
    draws = np.stack([pairs >> np.uint64(32), pairs & np.uint64(0xFFFFFFFF)], axis=1).reshape(
        CHUNK, -1
    )
    picked = offsets[row] + (
        draws * np.diff(offsets)[row].astype(np.uint64) >> np.uint64(32)
    ).astype(np.int64)
    slot = (words.of_candidate if units.are_spans else words.slot).take(picked)
    inside = slot - words.slot_offsets[row]
    if len(units.weights) == 1:
        fresh = np.ones_like(slot)
    elif units.are_spans:
        fresh = units.lengths(random.splitmix64(key ^ random.splitmix64(steps + USE_LENGTH)))
    else:  # a place's own length, limited by its run
        fresh = np.minimum(
            units.lengths(random.splitmix64(key ^ random.splitmix64(inside + USE_LENGTH))),
            words.run_left.take(picked),
        )
    return PlacementCandidates(
        slot=slot,
        inside=inside,
        begin=words.first.take(slot),
        fresh=fresh,
        cell=mask * words.free.shape[1] + ((inside - gap) >> 6),
        shift=((inside - gap) & 63).astype(np.uint64),
    )


def _single_words(
    state: PlacementState, remaining: I64, tries: PlacementCandidates
) -> npt.NDArray[Any]:
    """Try single words, which need no free neighbours.

    Lowers `remaining`; returns 1 for each success, [CHUNK, n].
    """
    closed, sizes = state.closed, np.zeros(tries.slot.shape, np.bool_)
    tokens = state.words.first.take(tries.slot + 1) - tries.begin
    for attempt in range(CHUNK):
        bits = closed.take(tries.cell[attempt])
        is_placed = (((bits >> tries.shift[attempt]) & ONE) == 0) & (tokens[attempt] <= remaining)
        closed[tries.cell[attempt]] = bits | (is_placed.astype(np.uint64) << tries.shift[attempt])
        remaining -= tokens[attempt] * is_placed
        sizes[attempt] = is_placed
    return sizes


def _long_units(
    state: PlacementState, units: UnitSpec, remaining: I64, tries: PlacementCandidates, length: I64
) -> npt.NDArray[Any]:
    """Try units of several words.

    Lowers `remaining` and updates `length` in place; returns the words placed, [CHUNK, n].
    """
    closed, first, of_candidate = state.closed, state.words.first, state.words.of_candidate
    sizes = np.zeros(tries.slot.shape, np.int64)
    back = LAST - tries.shift
    farthest = len(of_candidate) - 1
    gap, margin = np.uint64(units.are_spans), np.uint64(2 * units.are_spans)
    for attempt in range(CHUNK):
        slot, begin = tries.slot[attempt], tries.begin[attempt]
        cell, shift = tries.cell[attempt], tries.shift[attempt]
        # words within the rest of the budget
        longest = of_candidate.take(np.minimum(begin + remaining, farthest)) - slot
        requested = np.minimum(length if units.are_spans else tries.fresh[attempt], longest)
        low, high = closed.take(cell), closed.take(cell + 1)
        window = ((low >> shift) | ((high << ONE) << back[attempt])) >> gap
        # clear bits below the lowest set bit
        free = np.bitwise_count(~window & (window - ONE)).view(np.int8)
        is_placed = (requested > 0) & (free >= requested)
        size = requested * is_placed
        run = ((ONE << (size.astype(np.uint64) + margin)) - ONE) * is_placed
        closed[cell] = low | (run << shift)
        closed[cell + 1] = high | ((run >> ONE) >> back[attempt])
        remaining -= first.take(slot + size) - begin
        if units.are_spans:
            np.copyto(length, tries.fresh[attempt], where=is_placed)
        sizes[attempt] = size
    return sizes


def _fill_up(state: PlacementState, units: UnitSpec) -> None:
    """Use up remaining budgets with single free words, drawn uniformly from those that fit."""
    words, gap, step = state.words, int(units.are_spans), 0
    bits = state.closed.reshape(len(state.keys), -1)
    mask = np.flatnonzero(state.remaining > 0)
    while len(mask):
        free = np.unpackbits(
            (~bits[mask]).astype("<u8").view(np.uint8), axis=1, bitorder="little"
        ).astype(np.bool_)
        slot = words.slot_offsets[mask // state.copies][:, None] + np.arange(free.shape[1])
        slot = np.minimum(slot, len(words.first) - 2)
        tokens = words.first[slot + 1] - words.first[slot]
        is_fitting = free & (tokens <= state.remaining[mask][:, None])
        fit_counts = is_fitting.sum(axis=1)
        nonempty = np.flatnonzero(fit_counts)
        mask, fit_counts = mask[nonempty], fit_counts[nonempty]
        is_fitting, tokens = is_fitting[nonempty], tokens[nonempty]
        pick = random.randint_below(
            random.splitmix64(state.keys[mask] ^ random.splitmix64(USE_REST + step)), fit_counts
        ).astype(np.int64)
        inside = np.argmax(np.cumsum(is_fitting, axis=1) > pick[:, None], axis=1)
        state.add(mask, inside, np.ones(len(mask), np.int64))
        for distance in range(-gap, gap + 1):
            bits[mask, (inside + distance) >> 6] |= ONE << ((inside + distance) & 63).astype(
                np.uint64
            )
        state.remaining[mask] -= tokens[np.arange(len(mask)), inside]
        mask, step = mask[state.remaining[mask] > 0], step + 1


def _selection(
    state: PlacementState, candidates: MaskCandidates, counts: I64, units: UnitSpec
) -> MaskSelection:
    """Convert the placed units to a selection; spans are also units of replacement."""
    words = state.words
    placed = np.sort(np.concatenate([np.zeros(0, np.uint64), *state.placed])).astype(np.int64)
    row, size = (placed >> 40) // state.copies, placed & 255
    slot = words.slot_offsets[row] + (placed >> 8 & 0xFFFFFFFF)
    starts = words.first[slot]
    tokens = words.first[slot + size] - starts
    if not units.are_spans:
        return MaskSelection(index=ranges(starts, tokens), counts=counts)
    opening = candidates.index[starts] - candidates.rows.offsets[row]
    return MaskSelection(
        index=ranges(starts, tokens), counts=counts, unit=np.repeat(opening, tokens)
    )
