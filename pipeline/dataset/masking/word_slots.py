"""The words of a batch, for rules that choose whole ones.

Words get *slots*, numbered through all rows. One empty slot stands in front of every run of words that follow each other, so
that neighbours in slots are neighbours in text, and nothing joins words across [SEP] or another special token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.core.ragged import I64
from pipeline.core.random_keys import U64
from pipeline.dataset.masking.candidates import Candidates


@dataclass(frozen=True, slots=True, kw_only=True)
class WordSlots:
    """The words of R rows, by slot.

    Attributes:
        slot: int64 [W], each word's slot.
        offsets: int64 [R + 1], where each row's words begin in `slot`.
        slot_offsets: int64 [R + 1], where each row's slots begin; an empty slot is the first of each row.
        first: int64 [S + 1], the candidate that opens the word in each slot; an empty slot has the one of the next.
        of_candidate: int64 [C + 1], the slot of each candidate; S + 1 at the end, as if another row followed.
        run_left: int64 [W], words from each to the end of its run, itself counted.
        free: uint64 [R, width], a bit for each slot of a row: whether it holds a word. The last number of a row is empty.
    """

    slot: I64
    offsets: I64
    slot_offsets: I64
    first: I64
    of_candidate: I64
    run_left: I64
    free: U64

    @classmethod
    def of(cls, candidates: Candidates) -> WordSlots:
        opens_run = candidates.opens_run()
        opens = candidates.opens_word(opens_run)
        through = np.zeros(len(opens) + 1, np.int64)  # slots up to each candidate
        np.cumsum(opens.view(np.int8) + opens_run.view(np.int8), out=through[1:])
        starts, run_starts = np.flatnonzero(opens), np.flatnonzero(opens_run)
        slots, run_slots = int(through[-1]), through[run_starts + 1] - 1
        slot = through[starts + 1] - 1
        first = np.empty(slots + 1, np.int64)
        first[slot] = starts
        first[run_slots - 1] = run_starts
        first[slots] = len(opens)
        run_ends = np.append(run_slots[1:] - 1, slots)[: len(run_slots)]
        offsets, slot_offsets = np.searchsorted(starts, candidates.offsets), through[candidates.offsets]
        words = np.diff(np.append(np.searchsorted(starts, run_starts), len(starts)))
        rows, width = len(offsets) - 1, int(np.diff(slot_offsets).max(initial=1)) // 64 + 2
        member = np.zeros(rows * width * 64, np.bool_)
        member[slot + np.repeat(np.arange(rows) * (width * 64) - slot_offsets[:-1], np.diff(offsets))] = True
        return cls(
            slot=slot,
            offsets=offsets,
            slot_offsets=slot_offsets,
            first=first,
            of_candidate=np.append(through[1:] - 1, slots + 1),
            run_left=np.repeat(run_ends, words) - slot,
            free=np.packbits(member, bitorder="little").view("<u8").astype(np.uint64, copy=False).reshape(rows, width),
        )
