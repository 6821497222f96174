"""Every masking rule: what the papers' programs promise, and that nothing but a row's key and
content shapes its mask.
"""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.core import random_keys
from cloze.core.ragged import offsets_of
from cloze.pipeline.dataset.masking import draw
from cloze.pipeline.dataset.masking.candidates import (
    MaskCandidates,
    MaskConfig,
    TokenProperties,
    UnmaskedRows,
    row_keys,
)
from cloze.pipeline.dataset.masking.draw import sample_masks, text_lengths
from cloze.pipeline.dataset.masking.registry import RULES, default_cap
from cloze.pipeline.dataset.masking.unit_placement import WordSlots
from cloze.pipeline.tokenizer.special import SpecialTokens
from tests.pipeline.dataset.masking.rows import SPECIAL, TABLE, V, make_rows, masks_of

CHOOSING = sorted(set(RULES) - {"none", "salient"})  # test_salient.py tests the latter
WORDY = ["n-gram", "span", "whole-word"]
configs = st.builds(
    MaskConfig,
    rule=st.sampled_from(sorted(RULES)),
    rate=st.floats(0.01, 0.5),
    mask_rounding=st.sampled_from(["bert", "probabilistic", "ceil", "round"]),
    max_predictions=st.integers(1, 90),
    random_from=st.sampled_from(["vocabulary", "pieces"]),
    max_ngram=st.integers(1, 6),
    max_span=st.integers(1, 12),
)
row_lengths = st.lists(st.integers(5, 140), min_size=1, max_size=8)
SINGLE = TokenProperties(
    size=V, special=SPECIAL, word_start=np.ones(V, np.bool_)
)  # every piece is a word


def words_of(rows: UnmaskedRows, row: int) -> list[list[int]]:
    """The words of a row as lists of positions, by the definition: a `##x` goes on, a special token
    parts.
    """
    ids = rows.input_ids[rows.offsets[row] : rows.offsets[row + 1]].tolist()
    words: list[list[int]] = []
    joined = False
    for position, token in enumerate(ids):
        if token in SPECIAL.ids:
            joined = False
        elif joined and not TABLE.word_start[token]:
            words[-1].append(position)
        else:
            words.append([position])
            joined = True
    return words


def with_unknowns(rows: UnmaskedRows, every: int) -> UnmaskedRows:
    """The same rows with an [UNK] at every so many-th position that is no special token."""
    ids = rows.input_ids.copy()
    places = np.arange(every // 2, len(ids), every)
    ids[places[ids[places] >= 5]] = SPECIAL.unk
    return UnmaskedRows(
        keys=rows.keys, input_ids=ids, offsets=rows.offsets, segment_start=rows.segment_start
    )


@settings(max_examples=150, deadline=None)
@given(
    lengths=row_lengths,
    seed=st.integers(0, 2**64 - 1),
    config=configs,
    unknowns=st.sampled_from([7, 10**6]),
)
def test_what_every_rule_promises(lengths, seed, config, unknowns):
    rows = with_unknowns(make_rows(lengths, seed), unknowns)
    masks = masks_of(sample_masks(rows, config, TABLE, range(3)), len(lengths), 3)
    text = text_lengths(rows, TABLE)
    for row, of_row in enumerate(masks):
        ids = rows.input_ids[rows.offsets[row] : rows.offsets[row + 1]]
        words = words_of(rows, row)
        word_of = {position: number for number, word in enumerate(words) for position in word}
        wanted = [int(config.predictions(len(ids), text[row], u)) for u in (0, np.nextafter(1, 0))]
        for mask in of_row:
            chosen = [position for position, _ in mask]
            assert chosen == sorted(set(chosen))
            assert set(chosen) <= set(word_of)  # never a special token, nor [UNK]
            if config.rule in ("none", "salient"):  # the rows have no spans
                assert not chosen
                continue
            most = min(wanted[1], len(word_of))
            assert len(chosen) <= most
            if config.rule == "token":
                assert len(chosen) >= min(wanted[0], len(word_of))
                continue
            taken = {word_of[position] for position in chosen}
            assert sorted(chosen) == sorted(
                position for number in taken for position in words[number]
            )  # whole words
            # The budget is used up, or no word that may still be taken is short enough.
            left = min(wanted[0], len(word_of)) - len(chosen)
            spans = config.rule == "span"
            for number, word in enumerate(words):
                near = {word[0] - 1, word[-1] + 1} & set(chosen) if spans else set()
                assert number in taken or near or len(word) > left


@settings(max_examples=60, deadline=None)
@given(lengths=row_lengths, seed=st.integers(0, 2**32), config=configs, data=st.data())
def test_a_mask_depends_on_its_row_and_copy_number_alone(lengths, seed, config, data):
    rows = make_rows(lengths, seed)
    together = masks_of(sample_masks(rows, config, TABLE, range(4)), len(lengths), 4)
    row, copy = data.draw(st.integers(0, len(lengths) - 1)), data.draw(st.integers(0, 3))
    alone = sample_masks(rows.slice(row, row + 1), config, TABLE, [copy])
    assert masks_of(alone, 1, 1)[0][0] == together[row][copy]


@pytest.mark.parametrize("rule", sorted(RULES))
def test_block_borders_do_not_show(monkeypatch, rule):
    rows = make_rows([128, 9, 77, 128, 40, 300, 6] * 9)
    config = MaskConfig(rule=rule, rate=0.3, mask_rounding="probabilistic", max_predictions=300)
    whole = sample_masks(rows, config, TABLE, range(3))
    monkeypatch.setattr(draw, "BLOCK_CELLS", 500)
    cut = sample_masks(rows, config, TABLE, range(3))
    for name in ("positions", "input_ids", "offsets"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(cut, name))


@settings(max_examples=40, deadline=None)
@given(lengths=row_lengths, seed=st.integers(0, 2**32), unknowns=st.sampled_from([3, 9, 10**6]))
def test_words_are_those_of_the_definition(lengths, seed, unknowns):
    rows = with_unknowns(make_rows(lengths, seed), unknowns)
    candidates = MaskCandidates.of(rows, TABLE)
    words = WordSlots.of(candidates)
    for row in range(len(lengths)):
        expected = words_of(rows, row)
        slots = words.slot[words.offsets[row] : words.offsets[row + 1]]
        found = [
            (candidates.index[words.first[s] : words.first[s + 1]] - rows.offsets[row]).tolist()
            for s in slots.tolist()
        ]
        assert found == expected
        inside = slots - words.slot_offsets[row]
        bits = [
            bool(int(words.free[row, s >> 6]) >> (s & 63) & 1)
            for s in range(words.free.shape[1] * 64)
        ]
        assert np.flatnonzero(bits).tolist() == inside.tolist()
        # A run ends where the next word is no neighbour in text; its neighbours in slots are.
        for number, word in enumerate(expected):
            left = int(words.run_left[words.offsets[row] + number])
            assert all(
                expected[number + k][0] == expected[number + k - 1][-1] + 1 for k in range(1, left)
            )
            assert (
                number + left == len(expected)
                or expected[number + left][0] > expected[number + left - 1][-1] + 1
            )
            if number and word[0] > expected[number - 1][-1] + 1:
                assert inside[number] - inside[number - 1] == 2


def test_no_word_is_joined_across_a_separator():
    """A front-truncated B begins with the rest of a word: with whole words it is a word of its own,
    however often it is drawn.
    """
    ids = np.array(
        [2, 7, 8, 3, 9, 12, 7, 3], np.uint16
    )  # 9 and 12 go on words: [CLS] w w [SEP] ##x ##x w [SEP]
    count = 400
    rows = UnmaskedRows(
        keys=row_keys(0, np.arange(count), 0),
        input_ids=np.tile(ids, count),
        offsets=np.arange(count + 1) * 8,
        segment_start=np.full(count, 4, np.int32),
    )
    for rule in WORDY:
        masks = masks_of(sample_masks(rows, MaskConfig(rule=rule, rate=0.26), TABLE, [0]), count, 1)
        seen = Counter(tuple(position for position, _ in mask) for [mask] in masks)
        assert (4, 5) in seen
        assert all((2 in taken) + (4 in taken) < 2 or rule != "span" for taken in seen)
        assert all((4 in taken) == (5 in taken) for taken in seen)


@pytest.mark.parametrize(
    ("config", "length", "text", "expected"),
    [
        (MaskConfig(), 30, 27, 4),  # Python 3 rounds half to even
        (MaskConfig(), 110, 107, 16),
        (MaskConfig(), 3, 1, 1),
        (MaskConfig(mask_rounding="round", max_predictions=19), 128, 125, 19),
        (MaskConfig(mask_rounding="ceil", max_predictions=512), 128, 126, 19),
        (MaskConfig(mask_rounding="ceil", max_predictions=512), 512, 510, 77),
        (MaskConfig(mask_rounding="ceil", max_predictions=512), 22, 20, 3),
        (
            MaskConfig(mask_rounding="probabilistic", max_predictions=512),
            512,
            510,
            77,
        ),  # u = .5: int(76.8 + .5)
    ],
)
def test_budgets_of_the_programs(config, length, text, expected):
    assert config.predictions(length, text) == expected


def test_probabilistic_budgets_hit_the_rate():
    rows = make_rows([100, 61, 7] * 1000)
    masks = sample_masks(
        rows, MaskConfig(mask_rounding="probabilistic", max_predictions=100), TABLE, range(4)
    )
    counts = np.diff(masks.offsets).reshape(3000, 4)
    for at, length in enumerate((100, 61, 7)):
        drawn = counts[at::3]
        assert set(np.unique(drawn)) <= {int(0.15 * length), int(0.15 * length) + 1}
        assert abs(drawn.mean() - 0.15 * length) < 5 * 0.5 / drawn.size**0.5
    assert len({tuple(row) for row in counts[1::3].tolist()}) > 8  # copies round for themselves


def test_caps_grow_with_rate_and_length():
    assert [default_cap("bert", 0.15, length) for length in (128, 512)] == [20, 78]
    assert [default_cap("round", 0.15, length) for length in (128, 512)] == [19, 79]
    assert default_cap("ceil", 0.15, 512) == default_cap("probabilistic", 0.15, 512) == 512


@pytest.mark.parametrize("rule", CHOOSING)
def test_positions_are_alike(rule):
    """Far from the ends of a segment every position is as likely as any other."""
    rows = make_rows([200] * 1500, split_at=1.0)
    masks = sample_masks(rows, MaskConfig(rule=rule, max_predictions=200), SINGLE, range(2))
    counts = np.bincount(masks.positions, minlength=200)
    inner = counts[12:188]
    spread = (
        3.0 if rule == "span" else 1.5
    )  # neighbours go together, so counts vary more than if they were drawn alone
    assert np.abs(inner - inner.mean()).max() < 5 * spread * inner.mean() ** 0.5
    assert counts[0] == counts[199] == 0
    assert counts[1:12].min() > 0


@pytest.mark.parametrize("rule", CHOOSING)
def test_copies_are_independent_and_never_alike(rule):
    rows = make_rows([512] * 40, split_at=1.0)
    masks = masks_of(
        sample_masks(rows, MaskConfig(rule=rule, max_predictions=100), TABLE, range(10)), 40, 10
    )
    jaccards = []
    for copies in masks:
        sets = [frozenset(position for position, _ in mask) for mask in copies]
        assert len(set(sets)) == 10
        jaccards += [len(a & b) / len(a | b) for a, b in itertools.combinations(sets, 2)]
    near = (
        0.01 if rule == "span" else 0.006
    )  # words of two pieces are met more often: positions are not quite alike
    assert abs(np.mean(jaccards) - 0.081) < near  # of independent 15 % masks: p / (2 - p)


def test_random_pieces_by_where_they_come_from():
    rows = make_rows([512] * 300)
    counts = np.zeros(V, np.int64)
    counts[[3, 20, 30, 40]] = [10**6, 100, 200, 700]  # [SEP] is counted, and must not be drawn
    everything = {"mask_share": 0.0, "random_share": 1.0, "max_predictions": 200}
    found = {}
    for source in ("vocabulary", "pieces", "corpus"):
        table = TokenProperties(
            size=V, special=SPECIAL, word_start=TABLE.word_start, unigrams=counts
        )
        found[source] = np.bincount(
            sample_masks(rows, MaskConfig(random_from=source, **everything), table, [0]).input_ids,
            minlength=V,
        )
    assert found["vocabulary"][list(SPECIAL.ids)].min() > 0
    assert found["pieces"][list(SPECIAL.ids)].sum() == 0
    assert (found["pieces"] > 0).sum() == V - 5
    assert np.flatnonzero(found["corpus"]).tolist() == [20, 30, 40]
    shares = found["corpus"][[20, 30, 40]] / found["corpus"].sum()
    assert np.abs(shares - [0.1, 0.2, 0.7]).max() < 0.02
    with pytest.raises(
        ValueError, match=r"token counts of the corpus are missing; read unigrams.arrow"
    ):
        sample_masks(rows, MaskConfig(random_from="corpus"), TABLE, [0])


def test_words_longer_than_the_budget_are_passed_over():
    """Three-piece words only, and room for two pieces: nothing can be taken, and
    nothing is split.
    """
    table = TokenProperties(size=V, special=SPECIAL, word_start=np.arange(V) == 5)
    ids = np.array([2, *[5, 6, 7] * 5, 3], np.uint16)
    rows = UnmaskedRows(
        keys=row_keys(0, [1], [1]),
        input_ids=ids,
        offsets=np.array([0, 17]),
        segment_start=np.array([17], np.int32),
    )
    for rule in WORDY:
        assert (
            len(
                sample_masks(
                    rows, MaskConfig(rule=rule, max_predictions=2), table, range(50)
                ).positions
            )
            == 0
        )
        eight = sample_masks(rows, MaskConfig(rule=rule, rate=0.5), table, range(50))
        assert np.diff(eight.offsets).max() == 6


def test_long_rows_and_many_words():
    special = SpecialTokens(pad=0, unk=1, cls=2, sep=3, mask=4)
    length = 65_535
    ids = np.full(length, 7, np.uint16)
    ids[0], ids[-1] = 2, 3
    rows = UnmaskedRows(
        keys=row_keys(0, [1], [1]),
        input_ids=ids,
        offsets=offsets_of(np.array([length])),
        segment_start=np.array([length]),
    )
    table = TokenProperties(size=V, special=special, word_start=np.ones(V, np.bool_))
    for rule in CHOOSING:
        masks = sample_masks(
            rows, MaskConfig(rule=rule, rate=0.01, max_predictions=length), table, [0]
        )
        assert len(masks.positions) == round(0.01 * length)
        assert masks.positions.max() > 60_000


def test_the_longest_units_stay_apart():
    length = 700
    ids = np.full(length, 5, np.uint16)
    ids[0], ids[-1] = SPECIAL.cls, SPECIAL.sep
    table = TokenProperties(size=V, special=SPECIAL, word_start=np.ones(V, np.bool_))
    rows = UnmaskedRows(
        keys=row_keys(0, np.arange(20), np.arange(20)),
        input_ids=np.tile(ids, 20),
        offsets=np.arange(21) * length,
        segment_start=np.full(20, length),
    )
    config = MaskConfig(rule="span", rate=0.45, max_predictions=length, span_p=0.001, max_span=60)
    longest = 0
    for [mask] in masks_of(sample_masks(rows, config, table, [0]), 20, 1):
        positions = np.array([position for position, _ in mask])
        assert len(positions) == round(0.45 * length)
        runs = np.split(positions, np.flatnonzero(np.diff(positions) > 1) + 1)
        longest = max(longest, *map(len, runs))
    assert longest == 60


def test_keys_are_all_that_differs_between_equal_rows():
    one = make_rows([100])
    for rule in CHOOSING:
        config = MaskConfig(rule=rule, max_predictions=40)
        again = UnmaskedRows(
            keys=random_keys.fold_in(9, np.arange(1)),
            input_ids=one.input_ids,
            offsets=one.offsets,
            segment_start=one.segment_start,
        )
        first, second = (
            sample_masks(rows, config, TABLE, [0]).positions.tolist() for rows in (one, again)
        )
        assert first != second
