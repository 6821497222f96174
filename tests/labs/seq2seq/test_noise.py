"""Noise: what each objective makes of one and the same row and its stored masks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.labs.seq2seq.noise import NOISES, Body, Noise
from cloze.model.data.rows import MaskedRows
from cloze.model.objectives import OBJECTIVES

WORDS = "Thank you for inviting me to your party last week .".split()
CLS, SEP, MASK, FIRST, SENTINEL = 2, 3, 4, 10, 100
NAMES = {MASK: "<M>", **{FIRST + n: word for n, word in enumerate(WORDS)}}
NAMES |= {SENTINEL + n: f"<{letter}>" for n, letter in enumerate("XYZ")}


def noise(name: str, **changes: object) -> Noise:
    values = {"sentinels": tuple(range(SENTINEL, SENTINEL + 3)), "stops": (FIRST + 10,)}
    return Noise(
        name=name, seed=1, pad=0, cls=CLS, sep=SEP, mask=MASK, longest=16, **{**values, **changes}
    )


def row(length: int = len(WORDS), masked: tuple[int, ...] = (2, 3, 8)) -> Body:
    ids = FIRST + np.arange(length)
    chosen = np.isin(np.arange(length), masked)
    return Body(ids=ids, masked=chosen, shown=np.where(chosen, MASK, ids), key=5)


def told(name: str) -> tuple[str, str]:
    source, target = NOISES[name](row(), noise(name))
    return tuple(" ".join(NAMES[int(token)] for token in ids) for ids in (source, target))


ALL = "Thank you for inviting me to your party last week ."
MASKED = "Thank you <M> <M> me to your party <M> week ."


@pytest.mark.parametrize(
    ("name", "source", "target"),
    [  # Raffel et al. 2020, Table 3
        ("bert-style", MASKED, ALL),
        ("mass-style", MASKED, ALL),
        (
            "replace-spans",
            "Thank you <X> me to your party <Y> week .",
            "<X> for inviting <Y> last <Z>",
        ),
        ("drop-tokens", "Thank you me to your party week .", "for inviting last"),
        # Lewis et al. 2020, section 2.2
        ("token-masking", MASKED, ALL),
        ("token-deletion", "Thank you me to your party week .", ALL),
    ],
)
def test_the_papers_examples(name: str, source: str, target: str) -> None:
    assert told(name) == (source, target)


def test_order_is_changed_and_nothing_is_lost() -> None:
    for name in ("deshuffling", "sentence-permutation", "document-rotation"):
        source, target = NOISES[name](row(30), noise(name))
        assert sorted(source) == sorted(target) == sorted(row(30).ids)
        assert target.tolist() == row(30).ids.tolist()
        assert source.tolist() != target.tolist(), name
    source, target = NOISES["prefix-lm"](row(), noise("prefix-lm"))
    assert [*source, *target] == row().ids.tolist()
    assert len(source) > 0
    permuted, _ = NOISES["sentence-permutation"](row(30), noise("sentence-permutation"))
    assert permuted.tolist() == [*range(FIRST + 11, FIRST + 30), *range(FIRST, FIRST + 11)]


def filled(source: list[int], target: list[int], sentinels: range) -> list[int]:
    """The row that a source with sentinels and its target were made of."""
    spans: dict[int, list[int]] = {}
    for token in target:
        if token in sentinels:
            span = spans.setdefault(token, [])
        else:
            span.append(token)
    return [kept for token in source for kept in (spans.get(token) or [token])]


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 60), st.floats(0.05, 0.6), st.integers(0, 1 << 40), st.booleans())
def test_spans_can_be_put_back_and_keep_the_number_of_masks(
    length: int, rate: float, key: int, stored: bool
) -> None:
    masked = np.random.default_rng(key).random(length) < rate
    ids = 1000 + np.arange(length)
    body = Body(ids=ids, masked=masked, shown=ids, key=key)
    sentinels = range(5000, 5100)
    for name in ("replace-spans", "random-spans"):
        made = noise(name, sentinels=tuple(sentinels), stored_spans=stored)
        source, target = (part.tolist() for part in NOISES[name](body, made))
        assert filled(source, target, sentinels) == ids.tolist()
        assert sum(token not in sentinels for token in target) == masked.sum()
        if name == "random-spans" and not stored and 0 < masked.sum() < length:
            spans = sum(token in sentinels for token in source)
            assert spans == max(1, min(round(masked.sum() / 3), length - masked.sum()))
    made = noise("infilling", stored_spans=stored)
    source, target = (part.tolist() for part in NOISES["infilling"](body, made))
    assert target == ids.tolist()
    assert length - sum(token != MASK for token in source) == masked.sum()
    kept = [token for token in source if token != MASK]
    assert kept == sorted(kept)


def rows(count: int) -> MaskedRows:
    ids = np.concatenate([[CLS, *range(FIRST + n, FIRST + n + 9), SEP] for n in range(count)])
    positions = np.tile([2, 3, 7], count)
    owner = np.repeat(np.arange(count), 3)
    return MaskedRows(
        ids=ids,
        lengths=np.full(count, 11),
        segment_start=np.full(count, 11),
        pair_labels=np.full(count, -100),
        positions=positions,
        replacements=np.full(3 * count, MASK),
        counts=np.full(count, 3),
        documents=owner[:count].astype(np.uint64),
        sentences=np.zeros(count, np.int64),
        boundaries=np.zeros(0, np.int64),
    )


@pytest.mark.parametrize("name", NOISES)
def test_a_sample_is_noised_alike_in_any_batch(name: str) -> None:
    """And batches are framed and padded: sources with 0, targets with -100."""
    made, samples = noise(name, first=CLS), np.array([7, 3, 12])
    together = made.pairs(rows(3), samples)
    for place in range(3):
        order = np.array([place])
        alone = made.pairs(rows(3).ordered(order), samples[order])[0]
        assert [part.tolist() for part in alone] == [part.tolist() for part in together[place]]
    batch = made.collate(rows(3), samples, plain=lambda rows: {})
    for place, (source, target) in enumerate(together):
        ids, labels = batch["input_ids"][place].tolist(), batch["target_labels"][place].tolist()
        assert ids == [*source[:16], *[0] * (len(ids) - len(source[:16]))]
        assert labels == [*target, *[-100] * (len(labels) - len(target))]
        assert (ids[0], target[0], target[-1]) == (CLS, CLS, SEP)
        assert int(batch["attention_mask"][place].sum()) == len(source[:16])
    assert name in OBJECTIVES


def test_another_sample_of_a_row_is_noised_otherwise() -> None:
    first, second = (noise("deshuffling").pairs(rows(1), np.array([n]))[0][0] for n in (1, 2))
    assert first.tolist() != second.tolist()
