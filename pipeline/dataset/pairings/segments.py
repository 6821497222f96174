"""Tokenized documents, the segments of rows, and what pairings share.

`Segments.of_pairs` builds rows of two segments, `Segments.of_runs` rows of continuous text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cloze.core import random_keys
from cloze.core.ragged import I64, Ragged, offsets_of
from cloze.core.random_keys import U64
from cloze.pipeline.dataset.masking.candidates import DRAWING_BIT, EncodedText, Marker, row_keys

if TYPE_CHECKING:
    from cloze.pipeline.dataset.config import ExampleConfig
    from cloze.pipeline.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedDocuments:
    """Tokenized documents of one corpus shard and one split, in the order of their keys."""

    keys: U64  # uint64 [D], random seed of each document
    tokens: npt.NDArray[Any]  # [T], all tokens, without special tokens, in the dtype of the rows
    sentence_offsets: I64  # int64 [S + 1] into `tokens`. No sentence is empty.
    # int64 [S], index of each sentence in its document in the corpus, and from bit DRAWING_BIT on
    # `drawing`: the place of a row that begins there
    sentence_index: I64
    document_offsets: I64  # int64 [D + 1] into sentences. No document is empty.
    empty_sentences: int = 0  # number of omitted sentences without tokens
    empty_documents: int = 0  # number of omitted documents without tokens
    marks: npt.NDArray[np.uint8] | None = None  # uint8 [T], see `UnmaskedRows.marks`
    drawing: int = 0  # number of the drawing whose random numbers rows take

    def __len__(self) -> int:
        return len(self.keys)

    def draw(self, drawing: int) -> TokenizedDocuments:
        """Return the documents of the first drawing, for rows of another one."""
        places = self.sentence_index + (drawing << DRAWING_BIT)
        return replace(self, sentence_index=places, drawing=drawing)

    @property
    def sentence_document(self) -> I64:
        """The document of each sentence: int64 [S]."""
        return np.repeat(np.arange(len(self.keys)), np.diff(self.document_offsets))


def tokenize(
    keys: U64,
    sentences: Sequence[str],
    sentence_counts: npt.NDArray[Any],
    tokenizer: Tokenizer,
    dtype: npt.DTypeLike,
    mark: Marker | None = None,
) -> TokenizedDocuments:
    """Tokenize documents, and omit sentences and documents without tokens.

    Args:
        keys: uint64 [D].
        sentences: sentences of all documents, concatenated.
        sentence_counts: number of sentences of each document, [D].
        dtype: dtype of ids, from `schema.id_dtype`.
        mark: marks the tokens for the masking rule. Default: it needs no marks.
    """
    counts = np.asarray(sentence_counts, np.int64)
    document_index = np.repeat(np.arange(len(counts)), counts)
    index = np.arange(len(sentences)) - np.repeat(offsets_of(counts)[:-1], counts)
    # All but a document's first sentence follow a space, which a byte-level BPE includes in their
    # first word.
    follows_space = (index > 0) & np.fromiter(map(bool, sentences), np.bool_, len(sentences))
    ids, offsets = tokenizer.encode_flat(sentences, follows_space)
    lengths = np.diff(offsets)
    is_nonempty = lengths > 0
    nonempty_counts = np.bincount(document_index[is_nonempty], minlength=len(counts))
    given = EncodedText(keys, counts, sentences, follows_space, offsets, tokenizer)
    return TokenizedDocuments(
        keys=np.asarray(keys, np.uint64)[nonempty_counts > 0],
        tokens=ids.astype(dtype, copy=False),
        sentence_offsets=offsets_of(lengths[is_nonempty]),
        sentence_index=index[is_nonempty],
        document_offsets=offsets_of(nonempty_counts[nonempty_counts > 0]),
        empty_sentences=int(len(is_nonempty) - is_nonempty.sum()),
        empty_documents=int((nonempty_counts == 0).sum()),
        marks=None if mark is None else mark(given),
    )


# Result of pairings, and their common parts: row keys, target lengths, truncation.

NO_LABEL = -1
# (starts, lengths, maximum tokens, row keys) -> starts and lengths; see `truncate_pairs`
Truncation = Callable[[I64, I64, int, U64], tuple[I64, I64]]

# Uses of a row's random key: each use draws independent numbers.
USE_MIDDLE, USE_COIN, USE_DOCUMENT, USE_START, USE_TRUNCATE_A, USE_TRUNCATE_B = range(1, 7)
USE_RANK, USE_SINGLE, USE_SHORT, USE_TARGET = range(7, 11)
# Uses of a document's key; beyond every offset, whose place in a row's key they take.
DOCUMENT_SHORT, DOCUMENT_TARGET = 1 << 40, 2 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments:
    """Rows before assembly: ranges of `TokenizedDocuments.tokens`, each followed by [SEP]."""

    # int64 [R], index of the document of the first range and of the row's random numbers
    document: I64
    offset: I64  # int64 [R], place of the row in that document, see `DRAWING_BIT`; unique there
    starts: I64  # int64 [P], start of each range in the tokens
    lengths: I64  # int64 [P], tokens of each range, at least one
    range_offsets: I64  # int64 [R + 1], start of each row's ranges in `starts`, and P
    pair_label: npt.NDArray[np.int8]  # int8 [R], 0 or 1, or NO_LABEL
    paired: bool = False  # a second range is segment B; else all ranges are segment A
    packed: bool = False  # each range is a sequence of its own, `[CLS] … [SEP]`

    def __len__(self) -> int:
        return len(self.document)

    @classmethod
    def of_pairs(
        cls,
        documents: TokenizedDocuments,
        config: ExampleConfig,
        sentences: I64,
        pair_label: I64,
        *,
        first: I64 | None = None,
        truncate: Truncation | None = None,
    ) -> Segments:
        """Build rows of two segments, truncated to the row length.

        Args:
            config: length and seed of the rows.
            sentences: int64 [R, 4], first sentence and end of A, and of B; B may be empty.
            pair_label: int [R], 0, 1 or NO_LABEL; a row with an empty B gets no label.
            first: int64 [R], sentence in which the row begins. Default: the first of A.
            truncate: truncation of too long pairs. Default: `truncate_pairs`.
        """
        first = sentences[:, 0] if first is None else first
        document, offset = documents.sentence_document[first], documents.sentence_index[first]
        key = row_keys(config.seed, documents.keys[document], offset)
        borders = documents.sentence_offsets[sentences]
        starts, lengths = (truncate or truncate_pairs)(
            borders[:, ::2], borders[:, 1::2] - borders[:, ::2], config.max_tokens, key
        )
        is_present = lengths > 0
        return cls(
            document=document,
            offset=offset,
            starts=starts[is_present],
            lengths=lengths[is_present],
            range_offsets=offsets_of(is_present.sum(axis=1)),
            pair_label=np.where(is_present[:, 1], pair_label, NO_LABEL).astype(np.int8),
            paired=True,
        )

    @classmethod
    def of_runs(cls, documents: TokenizedDocuments, rows: Ragged, packed: bool = False) -> Segments:
        """Build rows from ranges of text that lose nothing.

        Args:
            rows: int64, the first sentence of each range, for each row; a range ends where the next
                one begins. All sentences are in one range.
        """
        firsts = np.sort(rows.values)
        nexts = np.append(firsts[1:], len(documents.sentence_index))
        ends = nexts[np.searchsorted(firsts, rows.values)]
        starts = documents.sentence_offsets[rows.values]
        first_sentences = rows.values[rows.offsets[:-1]]
        return cls(
            document=documents.sentence_document[first_sentences],
            offset=documents.sentence_index[first_sentences],
            starts=starts,
            lengths=documents.sentence_offsets[ends] - starts,
            range_offsets=rows.offsets,
            pair_label=np.full(len(rows), NO_LABEL, np.int8),
            packed=packed,
        )


def sentence_keys(documents: TokenizedDocuments, seed: int) -> U64:
    """Return the key of the row that would begin at each sentence: uint64 [S]."""
    return row_keys(seed, documents.keys[documents.sentence_document], documents.sentence_index)


def target_lengths(documents: TokenizedDocuments, config: ExampleConfig, room: int) -> I64:
    """Return the target number of tokens of each document's rows: int64 [D].

    `room`, or with `short_seq_prob` a number from 2 to `room`, drawn once per document
    (google-research/bert, create_pretraining_data.py, create_instances_from_document).
    """
    short, target = (
        random_keys.fold_in(config.seed, documents.keys, use + (documents.drawing << DRAWING_BIT))
        for use in (DOCUMENT_SHORT, DOCUMENT_TARGET)
    )
    # Once a document, as in the original: all its rows have one target.
    is_short = random_keys.uniform(short) < config.short_seq_prob
    drawn = 2 + random_keys.randint_below(target, room - 1)
    return np.where(is_short, drawn.astype(np.int64), room)


def truncate_pairs(starts: I64, lengths: I64, max_tokens: int, row: U64) -> tuple[I64, I64]:
    """Truncate pairs to `max_tokens` in total, as google-research/bert's truncate_seq_pair.

    That program removes one token after another from the longer segment (from B if equal), from the
    front or the back by a coin. The lengths determine how many tokens each segment loses. The
    number lost at the front is the number of heads; coins here are bits of the row's key.

    Args:
        starts: int64 [R, 2].
        lengths: int64 [R, 2].
        max_tokens: maximum tokens of both segments.
        row: uint64 [R], keys of the rows.

    Returns:
        Starts and lengths of the remaining ranges, int64 [R, 2] each.
    """
    excess = np.maximum(lengths.sum(axis=1) - max_tokens, 0)
    # all from the longer segment
    uneven = np.minimum(excess, np.abs(lengths[:, 0] - lengths[:, 1]))
    even = excess - uneven  # alternating, from B first
    a_longer = lengths[:, 0] > lengths[:, 1]
    cut_a = np.where(a_longer, uneven, 0) + even // 2
    cut = np.stack([cut_a, excess - cut_a], axis=1)
    # How many tokens go in front says which ones go: a toss for each, as bits of a key.
    front = np.stack(
        [_heads(row, USE_TRUNCATE_A, cut[:, 0]), _heads(row, USE_TRUNCATE_B, cut[:, 1])], axis=1
    )
    return starts + front, lengths - cut


def _heads(row: U64, use: int, tosses: I64) -> I64:
    """Return the number of heads in `tosses` tosses: int64 [R]."""
    heads = np.zeros(len(tosses), np.int64)
    pending = np.flatnonzero(tosses)
    word = 0
    while len(pending):
        bit_count = np.minimum(tosses[pending] - 64 * word, 64).astype(np.uint64)
        # The upper bits of a word are as many tosses as are left.
        bits = random_keys.fold_in(row[pending], use, word) >> (np.uint64(64) - bit_count)
        heads[pending] += np.bitwise_count(bits).astype(np.int64)
        word += 1
        pending = pending[tosses[pending] > 64 * word]
    return heads
