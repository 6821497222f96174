"""Masks as a pure function of rows: the dataset stage stores them, the collator may draw fresh ones with the same function.

A mask is a function of (row key, copy number, position) and the row; the rows around it in a batch, their order and
their number change nothing. Copy k that the dataset stores is what `draw_masks(..., copies=[k])` draws again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.core import random_keys as random
from pipeline.core.ragged import I64
from pipeline.core.random_keys import U64
from pipeline.core.registry import load
from pipeline.dataset.masking.candidates import RULE_STREAMS, Candidates, Rule, Selection, TokenTable, UnmaskedRows
from pipeline.dataset.masking.config import MaskConfig
from pipeline.dataset.masking.table import RULES

USE_MASK = 1 << 32  # beside the uses of a row's key in making pairs
USE_BUDGET = RULE_STREAMS
BLOCK_CELLS = 1 << 20  # (row, copy, candidate) cells looked at together: they stay in the processor's cache


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


def draw_masks(rows: UnmaskedRows, config: MaskConfig, table: TokenTable, copies: npt.ArrayLike) -> Masks:
    """Draw a mask for every row and every copy number.

    Never on a special token. [UNK] counts as one, as in transformers' collator and unlike google-research/bert:
    guessing that a word was unknown teaches nothing. A random piece may be the one that stood there, as in
    google-research/bert.

    Args:
        rows: R rows.
        config: rule, budget and replacement.
        table: the tokenizer's; with `unigrams` where the config's `random_from` is corpus.
        copies: [K] numbers of the copies: `range(K)` for the stored ones, `[epoch]` for fresh ones.

    Raises:
        ValueError: random pieces should come from the corpus, and the table has no counts of it.
    """
    numbers = np.asarray(copies, np.uint64).reshape(-1)
    rule: Rule = load(RULES[config.rule].function)
    drawn = [_draw_block(block, config, table, numbers, rule) for block in _blocks(rows, len(numbers))]
    counts = np.concatenate([np.zeros(1, np.int64), *(block[2] for block in drawn)])
    return Masks(
        positions=np.concatenate([np.zeros(0, np.uint16), *(block[0] for block in drawn)]),
        input_ids=np.concatenate([np.zeros(0, rows.input_ids.dtype), *(block[1] for block in drawn)]),
        offsets=np.cumsum(counts),
    )


def text_lengths(rows: UnmaskedRows, table: TokenTable) -> I64:
    """Tokens of each row that are text, which unlike candidates count [UNK]: int64 [R]."""
    structural = np.zeros(table.size, np.bool_)
    structural[[table.special.cls, table.special.sep, table.special.pad, table.special.mask]] = True
    marks = np.flatnonzero(structural[rows.input_ids])
    return np.diff(rows.offsets) - np.diff(np.searchsorted(marks, rows.offsets))


def _blocks(rows: UnmaskedRows, copies: int) -> Iterator[UnmaskedRows]:
    step = max(1, BLOCK_CELLS // max(1, copies * int(np.diff(rows.offsets).max(initial=1))))
    for first in range(0, len(rows), step):
        yield rows.slice(first, min(first + step, len(rows)))


def _draw_block(
    rows: UnmaskedRows, config: MaskConfig, table: TokenTable, copies: U64, rule: Rule
) -> tuple[npt.NDArray[np.uint16], npt.NDArray[Any], I64]:
    candidates = Candidates.of(rows, table, config)
    keys = random.derive(rows.keys[:, None], USE_MASK, copies[None, :])
    chosen = rule(candidates, _budget(candidates, keys), keys)
    index = candidates.index[chosen.index]
    row_starts = np.repeat(rows.offsets[:-1], chosen.counts.reshape(len(rows), -1).sum(axis=1))
    positions = index - row_starts
    return (
        positions.astype(np.uint16),
        _replace(rows.input_ids[index], positions, chosen, config, table, np.repeat(keys.reshape(-1), chosen.counts)),
        chosen.counts,
    )


def _budget(candidates: Candidates, keys: U64) -> I64:
    """How many tokens each mask may have: int64 [R, K]."""
    rows, config = candidates.rows, candidates.config
    text = text_lengths(rows, candidates.table)[:, None] if config.budget == "ceil" else np.zeros((1, 1), np.int64)
    u = random.uniform(random.mix(keys ^ random.mix(USE_BUDGET))) if config.budget == "probabilistic" else np.zeros((1, 1))
    wanted = config.predictions(np.diff(rows.offsets)[:, None], text, u)
    return np.minimum(np.broadcast_to(wanted, keys.shape), candidates.counts[:, None])


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
    if len(drawn):
        replaced[drawn] = _random_pieces(random.derive(keys[drawn], by_position[positions[drawn]], 1), config, table)
    return replaced


def _random_pieces(keys: U64, config: MaskConfig, table: TokenTable) -> npt.NDArray[Any]:
    """A random piece for each key, from where the config says."""
    if config.random_from == "vocabulary":
        return random.below(keys, table.size)
    if config.random_from == "pieces":
        return table.pieces[random.below(keys, len(table.pieces)).astype(np.int64)]
    total = table.cumulative
    return np.searchsorted(total, np.floor(random.uniform(keys) * float(total[-1])), side="right")
