"""Spans and n-grams have the lengths and places of their papers."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np

from cloze.pipeline.dataset.masking.candidates import (
    MaskConfig,
    TokenProperties,
    UnmaskedRows,
    row_keys,
)
from cloze.pipeline.dataset.masking.draw import sample_masks
from tests.pipeline.dataset.masking.rows import SPECIAL, TABLE, V, make_rows, masks_of
from tests.pipeline.dataset.masking.test_rules import SINGLE


def lengths_in_words(rule: str, rows: UnmaskedRows, **settings) -> list[int]:
    """The numbers of words in the runs of chosen words, over all rows."""
    masks = masks_of(
        sample_masks(rows, MaskConfig(rule=rule, max_predictions=10**5, **settings), SINGLE, [0]),
        len(rows),
        1,
    )
    runs = []
    for [mask] in masks:
        positions = np.array([position for position, _ in mask])
        runs += np.diff(
            np.flatnonzero(np.append(np.insert(np.diff(positions) != 1, 0, True), True))
        ).tolist()
    return runs


def test_spans_are_geometric_with_mean_3_8():
    runs = lengths_in_words("span", make_rows([4000] * 60, split_at=1.0), mask_rounding="ceil")
    assert max(runs) == 10
    assert (
        abs(np.mean(runs) - 3.797) < 0.06
    )  # of p = .2 clipped at 10; the last span of a row is cut by the budget
    expected = 0.2 * 0.8 ** np.arange(10)
    expected /= expected.sum()
    shares = np.bincount(runs, minlength=11)[1:] / len(runs)
    assert np.abs(shares - expected).max() < 0.015


def test_rows_as_full_as_half_keep_the_lengths_of_spans_nearly():
    runs = lengths_in_words(
        "span", make_rows([512] * 80, split_at=1.0), rate=0.5, mask_rounding="ceil"
    )
    assert 3.0 < np.mean(runs) < 3.9


def test_spans_begin_at_the_word_of_a_random_token():
    """As in SpanBERT's program: a word of three pieces is three times as likely to open a span."""
    ids = np.array([2, *[5, 6, 7, 8] * 300, 3], np.uint16)  # a word of one piece, one of three
    table = TokenProperties(size=V, special=SPECIAL, word_start=np.isin(np.arange(V), [5, 6]))
    rows = UnmaskedRows(
        keys=row_keys(0, [1], [1]),
        input_ids=ids,
        offsets=np.array([0, 1202]),
        segment_start=np.array([1202]),
    )
    masks = sample_masks(
        rows, MaskConfig(rule="span", rate=0.02, max_predictions=99, max_span=1), table, range(400)
    )
    short = (ids[masks.positions] == 5).sum() / (
        (ids[masks.positions] == 5).sum() + (ids[masks.positions] == 6).sum()
    )
    assert (
        0.22 < short < 0.38
    )  # by words it would be more than half; what is left of the budget takes short ones


def test_ngrams_have_p_in_proportion_to_1_over_n():
    """Seen where an n-gram seldom meets another one."""
    runs = lengths_in_words("n-gram", make_rows([3000] * 60), rate=0.01)
    shares = np.bincount(runs, minlength=4)[1:4] / len(runs)
    assert np.abs(shares - np.array([6, 3, 2]) / 11).max() < 0.03
    longer = lengths_in_words("n-gram", make_rows([3000] * 20), rate=0.01, max_ngram=6)
    assert max(longer) >= 6


def test_pieces_of_a_span_are_replaced_as_one_and_those_of_an_ngram_are_not():
    rows = make_rows([512] * 60)
    mixed = {}
    for rule in ("span", "n-gram"):
        masks = masks_of(
            sample_masks(
                rows, MaskConfig(rule=rule, max_predictions=512, random_from="pieces"), TABLE, [0]
            ),
            60,
            1,
        )
        kinds = []
        for row, [mask] in enumerate(masks):
            ids = rows.input_ids[rows.offsets[row] : rows.offsets[row + 1]]
            for _, run in itertools.groupby(enumerate(mask), lambda entry: entry[1][0] - entry[0]):
                kinds.append(
                    {
                        "mask" if new == SPECIAL.mask else "same" if new == ids[at] else "random"
                        for _, (at, new) in run
                    }
                )
        mixed[rule] = [
            kind for kind in kinds if len(kind) > 1 and kind != {"same", "random"}
        ]  # a random piece may be the same
        shares = Counter(next(iter(kind)) for kind in kinds if len(kind) == 1)
        assert shares["mask"] > 4 * shares["random"] > 0
    assert not mixed["span"]
    assert mixed["n-gram"]
