"""What every pairing takes and gives, and what pairings share: row keys, target lengths, truncation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pipeline.core import random_keys
from pipeline.core.options import Options, composed
from pipeline.core.ragged import I64, Ragged, offsets_of, ranges
from pipeline.core.random_keys import U64
from pipeline.dataset.masking.candidates import row_keys
from pipeline.dataset.pairs.table import PAIRINGS
from pipeline.dataset.tokenized_documents import TokenizedDocuments

if TYPE_CHECKING:
    _PairOptions = Options
else:
    _PairOptions = composed("PairOptions", Options, (pairing.options for pairing in PAIRINGS.values()))

NO_LABEL = -1

# What a row's random numbers are for: each use takes numbers of its own from the row's key.
USE_MIDDLE, USE_COIN, USE_DOCUMENT, USE_START, USE_TRUNCATE_A, USE_TRUNCATE_B, USE_RANK = range(1, 8)
USE_SINGLE, USE_SHORT, USE_TARGET = range(8, 11)
# And a document's; beyond every offset, which is what stands at that place in a row's key.
DOCUMENT_SHORT, DOCUMENT_TARGET = 1 << 40, 2 << 40


class PairConfig(_PairOptions):
    """How long rows are; with the options of every pairing."""

    length: int
    """The most tokens of a row, special tokens included."""
    short_seq_prob: float
    """The share of documents (of rows, for `electra`) that aim at a shorter, random length."""
    seed: int
    """The dataset's seed."""

    @property
    def max_tokens(self) -> int:
        """Room for text in `[CLS] A [SEP] B [SEP]`."""
        return self.length - 3

    @property
    def max_single(self) -> int:
        """Room for text in `[CLS] A [SEP]`."""
        return self.length - 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments:
    """Rows before they are assembled: ranges of `TokenizedDocuments.tokens`, one or more to a row, each followed by [SEP].

    Attributes:
        document: int64 [R], index of the document that the first piece, and the row's random numbers, come from.
        offset: int32 [R], the sentence of that document in which the row begins; two rows of a document never share it.
        starts: int64 [P], where each piece starts in the tokens.
        lengths: int64 [P], its tokens, at least one.
        pieces: int64 [R + 1], where each row's pieces begin among all.
        pair_label: int8 [R], 0 or 1, or NO_LABEL.
        truncated: int64 [R], tokens of the row's own document that were cut away to make it fit.
        foreign: int64 [R], tokens of B that belong to another document, and stand in rows of its own beside.
        paired: a second piece is segment B; else all pieces are segment A.
        packed: each piece is a sequence of its own, `[CLS] … [SEP]`.
    """

    document: I64
    offset: npt.NDArray[np.int32]
    starts: I64
    lengths: I64
    pieces: I64
    pair_label: npt.NDArray[np.int8]
    truncated: I64
    foreign: I64
    paired: bool = False
    packed: bool = False

    def __len__(self) -> int:
        return len(self.document)

    @classmethod
    def of_pairs(
        cls,
        *,
        document: I64,
        offset: npt.NDArray[np.int32],
        starts: I64,
        lengths: I64,
        pair_label: npt.NDArray[np.int8],
        truncated: I64,
        foreign: I64 | None = None,
    ) -> Segments:
        """From segments A and B as columns of int64 [R, 2]; a B without tokens is none, and its row has no label."""
        there = lengths > 0
        return cls(
            document=document,
            offset=offset,
            starts=starts[there],
            lengths=lengths[there],
            pieces=offsets_of(there.sum(axis=1)),
            pair_label=np.where(there[:, 1], pair_label, NO_LABEL).astype(np.int8),
            truncated=truncated,
            foreign=np.zeros(len(starts), np.int64) if foreign is None else foreign,
            paired=True,
        )

    @classmethod
    def of_runs(cls, documents: TokenizedDocuments, rows: Ragged, packed: bool = False) -> Segments:
        """From pieces of text that lose nothing.

        Args:
            documents: what the pieces are of.
            rows: int64, for each row its pieces, as numbers of the sentences that they begin with; a piece ends where any
                piece begins next. All sentences are in one piece.
            packed: see `Segments`.
        """
        firsts = np.sort(rows.values)
        ends = np.append(firsts[1:], len(documents.sentence_index))[np.searchsorted(firsts, rows.values)]
        starts, heads = documents.sentence_offsets[rows.values], rows.values[rows.offsets[:-1]]
        return cls(
            document=documents.sentence_document[heads],
            offset=documents.sentence_index[heads],
            starts=starts,
            lengths=documents.sentence_offsets[ends] - starts,
            pieces=rows.offsets,
            pair_label=np.full(len(rows), NO_LABEL, np.int8),
            truncated=np.zeros(len(rows), np.int64),
            foreign=np.zeros(len(rows), np.int64),
            packed=packed,
        )


def sentence_keys(documents: TokenizedDocuments, seed: int) -> U64:
    """The key of the row that would begin at each sentence: uint64 [S]."""
    return row_keys(seed, documents.keys[documents.sentence_document], documents.sentence_index)


def target_lengths(documents: TokenizedDocuments, config: PairConfig, room: int) -> I64:
    """The number of tokens that each document's rows aim at: int64 [D].

    `room`, or with `short_seq_prob` a number from 2 to that, drawn once a document
    (google-research/bert, create_pretraining_data.py, create_instances_from_document).
    """
    short = random_keys.uniform(random_keys.derive(config.seed, documents.keys, DOCUMENT_SHORT)) < config.short_seq_prob
    drawn = 2 + random_keys.below(random_keys.derive(config.seed, documents.keys, DOCUMENT_TARGET), room - 1)
    return np.where(short, drawn.astype(np.int64), room)


def cut_sentences(documents: TokenizedDocuments, room: int) -> TokenizedDocuments:
    """The same documents with every sentence longer than `room` cut into pieces of `room` tokens and a rest.

    So that rows of whole sentences lose none (fairseq and SpanBERT leave such sentences out). Each piece counts as a sentence from
    then on: `sentence_index` of what follows in the document moves on by the number of cuts.
    """
    lengths = np.diff(documents.sentence_offsets)
    if not len(lengths) or int(lengths.max()) <= room:
        return documents
    pieces = -(-lengths // room)
    piece = ranges(np.zeros(len(pieces)), pieces)
    borders = offsets_of(pieces)
    first = documents.document_offsets[documents.sentence_document]
    moved = documents.sentence_index + (borders[:-1] - np.arange(len(pieces))) - (borders[first] - first)
    return replace(
        documents,
        sentence_offsets=np.append(np.repeat(documents.sentence_offsets[:-1], pieces) + piece * room, len(documents.tokens)),
        sentence_index=(np.repeat(moved, pieces) + piece).astype(np.int32),
        document_offsets=borders[documents.document_offsets],
    )


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
        bits = random_keys.derive(row[todo], use, word) >> (np.uint64(64) - left)
        heads[todo] += np.bitwise_count(bits).astype(np.int64)
        word += 1
        todo = todo[tosses[todo] > 64 * word]
    return heads
