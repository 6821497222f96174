"""Masks as a pure function of rows: the dataset stage stores them, the collator may draw fresh ones with the same function.

A mask is a function of (row key, copy number, position) and the row; the rows around it in a batch, their order and
their number change nothing. Copy k that the dataset stores is what `draw_masks(..., copies=[k])` draws again.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline import keys as random
from pipeline.examples.masking import RULES
from pipeline.keys import U64
from pipeline.schema import SpecialTokens

I64 = npt.NDArray[np.int64]

USE_MASK = 1 << 32  # beside the uses of a row's key in making pairs
BLOCK_CELLS = 1 << 19  # (row, copy, candidate) cells looked at together: they stay in the processor's cache


def row_keys(seed: int, document: npt.ArrayLike, offset: npt.ArrayLike) -> U64:
    """The key of all random numbers of rows, from what a dataset shard says in `source`: uint64 of the broadcast shape.

    Args:
        seed: the dataset's.
        document: keys of the documents.
        offset: the sentence of its document in which each row begins; two rows of a document never share it.
    """
    return random.derive(seed, document, offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskConfig:
    """What share is masked, and how.

    Attributes:
        rule: a name in `RULES`.
        rate: the share of a row's tokens, [CLS] and [SEP] counted, that are predicted.
        max_predictions: the most predictions a row may have (BERT's max_predictions_per_seq).
        mask_share: the share of chosen tokens replaced by [MASK].
        random_share: the share replaced by a random piece; the rest stay as they are.
    """

    rule: str = "token"
    rate: float = 0.15
    max_predictions: int = 20
    mask_share: float = 0.8
    random_share: float = 0.1

    def budget(self, lengths: npt.NDArray[Any]) -> I64:
        """Predictions in rows of these lengths: min(cap, max(1, round(rate · length))), halves to even, int64.

        google-research/bert, create_masked_lm_predictions: 30 tokens give 4, 110 give 16.
        """
        wanted = np.rint(np.asarray(lengths) * self.rate).astype(np.int64)
        return np.minimum(np.maximum(wanted, 1), self.max_predictions)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTable:
    """What masking must know of the tokenizer: V, the special ids, and bool [V], whether a piece opens a word."""

    size: int
    special: SpecialTokens
    word_start: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """A ragged batch of unmasked rows.

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

    def slice(self, first: int, end: int) -> Rows:
        """Rows first to end, without a copy of the ids."""
        offsets = self.offsets[first : end + 1]
        return Rows(
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
        index: int64 [C], ascending indices into `rows.input_ids`.
        offsets: int64 [R + 1], where each row's candidates begin in `index`.
    """

    rows: Rows
    table: TokenTable
    index: I64
    offsets: I64

    @classmethod
    def of(cls, rows: Rows, table: TokenTable) -> Candidates:
        allowed = np.ones(table.size, np.bool_)
        allowed[list(table.special.ids)] = False
        index = np.flatnonzero(allowed[rows.input_ids])
        return cls(rows=rows, table=table, index=index, offsets=np.searchsorted(index, rows.offsets))

    @property
    def counts(self) -> I64:
        """Candidates in each row: int64 [R]."""
        return np.diff(self.offsets)

    def opens_word(self) -> npt.NDArray[np.bool_]:
        """Whether each candidate opens a word: bool [C].

        A `##x` right behind a special token opens one too: a segment that was cut in front begins inside of a word,
        and that rest must not count as a part of the last word of the segment before (a fault of
        google-research/bert's whole-word masking).
        """
        follows = np.zeros(len(self.index), np.bool_)
        follows[1:] = np.diff(self.index) == 1
        opens: npt.NDArray[np.bool_] = self.table.word_start[self.rows.input_ids[self.index]] | ~follows
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


# (candidates, budget int64 [R], keys uint64 [R, K]) -> selection. The budget is never above the row's candidates.
Rule = Callable[[Candidates, I64, U64], Selection]


@dataclass(frozen=True, slots=True, kw_only=True)
class Masks:
    """Masks of R rows in K copies, in the order (row, copy).

    Attributes:
        positions: uint16 [M], where in the row, ascending and unique within each mask.
        input_ids: [M], what stands there in the masked row; dtype of the rows' ids.
        offsets: int64 [R * K + 1], where each mask begins.
    """

    positions: npt.NDArray[np.uint16]
    input_ids: npt.NDArray[Any]
    offsets: I64


def draw_masks(rows: Rows, config: MaskConfig, table: TokenTable, copies: npt.ArrayLike) -> Masks:
    """Draw a mask for every row and every copy number.

    Never on a special token. [UNK] counts as one, as in transformers' collator and unlike google-research/bert:
    guessing that a word was unknown teaches nothing. A random piece is uniform over the whole vocabulary, special
    and unused ones included, and may be the one that stood there, as in google-research/bert.

    Args:
        rows: R rows.
        config: rule, budget and replacement.
        table: the tokenizer's.
        copies: [K] numbers of the copies: `range(K)` for the stored ones, `[epoch]` for fresh ones.

    Raises:
        ValueError: the config's rule is not in the table.
    """
    numbers = np.asarray(copies, np.uint64).reshape(-1)
    rule = _rule(config.rule)
    parts = [_draw_block(block, config, table, numbers, rule) for block in _blocks(rows, len(numbers))]
    counts = np.concatenate([np.zeros(1, np.int64), *(part[2] for part in parts)])
    return Masks(
        positions=np.concatenate([np.zeros(0, np.uint16), *(part[0] for part in parts)]),
        input_ids=np.concatenate([np.zeros(0, rows.input_ids.dtype), *(part[1] for part in parts)]),
        offsets=np.cumsum(counts),
    )


@functools.cache
def _rule(name: str) -> Rule:
    if name not in RULES:
        raise ValueError(f"unknown masking rule {name!r}; choose from {', '.join(sorted(RULES))}")
    module, _, function = RULES[name].partition(":")
    rule: Rule = getattr(importlib.import_module(module), function)
    return rule


def _blocks(rows: Rows, copies: int) -> Iterator[Rows]:
    step = max(1, BLOCK_CELLS // max(1, copies * int(np.diff(rows.offsets).max(initial=1))))
    for first in range(0, len(rows), step):
        yield rows.slice(first, min(first + step, len(rows)))


def _draw_block(
    rows: Rows, config: MaskConfig, table: TokenTable, copies: U64, rule: Rule
) -> tuple[npt.NDArray[np.uint16], npt.NDArray[Any], I64]:
    candidates = Candidates.of(rows, table)
    budget = np.minimum(config.budget(np.diff(rows.offsets)), candidates.counts)
    keys = random.derive(rows.keys[:, None], USE_MASK, copies[None, :])
    chosen = rule(candidates, budget, keys)
    index = candidates.index[chosen.index]
    row_starts = np.repeat(rows.offsets[:-1], chosen.counts.reshape(len(rows), -1).sum(axis=1))
    positions = index - row_starts
    return (
        positions.astype(np.uint16),
        _replace(rows.input_ids[index], positions, chosen, config, table, np.repeat(keys.reshape(-1), chosen.counts)),
        chosen.counts,
    )


def _replace(
    original: npt.NDArray[Any], positions: I64, chosen: Selection, config: MaskConfig, table: TokenTable, keys: U64
) -> npt.NDArray[Any]:
    """What stands at each chosen position: [MASK], a random piece, or what stood there."""
    unit = positions if chosen.unit is None else chosen.unit
    span = int(max(unit.max(initial=0), positions.max(initial=0))) + 1
    by_position = random.mix(np.arange(span) + USE_MASK)  # beyond the numbers that rules derive: keys never meet
    draws = random.mix(keys ^ by_position[unit])
    kind = random.uniform(draws)
    replaced = np.where(kind < config.mask_share, np.asarray(table.special.mask, original.dtype), original)
    drawn = np.flatnonzero((kind >= config.mask_share) & (kind < config.mask_share + config.random_share))
    own = random.derive(keys[drawn], by_position[positions[drawn]], 1)
    replaced[drawn] = random.below(own, table.size)
    return replaced
