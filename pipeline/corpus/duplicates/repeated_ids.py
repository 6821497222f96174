"""Ids that several kept documents share: each document but one gets an id of its own.

The ids of records come from a column that may be the wrong one, such as a category. Their texts
decide whether they are duplicates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cloze.core.ragged import I64
from cloze.core.random_keys import U64
from cloze.pipeline.corpus.duplicates.search import I32, Bools
from cloze.pipeline.corpus.readers import READERS


@dataclass(frozen=True, slots=True)
class RepeatedIds:
    """Documents that get an id of their own, as repetitions of a mixture do (`copied_id`)."""

    numbers: I64  # int64 [m], ascending
    copies: I64  # int64 [m], from 1; copy 0 keeps the id


def number_repeated_ids(numbers: I64, keys: U64, high: U64, low: U64) -> RepeatedIds:
    """Number the documents of each key by their text: the order of reading must not matter.

    Args:
        numbers: int64 [n], documents whose keys occur several times.
        keys, high, low: uint64 [n], key of each, and halves of the hash of its text.
    """
    order = np.lexsort((low, high, keys))
    _, begins, counts = np.unique(keys[order], return_index=True, return_counts=True)
    copies = np.arange(order.size) - np.repeat(begins, counts)
    order, copies = order[copies > 0], copies[copies > 0]
    by_number = np.argsort(numbers[order])
    return RepeatedIds(numbers[order[by_number]], copies[by_number])


def are_records(kinds: Sequence[str], part: I32) -> Bools:
    """Return which documents are of sources with columns, bool [n].

    Args:
        kinds: kind of source of each intermediate file.
        part: int32 [n], file of each document.
    """
    return np.array([READERS.find(kind).has_columns for kind in kinds], bool)[part]
