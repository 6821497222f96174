"""Copies: signatures against the theory, and who stays against brute force."""

from __future__ import annotations

import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloze.core import random_keys
from cloze.core.words import IGNORABLE, UNSPACED_LETTER, is_mark
from cloze.pipeline.corpus import signatures
from cloze.pipeline.corpus.duplicates import search
from cloze.pipeline.corpus.options import DEFAULT, MinHash
from cloze.pipeline.corpus.signatures import signature


def words(count, seed):
    return [f"w{number}" for number in np.random.default_rng(seed).integers(0, 5000, count)]


def test_exact_signature_is_blind_to_case_and_punctuation_alone():
    assert signature("The cat, it sat!").exact == signature("the CAT it  sat").exact
    assert signature("The cat it sat").exact != signature("The cat it set").exact
    assert signature("ab c").exact != signature("a bc").exact


@given(st.text(max_size=60))
def test_any_text_has_a_signature(text):
    found = signature(text)
    assert found.bands.shape == (DEFAULT.bands,)
    assert len(found.exact) == signatures.EXACT_BYTES
    again = signature(text)
    assert again.exact == found.exact
    assert (again.bands == found.bands).all()


def test_a_long_text_is_hashed_as_its_shingles():
    """The blocks and the tables of powers must not show: the minima over two halves are those over
    the whole.
    """
    text = words(40_000, seed=1)  # longer than the table of powers that is kept
    data = signatures.normalize_words(" ".join(text))
    whole = signatures.shingles(data)
    assert whole.size == len(text) - DEFAULT.ngram + 1
    for at in (0, 17, 20_000, whole.size - 1):
        part = " ".join(text[at : at + DEFAULT.ngram]).encode()
        assert signatures.shingles(part).tolist() == [whole[at]]


@pytest.mark.parametrize("changed", [0.0, 0.02, 0.05, 0.1])
def test_near_copies_are_found_as_often_as_minhash_says(changed):
    found, expected, errors = [], [], []
    for seed in range(120):
        first = words(600, seed)
        chosen = np.random.default_rng(1000 + seed).random(600) < changed
        second = [
            f"x{n}" if other else word
            for n, (word, other) in enumerate(zip(first, chosen, strict=True))
        ]
        one, two = (
            set(zip(*(text[k:] for k in range(5)), strict=False)) for text in (first, second)
        )
        similarity = len(one & two) / len(one | two)
        expected.append(1 - (1 - similarity**DEFAULT.rows) ** DEFAULT.bands)
        here, there = signature(" ".join(first)), signature(" ".join(second))
        found.append((here.bands == there.bands).any())
        estimate = float(signatures.similarity(here.sketch[None], there.sketch[None])[0])
        assert abs(estimate - similarity) < 0.25
        errors.append(estimate - similarity)
    assert abs(np.mean(found) - np.mean(expected)) < 0.12
    assert abs(np.mean(errors)) < 0.02


def test_parameters_are_the_reference_ones():
    """datatrove: 5-grams, 14 bands of 8 rows; half of the pairs are found near a similarity of .72
    less a little.
    """
    minhash = MinHash()
    assert (minhash.ngram, minhash.bands, minhash.rows, minhash.minima) == (5, 14, 8, 112)
    shares_a_band = 1 - (1 - minhash.threshold**minhash.rows) ** minhash.bands
    assert shares_a_band == pytest.approx(0.5)
    assert 0.65 < minhash.threshold < 0.75
    other = signature("one two three four five six", MinHash(3, 2, 2))
    assert (other.bands.size, other.sketch.size) == (3, signatures.SKETCH_BYTES)
    assert signature("one two", None).bands is None


@given(
    st.text(max_size=80)
    | st.text(alphabet="aZ9_ .-–’é日กि́ั\u200d\x85\u2028", max_size=80)
    | st.text(alphabet="aΑΣσÉéİıẞǅⒶK日ก \u0307\u0301.·'\U00010400\ud800", max_size=80),
    st.sampled_from([0, 40]),
    st.sampled_from([0, 8]),
)
def test_the_quick_ways_give_the_words_of_the_definition(text, many, capitals):
    lowered = [
        letter for letter in unicodedata.normalize("NFC", text).lower() if letter not in IGNORABLE
    ]
    of_words = "".join(letter if letter.isalnum() or is_mark(letter) else " " for letter in lowered)
    slow = " ".join(UNSPACED_LETTER.sub(r" \g<0> ", of_words).split())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(signatures, "_MANY_SIGNS", many)
        patch.setattr(signatures, "_MANY_CAPITALS", capitals)
        assert signatures.normalize_words(text) == slow.encode("utf-8", "surrogatepass")


def test_scripts_without_blanks_have_words():
    assert signatures.normalize_words("日本語です。Tokyo 東京!").decode().split() == [
        *"日本語です",
        "tokyo",
        *"東京",
    ]
    same, other = (
        signature("我们今天去公园看花看水看人" * 3),
        signature("他们昨天在学校读书写字听课" * 3),
    )
    assert not (same.bands == other.bands).any()


@given(st.text(alphabet="ab .", max_size=60), st.integers(1, 4))
def test_ngrams_against_brute_force(text, length):
    words = signatures.normalize_words(text).decode().split()
    run = signatures.WordSequence(signatures.normalize_words(text))
    hashes = run.ngrams(length).tolist()
    grams = [tuple(words[at : at + length]) for at in range(len(words) - length + 1)]
    assert run.count == len(words)
    assert len(hashes) == len(grams)
    assert len(set(hashes)) == len(set(grams))
    assert all(
        (hashes[a] == hashes[b]) == (grams[a] == grams[b])
        for a in range(len(grams))
        for b in range(len(grams))
    )


@given(st.lists(st.integers(0, 6), max_size=40), st.data())
def test_repeated_against_brute_force(values, data):
    alive = np.array(
        data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values))), dtype=bool
    )
    later, first = search.later_occurrences(np.array(values, dtype=np.uint64), alive)
    expected = {}
    for at, value in enumerate(values):
        if alive[at]:
            before = [other for other in range(at) if alive[other] and values[other] == value]
            if before:
                expected[at] = before[0]
    assert dict(zip(later.tolist(), first.tolist(), strict=True)) == expected


def test_both_halves_of_the_exact_hash_count():
    high = np.array([7, 7, 7, 8, 7], dtype=np.uint64)
    low = np.array([1, 2, 1, 1, 2], dtype=np.uint64)
    later, first = search.exact_duplicates(high, low, np.array([True] * 5))
    assert dict(zip(later.tolist(), first.tolist(), strict=True)) == {2: 0, 4: 1}


LINKS = st.integers(1, 30).flatmap(
    lambda n: st.tuples(
        st.just(n), st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)))
    )
)


@given(LINKS)
def test_groups_against_brute_force(graph):
    count, links = graph
    label = list(range(count))
    for _ in range(count):
        for a, b in links:
            label[a] = label[b] = min(label[a], label[b])
    # a band per link, whose values are different but for its two documents
    bands = [np.arange(count, dtype=np.uint64) for _ in links] or [
        np.arange(count, dtype=np.uint64)
    ]
    for band, (left, right) in zip(bands, links, strict=False):
        band[left] = band[right]
    found = search.component_duplicates(bands, np.ones(count, dtype=bool))
    assert found.tolist() == label


BANDED = st.integers(1, 4).flatmap(
    lambda bands: st.lists(
        st.lists(st.integers(0, 4), min_size=bands, max_size=bands), min_size=1, max_size=24
    )
)


@given(BANDED, st.integers(0, 5), st.data())
def test_who_goes_is_like_one_that_stays(rows, salt, data):
    """Against the plain rule: in their order, each goes if an earlier one that stays shares a band
    and is similar enough.
    """
    table = np.array(rows, dtype=np.uint64)
    count, bands = table.shape
    alive = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)), dtype=bool)
    places = np.arange(signatures.SKETCH_BYTES)
    sketches = (
        random_keys.fold_in(salt, np.arange(count)[:, None] // 3, places) % np.uint64(2)
    ).astype(np.uint8)
    expected = list(range(count))
    for at in range(count):
        for before in range(at):
            if (
                alive[at]
                and alive[before]
                and expected[before] == before
                and (table[at] == table[before]).any()
                and signatures.similarity(sketches[at][None], sketches[before][None])[0] >= 0.6
            ):
                expected[at] = before
                break
    words = [f"{at // 3}" for at in range(count)]
    compare = search.Comparison(
        lambda which: sketches[which], lambda which: [words[at] for at in which], 0.6
    )
    found = search.verified_duplicates(lambda band: table[:, band].copy(), bands, alive, compare)
    assert (found == np.arange(count)).tolist() == [of == at for at, of in enumerate(expected)]
    for at, of in enumerate(found.tolist()):
        if of != at:  # of several that stay, any may be named
            assert of < at
            assert found[of] == of
            assert (table[at] == table[of]).any()
            assert signatures.similarity(sketches[at][None], sketches[of][None])[0] >= 0.6
