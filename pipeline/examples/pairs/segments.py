"""What every pairing takes and gives, and what pairings share: row keys and truncation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline import keys
from pipeline.examples.documents import Documents
from pipeline.examples.masking.draw import row_keys
from pipeline.examples.ragged import I64
from pipeline.keys import U64

NO_LABEL = -1

# What a row's random numbers are for: each use takes numbers of its own from the row's key.
USE_SPLIT, USE_COIN, USE_DOCUMENT, USE_START, USE_TRUNCATE_A, USE_TRUNCATE_B, USE_RANK = range(1, 8)
# And a document's; beyond every offset, which is what stands at that place in a row's key.
DOCUMENT_SHORT, DOCUMENT_TARGET = 1 << 40, 2 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class PairConfig:
    """How long rows are.

    Attributes:
        length: the most tokens of a row, special tokens included.
        short_seq_prob: the share of documents whose rows aim at a shorter, random length.
        seed: the dataset's.
    """

    length: int
    short_seq_prob: float
    seed: int

    @property
    def max_tokens(self) -> int:
        """Room for text in `[CLS] A [SEP] B [SEP]`."""
        return self.length - 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments:
    """Rows before they are assembled: two ranges of `Documents.tokens` each.

    Attributes:
        document: int64 [R], index of the document that segment A, and the row's random numbers, come from.
        offset: int32 [R], the corpus sentence of that document in which the row begins; rises within a document.
        starts: int64 [R, 2], where A and B start in the tokens.
        lengths: int64 [R, 2], tokens of A and B; B may have none.
        pair_label: int8 [R], 0 or 1, or NO_LABEL.
        truncated: int64 [R], tokens of the row's own document that were cut away to make it fit.
        foreign: int64 [R], tokens of B that belong to another document.
    """

    document: I64
    offset: npt.NDArray[np.int32]
    starts: I64
    lengths: I64
    pair_label: npt.NDArray[np.int8]
    truncated: I64
    foreign: I64


Pairing = Callable[[Documents, PairConfig], Segments]


def sentence_keys(documents: Documents, seed: int) -> U64:
    """The key of the row that would begin at each sentence: uint64 [S]."""
    return row_keys(seed, documents.keys[documents.sentence_document], documents.sentence_index)


def target_lengths(documents: Documents, config: PairConfig) -> I64:
    """The number of tokens that each document's rows aim at: int64 [D].

    `max_tokens`, or with `short_seq_prob` a number from 2 to that, drawn once a document
    (google-research/bert, create_pretraining_data.py, create_instances_from_document).
    """
    short = keys.uniform(keys.derive(config.seed, documents.keys, DOCUMENT_SHORT)) < config.short_seq_prob
    drawn = 2 + keys.below(keys.derive(config.seed, documents.keys, DOCUMENT_TARGET), config.max_tokens - 1)
    return np.where(short, drawn.astype(np.int64), config.max_tokens)


def truncate_pairs(starts: I64, lengths: I64, max_tokens: int, row: U64) -> tuple[I64, I64]:
    """Cut pairs down to `max_tokens` together, as google-research/bert's truncate_seq_pair.

    That program takes one token after another from the longer segment (from B when they are equal), each from
    the front or the back by a coin. How many each segment loses follows from the lengths; how many of these are
    lost in front is the number of heads, which here are bits of the row's key.

    Args:
        starts: int64 [R, 2].
        lengths: int64 [R, 2].
        max_tokens: room for both.
        row: uint64 [R], the rows' keys.

    Returns:
        starts and lengths of what remains, int64 [R, 2] each.
    """
    excess = np.maximum(lengths.sum(axis=1) - max_tokens, 0)
    uneven = np.minimum(excess, np.abs(lengths[:, 0] - lengths[:, 1]))  # these all come from the longer one
    even = excess - uneven  # and these in turn, from B first
    a_longer = lengths[:, 0] > lengths[:, 1]
    cut = np.stack([np.where(a_longer, uneven, 0) + even // 2, np.where(a_longer, 0, uneven) + (even + 1) // 2], axis=1)
    front = np.stack([_heads(row, USE_TRUNCATE_A, cut[:, 0]), _heads(row, USE_TRUNCATE_B, cut[:, 1])], axis=1)
    return starts + front, lengths - cut


def _heads(row: U64, use: int, tosses: I64) -> I64:
    """The number of heads in `tosses` tosses: int64 [R]."""
    heads = np.zeros(len(tosses), np.int64)
    todo = np.flatnonzero(tosses)
    word = 0
    while len(todo):
        left = np.minimum(tosses[todo] - 64 * word, 64).astype(np.uint64)
        bits = keys.derive(row[todo], use, word) >> (np.uint64(64) - left)
        heads[todo] += np.bitwise_count(bits).astype(np.int64)
        word += 1
        todo = todo[tosses[todo] > 64 * word]
    return heads
