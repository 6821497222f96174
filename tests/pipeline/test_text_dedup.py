"""Copies: signatures against the theory, the union of links against brute force, and who stays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.text import dedup
from pipeline.text.dedup import BANDS, ROWS, components, copies, signature


def words(count, seed):
    return [f"w{number}" for number in np.random.default_rng(seed).integers(0, 5000, count)]


def test_exact_signature_is_blind_to_case_and_punctuation_alone():
    assert signature("The cat, it sat!").exact == signature("the CAT it  sat").exact
    assert signature("The cat it sat").exact != signature("The cat it set").exact
    assert signature("ab c").exact != signature("a bc").exact


@given(st.text(max_size=60))
def test_any_text_has_a_signature(text):
    found = signature(text)
    assert found.bands.shape == (BANDS,)
    assert len(found.exact) == dedup.EXACT_BYTES
    again = signature(text)
    assert again.exact == found.exact
    assert (again.bands == found.bands).all()


def test_a_long_text_is_hashed_as_its_shingles():
    """The blocks and the tables of powers must not show: the minima over two halves are those over the whole."""
    text = words(40_000, seed=1)  # longer than the table of powers that is kept
    data = dedup.normal(" ".join(text)).encode()
    whole = dedup._shingles(data)
    assert whole.size == len(text) - dedup.SHINGLE + 1
    for at in (0, 17, 20_000, whole.size - 1):
        part = " ".join(text[at : at + dedup.SHINGLE]).encode()
        assert dedup._shingles(part).tolist() == [whole[at]]


@pytest.mark.parametrize("changed", [0.0, 0.02, 0.05, 0.1])
def test_near_copies_are_found_as_often_as_minhash_says(changed):
    found, expected = [], []
    for seed in range(120):
        first = words(600, seed)
        chosen = np.random.default_rng(1000 + seed).random(600) < changed
        second = [f"x{n}" if other else word for n, (word, other) in enumerate(zip(first, chosen, strict=True))]
        one, two = (set(zip(*(text[k:] for k in range(5)), strict=False)) for text in (first, second))
        similarity = len(one & two) / len(one | two)
        expected.append(1 - (1 - similarity**ROWS) ** BANDS)
        found.append((signature(" ".join(first)).bands == signature(" ".join(second)).bands).any())
    assert abs(np.mean(found) - np.mean(expected)) < 0.12


@given(
    st.integers(1, 30).flatmap(
        lambda n: st.tuples(st.just(n), st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1))))
    )
)
def test_components_against_brute_force(graph):
    count, links = graph
    label = list(range(count))
    for _ in range(count):
        for a, b in links:
            label[a] = label[b] = min(label[a], label[b])
    left, right = np.array(links, dtype=np.int64).reshape(-1, 2).T
    assert components(count, left, right).tolist() == label


def _void(*texts):
    return np.frombuffer(b"".join(text.ljust(16).encode() for text in texts), dtype=np.dtype((np.void, 16)))


def test_who_stays():
    """0 and 1 are exact copies; 1 and 2, 2 and 3 near ones, 3 and 0 not; 4 is alone."""
    bands = np.arange(5 * BANDS, dtype=np.uint64).reshape(5, BANDS)
    bands[1] = bands[0]
    bands[2, 3] = bands[1, 3]
    bands[3, 5] = bands[2, 5]
    exact = _void("a", "a", "b", "c", "d")
    for rank, stays in (([0, 1, 2, 3, 4], 0), ([1, 0, 2, 3, 4], 1), ([4, 3, 2, 0, 1], 3), ([3, 4, 0, 1, 2], 2)):
        exactly, nearly = copies(exact, bands, np.array(rank))
        assert np.flatnonzero(~(exactly | nearly)).tolist() == sorted([stays, 4])
        assert exactly.sum() == 1
        assert not (exactly & nearly).any()
    exactly, nearly = copies(exact, None, np.arange(5))
    assert (exactly.tolist(), nearly.any()) == ([False, True, False, False, False], False)


@given(st.permutations(range(6)))
def test_the_order_of_documents_does_not_matter(order):
    texts = ["a b c d e f g", "a b c d e f g h", "x y z u v w", "X, y z u v w", "q q q q q q", "a b c d e f g"]
    rank = np.array([2, 0, 1, 3, 4, 5])
    signatures = [signature(text) for text in texts]
    exact = np.frombuffer(b"".join(s.exact for s in signatures), dtype=np.dtype((np.void, 16)))
    bands = np.stack([s.bands for s in signatures])
    picked = list(order)
    whole = [mask.tolist() for mask in copies(exact, bands, rank)]
    mixed = [mask.tolist() for mask in copies(exact[picked], bands[picked], rank[picked])]
    assert mixed == [[mask[at] for at in picked] for mask in whole]
