"""Masks as a pure function of rows: stored by the dataset stage, drawn dynamically by the collator.

A mask depends on the row and on (row key, copy number, position); other rows in the batch, their
order and their number do not matter. `sample_masks(..., copies=[k])` repeats the stored copy k.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

import numpy as np
import numpy.typing as npt

from cloze.core import random_keys as random
from cloze.core.ragged import I64
from cloze.core.random_keys import U64
from cloze.pipeline.dataset.masking.candidates import (
    RULE_STREAMS,
    MaskCandidates,
    MaskConfig,
    MaskSelection,
    Rule,
    TokenProperties,
    UnmaskedRows,
)
from cloze.pipeline.dataset.masking.registry import RULES

USE_MASK = 1 << 32  # distinct from the uses of a row's key in pairings
USE_BUDGET = RULE_STREAMS
BLOCK_CELLS = 1 << 20  # (row, copy, candidate) cells per block, which fit in the processor's cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Masks:
    """Masks of R rows in K copies, in the order (row, copy)."""

    # uint16 [M], positions in the row, ascending and unique within each mask
    positions: npt.NDArray[np.uint16]
    # [M], ids at these positions in the masked row, with the dtype of the rows' ids
    input_ids: npt.NDArray[Any]
    offsets: I64  # int64 [R * K + 1], start of each mask in `positions`, and M


def sample_masks(
    rows: UnmaskedRows, config: MaskConfig, table: TokenProperties, copies: npt.ArrayLike
) -> Masks:
    """Draw a mask for every row and every copy number.

    Special tokens are never masked. [UNK] counts as special, as in transformers' collator and
    unlike google-research/bert: predicting that a word was unknown teaches nothing. A random token
    may equal the original, as in google-research/bert.

    Args:
        rows: R rows.
        table: properties of the tokenizer's tokens; needs `unigrams` for `random_from` corpus.
        copies: [K] copy numbers: `range(K)` for the stored masks, `[epoch]` for dynamic masks.

    Raises:
        ValueError: `random_from` is corpus, and the table has no counts.
    """
    numbers = np.asarray(copies, np.uint64).reshape(-1)
    rule: Rule = resolve_name(RULES[config.rule].function)
    blocks = _blocks(rows, len(numbers))
    drawn = [_draw_block(block, config, table, numbers, rule) for block in blocks]
    counts = np.concatenate([np.zeros(1, np.int64), *(block[2] for block in drawn)])
    return Masks(
        positions=np.concatenate([np.zeros(0, np.uint16), *(block[0] for block in drawn)]),
        input_ids=np.concatenate(
            [np.zeros(0, rows.input_ids.dtype), *(block[1] for block in drawn)]
        ),
        offsets=np.cumsum(counts),
    )


def text_lengths(rows: UnmaskedRows, table: TokenProperties) -> I64:
    """Return the text tokens of each row, which include [UNK], unlike candidates: int64 [R]."""
    structural = np.zeros(table.size, np.bool_)
    structural[[table.special.cls, table.special.sep, table.special.pad, table.special.mask]] = True
    marks = np.flatnonzero(structural[rows.input_ids])
    return np.diff(rows.offsets) - np.diff(np.searchsorted(marks, rows.offsets))


def _blocks(rows: UnmaskedRows, copies: int) -> Iterator[UnmaskedRows]:
    step = max(1, BLOCK_CELLS // max(1, copies * int(np.diff(rows.offsets).max(initial=1))))
    for first in range(0, len(rows), step):
        yield rows.slice(first, min(first + step, len(rows)))


def _draw_block(
    rows: UnmaskedRows, config: MaskConfig, table: TokenProperties, copies: U64, rule: Rule
) -> tuple[npt.NDArray[np.uint16], npt.NDArray[Any], I64]:
    candidates = MaskCandidates.of(rows, table, config)
    keys = random.fold_in(rows.keys[:, None], USE_MASK, copies[None, :])
    selection = rule(candidates, _budget(candidates, keys), keys)
    index = candidates.index[selection.index]
    row_starts = np.repeat(rows.offsets[:-1], selection.counts.reshape(len(rows), -1).sum(axis=1))
    positions = index - row_starts
    return (
        positions.astype(np.uint16),
        _replace(
            rows.input_ids[index],
            positions,
            selection,
            config,
            table,
            np.repeat(keys.reshape(-1), selection.counts),
        ),
        selection.counts,
    )


def _budget(candidates: MaskCandidates, keys: U64) -> I64:
    """Return the maximum tokens of each mask: int64 [R, K]."""
    rows, config = candidates.rows, candidates.config
    text = (
        text_lengths(rows, candidates.table)[:, None]
        if config.mask_rounding == "ceil"
        else np.zeros((1, 1), np.int64)
    )
    u = (
        random.uniform(random.splitmix64(keys ^ random.splitmix64(USE_BUDGET)))
        if config.mask_rounding == "probabilistic"
        else np.zeros((1, 1))
    )
    targets = config.predictions(np.diff(rows.offsets)[:, None], text, u)
    return np.minimum(np.broadcast_to(targets, keys.shape), candidates.counts[:, None])


def _replace(
    original: npt.NDArray[Any],
    positions: I64,
    selection: MaskSelection,
    config: MaskConfig,
    table: TokenProperties,
    keys: U64,
) -> npt.NDArray[Any]:
    """Return the id shown at each chosen position: [MASK], a random token, or the original."""
    unit = positions if selection.unit is None else selection.unit
    span = int(max(unit.max(initial=0), positions.max(initial=0))) + 1
    # outside the numbers that rules use, so that keys never collide
    by_position = random.splitmix64(np.arange(span) + USE_MASK)
    # By the unit: the tokens of a span share one draw, and so one kind of replacement.
    draws = random.splitmix64(keys ^ by_position[unit])
    # One number decides among [MASK], random and kept, so the shares add up exactly.
    kind = random.uniform(draws)
    replaced = np.where(
        kind < config.mask_share, np.asarray(table.special.mask, original.dtype), original
    )
    drawn = np.flatnonzero(
        (kind >= config.mask_share) & (kind < config.mask_share + config.random_share)
    )
    if len(drawn):
        replaced[drawn] = _random_tokens(
            random.fold_in(keys[drawn], by_position[positions[drawn]], 1), config, table
        )
    return replaced


def _random_tokens(keys: U64, config: MaskConfig, table: TokenProperties) -> npt.NDArray[Any]:
    """Return a random token for each key, from the config's distribution."""
    if config.random_from == "vocabulary":
        return random.randint_below(keys, table.size)
    if config.random_from == "pieces":
        return table.ordinary_ids[
            random.randint_below(keys, len(table.ordinary_ids)).astype(np.int64)
        ]
    total = table.cumulative
    # Inverts the running totals: a token is drawn as often as the corpus has it.
    return np.searchsorted(total, np.floor(random.uniform(keys) * float(total[-1])), side="right")
