"""What a masking rule takes and gives: rows, the tokens it may choose from, the tokens it chose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pipeline.core import random_keys as random
from pipeline.core.ragged import I64
from pipeline.core.random_keys import U64
from pipeline.dataset.masking.config import MaskConfig
from pipeline.tokenizer.special import SpecialTokens

if TYPE_CHECKING:
    from pipeline.tokenizer.tokenizer import Tokenizer

Bools = npt.NDArray[np.bool_]


def row_keys(seed: int, document: npt.ArrayLike, offset: npt.ArrayLike) -> U64:
    """The key of all random numbers of rows, from what a dataset shard says in `source`: uint64 of the broadcast shape.

    Args:
        seed: the dataset's.
        document: keys of the documents.
        offset: the sentence of its document in which each row begins; two rows of a document never share it.
    """
    return random.derive(seed, document, offset)


@dataclass(frozen=True, kw_only=True)
class TokenTable:
    """What masking must know of the tokenizer.

    Attributes:
        size: V.
        special: ids of the special tokens.
        word_start: bool [V], whether a piece opens a word.
        unigrams: int64 [V], how often each piece stands in the training text; only for `random_from: corpus`.
    """

    size: int
    special: SpecialTokens
    word_start: Bools
    unigrams: I64 | None = None

    @classmethod
    def of(cls, tokenizer: Tokenizer, unigrams: I64 | None = None) -> TokenTable:
        return cls(size=tokenizer.vocab_size, special=tokenizer.special, word_start=tokenizer.word_start, unigrams=unigrams)

    @cached_property
    def ordinary(self) -> Bools:
        """Which ids are not special: bool [V]."""
        found = np.ones(self.size, np.bool_)
        found[list(self.special.ids)] = False
        return found

    @cached_property
    def pieces(self) -> I64:
        """The ids that are not special, ascending."""
        return np.flatnonzero(self.ordinary)

    @cached_property
    def cumulative(self) -> I64:
        """Running totals of `unigrams` without special tokens: int64 [V].

        Raises:
            ValueError: there are no counts, or all are zero.
        """
        if self.unigrams is None or len(self.unigrams) != self.size:
            raise ValueError("random_from is corpus, but the counts of the corpus's pieces are missing; read unigrams.arrow")
        total = np.cumsum(np.where(self.ordinary, self.unigrams, 0), dtype=np.int64)
        if total[-1] <= 0:
            raise ValueError("random_from is corpus, but the corpus has no pieces; use random_from vocabulary")
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmaskedRows:
    """A ragged batch of rows, before masks are laid over them.

    Attributes:
        keys: uint64 [R], from `row_keys`.
        input_ids: [T], all rows end to end, special tokens included, no padding.
        offsets: int64 [R + 1], where rows begin in `input_ids`.
        segment_start: int [R], where in its row segment B begins (the row's length if there is none).
    """

    keys: U64
    input_ids: npt.NDArray[Any]
    offsets: I64
    segment_start: npt.NDArray[Any]

    def __len__(self) -> int:
        return len(self.keys)

    def slice(self, first: int, end: int) -> UnmaskedRows:
        """UnmaskedRows first to end, without a copy of the ids."""
        offsets = self.offsets[first : end + 1]
        return UnmaskedRows(
            keys=self.keys[first:end],
            input_ids=self.input_ids[offsets[0] : offsets[-1]],
            offsets=offsets - offsets[0],
            segment_start=self.segment_start[first:end],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """The tokens of a batch that a rule may choose from: all but special ones.

    Attributes:
        rows: the batch.
        table: the tokenizer's.
        config: what is wanted.
        index: int64 [C], ascending indices into `rows.input_ids`.
        offsets: int64 [R + 1], where each row's candidates begin in `index`.
    """

    rows: UnmaskedRows
    table: TokenTable
    config: MaskConfig
    index: I64
    offsets: I64

    @classmethod
    def of(cls, rows: UnmaskedRows, table: TokenTable, config: MaskConfig | None = None) -> Candidates:
        index = np.flatnonzero(table.ordinary[rows.input_ids])
        offsets = np.searchsorted(index, rows.offsets)
        return cls(rows=rows, table=table, config=config or MaskConfig(), index=index, offsets=offsets)

    @property
    def counts(self) -> I64:
        """Candidates in each row: int64 [R]."""
        return np.diff(self.offsets)

    def opens_run(self) -> Bools:
        """Whether each candidate has no candidate right before it: bool [C]. A row's first one always has none: [CLS]."""
        opens = np.ones(len(self.index), np.bool_)
        opens[1:] = np.diff(self.index) != 1
        return opens

    def opens_word(self, opens_run: Bools | None = None) -> Bools:
        """Whether each candidate opens a word: bool [C].

        A `##x` right behind a special token opens one too: a segment that was cut in front begins inside of a word,
        and that rest must not count as a part of the last word of the segment before (a fault of
        google-research/bert's whole-word masking).

        Args:
            opens_run: what `opens_run()` gave, if it is at hand.
        """
        pieces = self.rows.input_ids.take(self.index)
        opens: Bools = self.table.word_start.take(pieces) | (self.opens_run() if opens_run is None else opens_run)
        return opens


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The tokens that a rule chose, for each (row, copy), rows first, then copies.

    Attributes:
        index: int64 [M] into `Candidates.index`, ascending and unique within each (row, copy).
        counts: int64 [R * K], how many each (row, copy) has.
        unit: int64 [M], a position in the row that all members of a unit share (the first of a span, say): they get
            the same kind of replacement. None: each token is a unit.
    """

    index: I64
    counts: I64
    unit: I64 | None = None


# (candidates, budget int64 [R, K], keys uint64 [R, K]) -> selection. A budget is never above the row's candidates.
# A rule derives its numbers from `mix(key ^ mix(n))` with n below `RULE_STREAMS`; what is above belongs to `draw.py`.
Rule = Callable[[Candidates, I64, U64], Selection]
RULE_STREAMS = 1 << 30
