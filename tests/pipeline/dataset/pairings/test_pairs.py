"""Next-sentence pairs: the reference program's rules, on documents whose every token is a different
number.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.core import random_keys
from cloze.pipeline.dataset.config import ExampleConfig
from cloze.pipeline.dataset.masking.candidates import row_keys
from cloze.pipeline.dataset.pairings.continuous import cut_sentences
from cloze.pipeline.dataset.pairings.segments import (
    NO_LABEL,
    USE_COIN,
    USE_DOCUMENT,
    USE_MIDDLE,
    USE_START,
    TokenizedDocuments,
    sentence_keys,
    target_lengths,
    truncate_pairs,
)
from cloze.pipeline.dataset.pairings.sentence_pairs import NEXT, RANDOM, next_sentence
from cloze.pipeline.dataset.rows import RowBlock, assemble
from tests.pipeline.dataset.pairings.documents import (
    SPECIAL,
    columns,
    corpora,
    make_documents,
    own_text,
    sentence,
    tokens_in,
)


@settings(max_examples=150, deadline=None)
@given(
    sizes=corpora,
    seed=st.integers(0, 2**64 - 1),
    length=st.integers(8, 140),
    short=st.sampled_from([0.0, 0.1, 1.0]),
)
def test_what_pairs_promise(sizes, seed, length, short):
    documents = make_documents(sizes)
    config = ExampleConfig(length=length, short_seq_prob=short, seed=seed)
    segments = next_sentence(documents, config)
    borders = documents.sentence_offsets
    document_tokens = borders[documents.document_offsets]
    starts, lengths = columns(segments)
    ends = starts + lengths
    assert (lengths.sum(axis=1) <= config.max_tokens).all()
    assert (lengths[:, 0] >= 1).all()
    home = np.searchsorted(document_tokens, starts, side="right") - 1
    assert (home[:, 0] == segments.document).all()
    assert (ends[:, 0] <= document_tokens[home[:, 0] + 1]).all()
    for row, label in enumerate(segments.pair_label.tolist()):
        if label == NO_LABEL:
            assert lengths[row, 1] == 0
            assert len(sizes) == 1
            continue
        assert lengths[row, 1] >= 1
        assert ends[row, 1] <= document_tokens[home[row, 1] + 1]
        if label == RANDOM:
            assert home[row, 1] != home[row, 0]
        else:
            assert home[row, 1] == home[row, 0]
            assert ends[row, 0] <= starts[row, 1]
    # Every token of every document is in a row's own text, or was truncated from a full row.
    begins, extents = own_text(documents, segments, config.max_tokens)
    assert extents.sum() == borders[-1]
    is_own = segments.pair_label != RANDOM
    assert (lengths.sum(axis=1)[is_own] == np.minimum(extents, config.max_tokens)[is_own]).all()
    assert (starts[:, 0] >= begins).all()
    assert (ends[:, 0] <= begins + extents).all()
    assert (ends[is_own, 1] <= (begins + extents)[is_own]).all()
    full = is_own | (lengths.sum(axis=1) == config.max_tokens)
    assert (lengths[~full, 0] == extents[~full]).all()
    # Rows' own sentences follow each other without gap: the first begins a document, offsets rise.
    for document in range(len(sizes)):
        offsets = segments.offset[segments.document == document]
        assert offsets[0] == 0
        assert (np.diff(offsets) > 0).all()


def reference_program(
    documents: TokenizedDocuments, config: ExampleConfig
) -> list[tuple[list[int], list[int], int]]:
    """`create_instances_from_document`, written out over lists of tokens, before truncation; our
    numbers for its dice.
    """
    cut = documents.sentence_offsets.tolist()
    sentences = [documents.tokens[a:b].tolist() for a, b in zip(cut, cut[1:], strict=False)]
    bounds = documents.document_offsets.tolist()
    texts = [sentences[a:b] for a, b in zip(bounds, bounds[1:], strict=False)]
    targets = target_lengths(documents, config, config.max_tokens).tolist()
    instances = []
    for number, document in enumerate(texts):
        chunk, size, i = [], 0, 0
        while i < len(document):
            chunk.append(document[i])
            size += len(document[i])
            if i == len(document) - 1 or size >= targets[number]:
                begin = i + 1 - len(chunk)
                row = row_keys(config.seed, documents.keys[number], begin)
                draw = {
                    use: float(random_keys.uniform(random_keys.fold_in(row, use)))
                    for use in (USE_MIDDLE, USE_COIN, USE_DOCUMENT, USE_START)
                }
                a_end = 1 + int(draw[USE_MIDDLE] * (len(chunk) - 1)) if len(chunk) >= 2 else 1
                a = [token for part in chunk[:a_end] for token in part]
                if len(chunk) == 1 or draw[USE_COIN] < 0.5:
                    others = [text for other, text in enumerate(texts) if other != number]
                    other = others[int(draw[USE_DOCUMENT] * len(others))]
                    b = []
                    for j in range(int(draw[USE_START] * len(other)), len(other)):
                        b += other[j]
                        if len(b) >= targets[number] - len(a):
                            break
                    instances.append((a, b, RANDOM))
                    i -= len(chunk) - a_end
                else:
                    instances.append((a, [token for part in chunk[a_end:] for token in part], NEXT))
                chunk, size = [], 0
            i += 1
    return instances


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.lists(sentence, min_size=1, max_size=30), min_size=2, max_size=6),
    seed=st.integers(0, 2**64 - 1),
)
def test_rows_are_those_of_the_reference_program(sizes, seed):
    documents = make_documents(sizes, seed)
    config = ExampleConfig(length=64, short_seq_prob=0.3, seed=seed)
    segments = next_sentence(documents, config)
    expected = reference_program(cut_sentences(documents, config.max_tokens, 2), config)
    starts, lengths = columns(segments)
    assert segments.pair_label.tolist() == [label for _, _, label in expected]
    for row, (a, b, _) in enumerate(expected):
        first, second = (
            documents.tokens[s : s + n].tolist()
            for s, n in zip(starts[row], lengths[row], strict=True)
        )
        assert "".join(map(chr, first)) in "".join(map(chr, a))  # a contiguous part
        assert "".join(map(chr, second)) in "".join(map(chr, b))
        assert len(first) + len(second) == min(len(a) + len(b), config.max_tokens)


@settings(max_examples=200, deadline=None)
@given(
    a=st.integers(1, 400),
    b=st.integers(0, 400),
    room=st.integers(5, 200),
    key=st.integers(0, 2**64 - 1),
)
def test_truncation_takes_from_the_longer_one(a, b, room, key):
    starts, lengths = truncate_pairs(
        np.array([[0, 1000]]), np.array([[a, b]]), room, np.array([key], np.uint64)
    )
    left = [a, b]
    while sum(left) > room:
        left[0 if left[0] > left[1] else 1] -= 1
    assert lengths.tolist() == [left]
    assert 0 <= starts[0, 0] <= a - left[0]
    assert 1000 <= starts[0, 1] <= 1000 + b - left[1]


def test_truncation_is_a_fair_coin_a_token():
    rows = 4000
    lengths = np.tile(np.array([[180, 40]]), (rows, 1))
    starts, _ = truncate_pairs(
        np.zeros_like(lengths), lengths, 100, random_keys.fold_in(3, np.arange(rows))
    )
    heads = starts[:, 0]  # of 180 + 40 - 100 = 120 tosses
    assert abs(heads.mean() - 60) < 5 * (30 / rows) ** 0.5
    assert abs(heads.var() - 30) < 5 * 30 * (2 / rows) ** 0.5


def test_shares_of_random_pairs_and_short_documents():
    sizes = [[5 + (7 * i + 3 * j) % 40 for j in range(120)] for i in range(300)]
    documents = make_documents(sizes)
    config = ExampleConfig(length=128, short_seq_prob=0.1, seed=1)
    label = next_sentence(documents, config).pair_label
    assert 0.49 < (label == RANDOM).mean() < 0.56
    targets = target_lengths(documents, config, config.max_tokens)
    assert 0.05 < (targets < 125).mean() < 0.16
    assert targets.min() >= 2
    assert targets.max() == 125


def test_random_text_comes_from_every_other_document():
    documents = make_documents([[40] * 200 for _ in range(5)])
    segments = next_sentence(documents, ExampleConfig(length=64, short_seq_prob=0, seed=5))
    home = (
        np.searchsorted(
            documents.sentence_offsets[documents.document_offsets],
            columns(segments)[0],
            side="right",
        )
        - 1
    )
    random = segments.pair_label == RANDOM
    pairs = set(zip(home[random, 0].tolist(), home[random, 1].tolist(), strict=True))
    assert pairs == {(a, b) for a in range(5) for b in range(5) if a != b}


def test_one_long_sentence_is_not_dropped():
    documents = make_documents([[700], [3, 4]])
    segments = next_sentence(documents, ExampleConfig(length=128, short_seq_prob=0, seed=0))
    assert len(tokens_in(documents, segments)) > 680
    assert {NEXT, RANDOM} == set(segments.pair_label.tolist())


def test_without_another_document_rows_are_contiguous():
    documents = make_documents([[300, 20, 30, 25, 60, 90, 11, 400]])
    segments = next_sentence(documents, ExampleConfig(length=100, short_seq_prob=0, seed=0))
    assert set(segments.pair_label.tolist()) == {NEXT, NO_LABEL}
    block = assemble(documents, segments, 0, SPECIAL)
    single = np.flatnonzero(block.pair_label == NO_LABEL)
    for row in single:
        ids = block.ids.values[block.ids.offsets[row] : block.ids.offsets[row + 1]]
        assert block.segment_start[row] == len(ids)
        assert (ids == SPECIAL.sep).sum() == 1


def test_rows_are_laid_out_as_bert_reads_them():
    documents = make_documents([[9, 12, 30], [14, 8, 41, 5]])
    segments = next_sentence(documents, ExampleConfig(length=40, short_seq_prob=0, seed=2))
    block = assemble(documents, segments, 2, SPECIAL)
    starts, lengths = columns(segments)
    assert (np.diff(block.rank.astype(object)) > 0).all()
    by_place = {
        (int(documents.keys[d]), int(o)): i
        for i, (d, o) in enumerate(zip(segments.document, segments.offset, strict=True))
    }
    for row in range(len(block)):
        source = by_place[int(block.document[row]), int(block.offset[row])]
        a, b = (
            documents.tokens[s : s + n].tolist()
            for s, n in zip(starts[source], lengths[source], strict=True)
        )
        ids = block.ids.values[block.ids.offsets[row] : block.ids.offsets[row + 1]].tolist()
        assert ids == [SPECIAL.cls, *a, SPECIAL.sep, *b, SPECIAL.sep]
        assert block.segment_start[row] == len(a) + 2
        assert len(ids) <= 40
        assert block.pair_label[row] == segments.pair_label[source]


@settings(max_examples=30, deadline=None)
@given(sizes=corpora, data=st.data())
def test_blocks_of_rows_can_be_cut_and_joined(sizes, data):
    documents = make_documents(sizes)
    segments = next_sentence(documents, ExampleConfig(length=32, short_seq_prob=0.1, seed=9))
    block = assemble(documents, segments, 9, SPECIAL)
    cut = data.draw(st.integers(0, len(block)))
    low, high = np.split(np.arange(len(block)), [cut])
    joined = RowBlock.concatenate([block.take(high), block.take(low)])
    joined = joined.take(np.argsort(joined.rank))
    assert joined.to_arrow() == block.to_arrow()


def test_no_documents_give_no_rows():
    documents = make_documents([])
    segments = next_sentence(documents, ExampleConfig(length=32, short_seq_prob=0.1, seed=9))
    assert len(assemble(documents, segments, 9, SPECIAL)) == 0


@pytest.mark.parametrize("seed", [0, 1, 2**63])
def test_the_seed_changes_the_pairs_and_nothing_else_does(seed):
    documents = make_documents([[10, 20, 15] * 10, [30, 8] * 12])
    config = ExampleConfig(length=64, short_seq_prob=0.1, seed=seed)
    again, other = (
        next_sentence(documents, config),
        next_sentence(documents, ExampleConfig(length=64, short_seq_prob=0.1, seed=seed + 1)),
    )
    np.testing.assert_array_equal(next_sentence(documents, config).starts, again.starts)
    assert again.starts.tolist() != other.starts.tolist()
    assert len(set(sentence_keys(documents, seed).tolist())) == len(documents.sentence_index)
