"""Rows of text that runs on: nothing is lost, nothing is joined that must not be, and packed rows
say where sequences begin.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.pipeline.dataset.config import ExampleConfig
from cloze.pipeline.dataset.pairings.continuous import (
    best_fit,
    cut_sentences,
    document,
    full,
    packed,
)
from cloze.pipeline.dataset.pairings.segments import Segments, TokenizedDocuments
from cloze.pipeline.dataset.rows import RowBlock, assemble
from tests.pipeline.dataset.pairings.documents import FIRST_TOKEN, SPECIAL, make_documents
from tests.pipeline.dataset.pairings.documents import corpora as any_corpora

# Sentences and documents that are short for the rows meet every border.
small = st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=5), min_size=2, max_size=12)
corpora = st.one_of(small, any_corpora)
configs = st.builds(
    ExampleConfig,
    length=st.one_of(st.integers(8, 30), st.integers(8, 140)),
    short_seq_prob=st.sampled_from([0.0, 0.1, 1.0]),
    seed=st.integers(0, 2**64 - 1),
)


def rows_of(
    documents: TokenizedDocuments, segments: Segments, seed: int = 0
) -> tuple[RowBlock, list[list[int]]]:
    """The assembled block, and its rows in the order of their text."""
    block = assemble(documents, segments, seed, SPECIAL)
    rows = [
        block.ids.values[a:b].tolist()
        for a, b in zip(block.ids.offsets, block.ids.offsets[1:], strict=False)
    ]
    return block, sorted(rows, key=lambda row: min(token for token in row if token >= FIRST_TOKEN))


def document_of(documents: TokenizedDocuments, token: int) -> int:
    borders = documents.sentence_offsets[documents.document_offsets]
    return int(np.searchsorted(borders, token - FIRST_TOKEN, side="right") - 1)


@settings(max_examples=100, deadline=None)
@given(sizes=corpora, config=configs)
def test_full_sentences(sizes, config):
    documents = make_documents(sizes)
    block, rows = rows_of(documents, full(documents, config))
    assert block.lengths.max() <= config.length
    stream = [token for row in rows for token in row if token >= FIRST_TOKEN]
    assert stream == documents.tokens.tolist()  # all of the text, in order, once
    for row in rows:
        assert row[0] == SPECIAL.cls
        assert row[-1] == SPECIAL.sep
        for left, right in zip(row[1:-1], row[2:-1], strict=False):
            if SPECIAL.sep not in (
                left,
                right,
            ):  # neighbours in a row are neighbours in one document
                assert right == left + 1
                assert document_of(documents, left) == document_of(documents, right)
        assert row.count(SPECIAL.sep) == len(
            {document_of(documents, token) for token in row if token >= FIRST_TOKEN}
        )
        assert row.count(SPECIAL.cls) == 1


@settings(max_examples=60, deadline=None)
@given(sizes=corpora, length=st.integers(8, 140))
def test_full_sentences_are_as_full_as_sentences_allow(sizes, length):
    documents = make_documents(sizes)
    _, rows = rows_of(
        documents, full(documents, ExampleConfig(length=length, short_seq_prob=0, seed=0))
    )
    cut = cut_sentences(documents, length - 2)
    sentence_at = dict(
        zip(cut.sentence_offsets[:-1].tolist(), np.diff(cut.sentence_offsets).tolist(), strict=True)
    )
    for row, following in zip(rows, rows[1:], strict=False):
        first = (
            following[1] - FIRST_TOKEN
        )  # a row begins with a sentence, which did not fit in the row before
        joint = document_of(documents, row[-2]) != document_of(documents, following[1])
        assert len(row) + joint + sentence_at[first] > length


@settings(max_examples=100, deadline=None)
@given(sizes=corpora, config=configs)
def test_document_rows_never_cross_documents(sizes, config):
    documents = make_documents(sizes)
    block, rows = rows_of(documents, document(documents, config))
    assert [token for row in rows for token in row[1:-1]] == documents.tokens.tolist()
    for row in rows:
        assert (row[0], row[-1]) == (SPECIAL.cls, SPECIAL.sep)
        assert row[1:-1] == list(range(row[1], row[-2] + 1))
        assert document_of(documents, row[1]) == document_of(documents, row[-2])
    np.testing.assert_array_equal(block.segment_start, block.lengths)
    assert block.lengths.max() <= config.length


@settings(max_examples=100, deadline=None)
@given(sizes=corpora, config=configs)
def test_packed_rows_and_their_boundaries(sizes, config):
    documents = make_documents(sizes)
    block, rows = rows_of(documents, packed(documents, config))
    assert (
        sorted(token for row in rows for token in row if token >= FIRST_TOKEN)
        == documents.tokens.tolist()
    )
    assert block.lengths.max() <= config.length
    assert "boundaries" in block.columns
    assert block.columns["boundaries"].values.dtype == np.uint16
    for row in range(len(block)):
        ids = block.ids.values[block.ids.offsets[row] : block.ids.offsets[row + 1]]
        starts = (
            block.columns["boundaries"]
            .values[
                block.columns["boundaries"].offsets[row] : block.columns["boundaries"].offsets[
                    row + 1
                ]
            ]
            .tolist()
        )
        assert starts == np.flatnonzero(ids == SPECIAL.cls).tolist()
        assert starts[0] == 0
        for low, high in zip(starts, [*starts[1:], len(ids)], strict=True):
            text = ids[low + 1 : high - 1].tolist()
            assert ids[high - 1] == SPECIAL.sep
            assert text == list(range(text[0], text[0] + len(text)))
            assert document_of(documents, text[0]) == document_of(documents, text[-1])
    low, high = np.split(np.arange(len(block)), [len(block) // 2])
    joined = RowBlock.concatenate([block.take(high), block.take(low)])
    joined = joined.take(np.argsort(joined.rank))
    assert "boundaries" in joined.columns
    np.testing.assert_array_equal(
        joined.columns["boundaries"].values, block.columns["boundaries"].values
    )
    np.testing.assert_array_equal(
        joined.columns["boundaries"].offsets, block.columns["boundaries"].offsets
    )


def test_packing_fills_rows():
    sizes = [[7 + (i * j) % 23 for j in range(1 + i % 9)] for i in range(300)]
    documents = make_documents(sizes)
    segments = packed(documents, ExampleConfig(length=128, short_seq_prob=0, seed=0))
    block = assemble(documents, segments, 0, SPECIAL)
    assert len(block.ids.values) / (len(block) * 128) > 0.9


def reference_best_fit(sizes: list[int], room: int) -> list[int]:
    """The rule by its words: the longest first, into the fullest bin that has room."""
    left: list[int] = []
    bins = [0] * len(sizes)
    for item in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        fitting = [b for b in range(len(left)) if left[b] >= sizes[item]]
        if fitting:
            found = min(fitting, key=lambda b: left[b])
        else:
            found = len(left)
            left.append(room)
        left[found] -= sizes[item]
        bins[item] = found
    return bins


@settings(max_examples=100, deadline=None)
@given(sizes=st.lists(st.integers(3, 64), max_size=60))
def test_best_fit(sizes):
    bins = best_fit(np.array(sizes, np.int64), 64)
    loads = np.bincount(bins, weights=sizes) if sizes else np.zeros(0)
    assert (loads <= 64).all()
    expected = reference_best_fit(sizes, 64)
    assert sorted(loads.tolist()) == sorted(
        np.bincount(expected, weights=sizes).tolist() if sizes else []
    )


@settings(max_examples=100, deadline=None)
@given(sizes=corpora, room=st.integers(5, 80))
def test_cut_sentences_lose_nothing_and_keep_the_rest(sizes, room):
    documents = make_documents(sizes)
    cut = cut_sentences(documents, room)
    lengths = np.diff(cut.sentence_offsets)
    assert lengths.max() <= room
    assert lengths.sum() == len(documents.tokens)
    assert set(documents.sentence_offsets.tolist()) <= set(cut.sentence_offsets.tolist())
    for number, sentences in enumerate(sizes):
        index = cut.sentence_index[cut.document_offsets[number] : cut.document_offsets[number + 1]]
        assert index.tolist() == list(range(sum(-(-size // room) for size in sentences)))


def test_a_sentence_of_many_rows_has_rows_with_sources_of_their_own():
    documents = make_documents([[5, 1000, 5]])
    for pairing in (full, document, packed):
        segments = pairing(documents, ExampleConfig(length=128, short_seq_prob=0, seed=0))
        assert len(segments) > 7
        assert len(set(segments.offset.tolist())) == len(segments)
        block = assemble(documents, segments, 0, SPECIAL)
        assert len(np.unique(block.rank)) == len(block)
