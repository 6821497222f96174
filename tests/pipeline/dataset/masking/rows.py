"""Made-up rows, and masks in a form that tests can compare."""

from __future__ import annotations

import itertools

import numpy as np

from cloze.core import random_keys
from cloze.core.ragged import offsets_of
from cloze.pipeline.dataset.masking.candidates import TokenProperties, UnmaskedRows, row_keys
from cloze.pipeline.dataset.masking.draw import Masks
from cloze.pipeline.tokenizer.special import SpecialTokens

SPECIAL = SpecialTokens(pad=0, unk=1, cls=2, sep=3, mask=4)
V = 500
TABLE = TokenProperties(size=V, special=SPECIAL, word_start=np.arange(V) % 3 != 0)


def make_rows(lengths: list[int], seed: int = 0, split_at: float = 0.5) -> UnmaskedRows:
    """Rows `[CLS] A [SEP] B [SEP]` of the given lengths (at least 5) with text ids from 5 on."""
    offsets = offsets_of(np.array(lengths, np.int64))
    total = int(offsets[-1])
    ids = (
        5 + random_keys.randint_below(random_keys.fold_in(seed, np.arange(total)), V - 5)
    ).astype(np.uint16)
    starts = np.array([2 + max(1, int((length - 3) * split_at)) for length in lengths], np.int32)
    ids[offsets[:-1]] = SPECIAL.cls
    ids[offsets[:-1] + starts - 1] = SPECIAL.sep
    ids[offsets[1:] - 1] = SPECIAL.sep
    numbers = np.arange(len(lengths))
    return UnmaskedRows(
        keys=row_keys(seed, numbers, numbers), input_ids=ids, offsets=offsets, segment_start=starts
    )


def masks_of(masks: Masks, rows: int, copies: int) -> list[list[list[tuple[int, int]]]]:
    """[row][copy] -> [(position, replacement), …]."""
    pairs = list(zip(masks.positions.tolist(), masks.input_ids.tolist(), strict=True))
    cut = [pairs[a:b] for a, b in itertools.pairwise(masks.offsets.tolist())]
    assert len(cut) == rows * copies
    return [cut[row * copies : (row + 1) * copies] for row in range(rows)]
