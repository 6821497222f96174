"""Masks: what BERT's rule promises, and that nothing but a row's key and content shapes
its mask.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.pipeline.dataset.masking import draw
from cloze.pipeline.dataset.masking.candidates import (
    MaskCandidates,
    MaskConfig,
    MaskSelection,
    TokenProperties,
    UnmaskedRows,
    row_keys,
)
from cloze.pipeline.dataset.masking.draw import sample_masks
from cloze.pipeline.dataset.masking.registry import RULES, MaskingRule
from tests.pipeline.dataset.masking.rows import SPECIAL, TABLE, V, make_rows, masks_of

row_lengths = st.lists(st.integers(5, 140), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(
    lengths=row_lengths,
    seed=st.integers(0, 2**64 - 1),
    copies=st.integers(1, 4),
    rate=st.floats(0.01, 0.9),
    cap=st.integers(1, 90),
)
def test_budget_is_exact_and_positions_are_sorted_unique_and_never_special(
    lengths, seed, copies, rate, cap
):
    rows = make_rows(lengths, seed)
    masks = sample_masks(rows, MaskConfig(rate=rate, max_predictions=cap), TABLE, range(copies))
    assert masks.positions.dtype == np.uint16
    assert masks.input_ids.dtype == rows.input_ids.dtype
    for row, of_row in enumerate(masks_of(masks, len(lengths), copies)):
        ids = rows.input_ids[rows.offsets[row] : rows.offsets[row + 1]]
        for mask in of_row:
            positions = [position for position, _ in mask]
            assert len(positions) == min(cap, max(1, round(len(ids) * rate)), len(ids) - 3)
            assert positions == sorted(set(positions))
            assert not set(ids[positions].tolist()) & set(SPECIAL.ids)
            assert all(0 <= replacement < V for _, replacement in mask)


@settings(max_examples=40, deadline=None)
@given(lengths=row_lengths, seed=st.integers(0, 2**32), data=st.data())
def test_a_mask_depends_on_its_row_and_copy_number_alone(lengths, seed, data):
    rows, config = make_rows(lengths, seed), MaskConfig(max_predictions=40)
    together = masks_of(sample_masks(rows, config, TABLE, range(5)), len(lengths), 5)
    row, copy = data.draw(st.integers(0, len(lengths) - 1)), data.draw(st.integers(0, 4))
    alone = sample_masks(rows.slice(row, row + 1), config, TABLE, [copy])
    assert masks_of(alone, 1, 1)[0][0] == together[row][copy]


def test_block_borders_do_not_show(monkeypatch):
    rows = make_rows([128, 9, 77, 128, 40, 128, 6] * 9)
    whole = sample_masks(rows, MaskConfig(), TABLE, range(3))
    monkeypatch.setattr(draw, "BLOCK_CELLS", 500)
    cut = sample_masks(rows, MaskConfig(), TABLE, range(3))
    for name in ("positions", "input_ids", "offsets"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(cut, name))


@pytest.mark.parametrize(
    ("length", "expected"), [(5, 1), (10, 2), (30, 4), (110, 16), (128, 19), (512, 20)]
)
def test_budget_as_the_reference_program(length, expected):
    """Halves to even: 30 tokens give 4, 110 give 16; 512 tokens run into the cap of 20."""
    assert MaskConfig().predictions(np.array([length]))[0] == expected


def test_every_subset_is_equally_likely():
    rows = make_rows([8] * 20_000)  # five candidates: 10 pairs
    masks = sample_masks(rows, MaskConfig(rate=0.25), TABLE, [0])
    counts = Counter(tuple(pair) for pair in masks.positions.reshape(-1, 2).tolist())
    assert len(counts) == 10
    assert all(abs(count - 2000) < 5 * 2000**0.5 for count in counts.values())


def test_every_position_is_equally_likely():
    rows = make_rows([128] * 3000)
    masks = sample_masks(rows, MaskConfig(), TABLE, range(2))
    counts = np.bincount(masks.positions, minlength=128)
    candidates = [p for p in range(1, 127) if p != int(rows.segment_start[0]) - 1]
    expected = 6000 * 19 / 125
    assert counts[0] == counts[127] == 0
    assert np.abs(counts[candidates] - expected).max() < 5 * expected**0.5


def test_replacement_shares_and_uniform_random_pieces():
    rows = make_rows([128] * 4000)
    masks = sample_masks(rows, MaskConfig(), TABLE, range(2))
    row = np.repeat(np.arange(4000), 2 * 19)
    original = rows.input_ids[rows.offsets[row] + masks.positions]
    masked, kept = masks.input_ids == SPECIAL.mask, masks.input_ids == original
    n = len(original)
    assert n == 4000 * 2 * 19
    sigma = (0.8 * 0.2 / n) ** 0.5
    assert abs(masked.mean() - (0.8 + 0.1 / V)) < 5 * sigma
    assert abs(kept.mean() - (0.1 + 0.1 / V)) < 5 * sigma
    words = masks.input_ids[~masked & ~kept]
    counts = np.bincount(words, minlength=V)
    expected = 0.1 * n / V
    others = [
        token for token in range(V) if token != SPECIAL.mask
    ]  # the whole vocabulary, special tokens included
    assert np.abs(counts[others] - expected).max() < 6 * expected**0.5
    assert counts[list(SPECIAL.ids[:4])].min() > 0


def test_shares_can_be_set():
    rows = make_rows([128] * 500)
    masks = sample_masks(rows, MaskConfig(mask_share=0.85, random_share=0.0), TABLE, [0])
    original = rows.input_ids[rows.offsets[np.repeat(np.arange(500), 19)] + masks.positions]
    assert set(np.flatnonzero(masks.input_ids != original)) == set(
        np.flatnonzero(masks.input_ids == SPECIAL.mask)
    )
    assert abs((masks.input_ids == SPECIAL.mask).mean() - 0.85) < 0.02


def test_copies_are_independent():
    """Two independent 15 % masks share about .081 of their union."""
    rows = make_rows([512] * 300)
    of_rows = masks_of(
        sample_masks(rows, MaskConfig(max_predictions=100), TABLE, range(10)), 300, 10
    )
    jaccards = []
    for copies in of_rows:
        sets = [frozenset(position for position, _ in mask) for mask in copies]
        assert len(set(sets)) == 10
        jaccards += [len(a & b) / len(a | b) for a, b in itertools.combinations(sets, 2)]
    assert abs(np.mean(jaccards) - 0.081) < 0.003


def test_equal_rows_at_other_places_have_other_masks():
    one = make_rows([100])
    for other_key in (row_keys(0, 0, 1), row_keys(0, 1, 0), row_keys(1, 0, 0)):
        other = UnmaskedRows(
            keys=other_key[None],
            input_ids=one.input_ids,
            offsets=one.offsets,
            segment_start=one.segment_start,
        )
        assert (
            sample_masks(one, MaskConfig(), TABLE, [0]).positions.tolist()
            != sample_masks(other, MaskConfig(), TABLE, [0]).positions.tolist()
        )


def test_unknown_pieces_are_never_predicted():
    rows = make_rows([20, 20])
    ids = rows.input_ids.copy()
    ids[1:19] = np.where(ids[1:19] == SPECIAL.sep, SPECIAL.sep, SPECIAL.unk)
    ids[25] = SPECIAL.unk
    rows = UnmaskedRows(
        keys=rows.keys, input_ids=ids, offsets=rows.offsets, segment_start=rows.segment_start
    )
    first, second = masks_of(sample_masks(rows, MaskConfig(rate=0.5), TABLE, [0]), 2, 1)
    assert first == [[]]
    assert len(second[0]) == 10
    assert 5 not in {position for position, _ in second[0]}


def test_no_rows_and_no_copies():
    assert sample_masks(make_rows([]), MaskConfig(), TABLE, range(3)).offsets.tolist() == [0]
    assert sample_masks(make_rows([9, 9]), MaskConfig(), TABLE, []).offsets.tolist() == [0]


def test_wide_ids_stay_wide():
    rows = make_rows([64] * 8)
    wide = UnmaskedRows(
        keys=rows.keys,
        input_ids=rows.input_ids.astype(np.uint32),
        offsets=rows.offsets,
        segment_start=rows.segment_start,
    )
    table = TokenProperties(size=200_000, special=SPECIAL, word_start=np.ones(200_000, np.bool_))
    masks = sample_masks(wide, MaskConfig(mask_share=0, random_share=1), table, range(4))
    assert masks.input_ids.dtype == np.uint32
    assert masks.input_ids.max() > 65_535


def test_a_rest_of_a_word_behind_a_special_token_opens_a_word():
    """Front truncation can leave B with `##x` first; it must not join A's last word
    across [SEP].
    """
    ids = np.array(
        [SPECIAL.cls, 5, 6, SPECIAL.sep, 9, 12, 7, SPECIAL.sep], np.uint16
    )  # 6, 9 and 12 go on words
    rows = UnmaskedRows(
        keys=row_keys(0, [1], [1]),
        input_ids=ids,
        offsets=np.array([0, 8]),
        segment_start=np.array([4], np.int32),
    )
    candidates = MaskCandidates.of(rows, TABLE)
    assert candidates.index.tolist() == [1, 2, 4, 5, 6]
    assert candidates.opens_word().tolist() == [True, False, True, False, True]


def whole_segment(
    candidates: MaskCandidates, budget: np.ndarray, row_copy: np.ndarray
) -> MaskSelection:
    """A rule for the test below: all of a row's candidates, the unit being the segment."""
    counts = np.repeat(candidates.counts, row_copy.shape[1])
    index = np.concatenate(
        [
            np.arange(a, b)
            for a, b in itertools.pairwise(candidates.offsets)
            for _ in range(row_copy.shape[1])
        ]
    )
    row = np.searchsorted(candidates.rows.offsets, candidates.index[index], side="right") - 1
    in_b = (
        candidates.index[index] - candidates.rows.offsets[row] >= candidates.rows.segment_start[row]
    )
    return MaskSelection(
        index=index,
        counts=counts,
        unit=np.where(in_b, candidates.rows.segment_start[row], 1).astype(np.int64),
    )


def test_a_new_rule_is_one_function_and_one_line(monkeypatch):
    monkeypatch.setitem(RULES, "segment", MaskingRule(f"{__name__}:whole_segment"))
    rows = make_rows([60] * 40)
    masks = sample_masks(rows, MaskConfig(rule="segment", random_share=0.0), TABLE, range(2))
    kinds = Counter()
    for row, copies in enumerate(masks_of(masks, 40, 2)):
        start = int(rows.segment_start[row])
        for mask in copies:
            for part in ([r for p, r in mask if p < start], [r for p, r in mask if p >= start]):
                same_kind = {replacement == SPECIAL.mask for replacement in part}
                assert len(same_kind) == 1  # a unit is replaced as one
                kinds.update(same_kind)
    assert set(kinds) == {True, False}


def test_unknown_rule():
    with pytest.raises(ValueError, match="unknown masking rule; did you mean 'token'"):
        MaskConfig(rule="tokn")


def test_importing_masks_imports_neither_beam_nor_tokenizers():
    code = (
        "import sys, cloze.pipeline.dataset.masking.draw, cloze.pipeline.dataset.masking.rules; "
        "print({'apache_beam', 'tokenizers', 'torch'} & set(sys.modules))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True
        ).stdout.strip()
        == "set()"
    )
