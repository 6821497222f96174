"""Sentence order, ELECTRA's rows, and pairs without labels: on documents whose every token is a
different number.
"""

from __future__ import annotations

from pkgutil import resolve_name

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.core import random_keys
from cloze.pipeline.dataset.config import ExampleConfig
from cloze.pipeline.dataset.pairings.continuous import cut_sentences
from cloze.pipeline.dataset.pairings.registry import PAIRINGS, NspOptions
from cloze.pipeline.dataset.pairings.segments import (
    NO_LABEL,
    USE_COIN,
    USE_DOCUMENT,
    USE_SHORT,
    USE_SINGLE,
    USE_START,
    USE_TARGET,
    Segments,
    TokenizedDocuments,
    sentence_keys,
)
from cloze.pipeline.dataset.pairings.sentence_pairs import (
    IN_ORDER,
    NEXT,
    RANDOM,
    SHORTEST,
    SWAPPED,
    electra,
    next_sentence,
    segment_pairs,
    sentence_order,
    sentence_pairs,
)
from cloze.pipeline.dataset.rows import assemble
from cloze.pipeline.tokenizer.special import SpecialTokens
from tests.pipeline.dataset.pairings.documents import (
    FIRST_TOKEN,
    columns,
    corpora,
    make_documents,
    own_text,
    tokens_in,
)

SPECIAL = SpecialTokens(pad=0, unk=1, cls=2, sep=3, mask=4)


def texts_of(documents: TokenizedDocuments, segments: Segments, row: int) -> list[list[int]]:
    """The pieces of a row as lists of tokens."""
    low, high = segments.range_offsets[row], segments.range_offsets[row + 1]
    return [
        documents.tokens[s : s + n].tolist()
        for s, n in zip(segments.starts[low:high], segments.lengths[low:high], strict=True)
    ]


@settings(max_examples=120, deadline=None)
@given(
    pairing=st.sampled_from(sorted(PAIRINGS)),
    sizes=corpora,
    seed=st.integers(0, 2**64 - 1),
    length=st.integers(8, 140),
    short=st.sampled_from([0.0, 0.1, 1.0]),
)
def test_every_token_is_accounted_for(pairing, sizes, seed, length, short):
    """A row is the text up to the next row, or what fits of it; rows fit, no two share a source, and
    no token stands in two rows as their own text.
    """
    documents = make_documents(sizes)
    config = ExampleConfig(length=length, short_seq_prob=short, seed=seed)
    segments: Segments = resolve_name(PAIRINGS[pairing].function)(documents, config)
    has_random = PAIRINGS[pairing].options is NspOptions
    if PAIRINGS[pairing].options is None:
        assert len(tokens_in(documents, segments)) == len(documents.tokens)
    elif pairing != "electra":
        lengths = columns(segments)[1].sum(axis=1)
        extents = own_text(documents, segments, config.max_tokens)[1]
        assert extents.sum() == len(documents.tokens)
        assert has_random or (lengths == np.minimum(extents, config.max_tokens)).all()
    assert segments.lengths.min() >= 1
    assert len(set(zip(segments.document.tolist(), segments.offset.tolist(), strict=True))) == len(
        segments
    )
    assert segments.packed == PAIRINGS[pairing].packed
    block = assemble(documents, segments, seed, SPECIAL)
    assert block.lengths.max() <= length
    assert (block.pair_label != NO_LABEL).any() <= (PAIRINGS[pairing].task is not None)
    own = np.concatenate(
        [
            np.array(piece)
            for row in range(len(segments))
            for piece in texts_of(documents, segments, row)
        ]
    )
    if not has_random:
        assert len(np.unique(own)) == len(own)
    # The order of tokens within each piece is that of the text.
    for row in range(min(len(segments), 20)):
        for piece in texts_of(documents, segments, row):
            assert piece == list(range(piece[0], piece[0] + len(piece)))


@settings(max_examples=100, deadline=None)
@given(sizes=corpora, seed=st.integers(0, 2**64 - 1), length=st.integers(8, 140))
def test_sentence_order_is_pure(sizes, seed, length):
    documents = make_documents(sizes)
    segments = sentence_order(
        documents, ExampleConfig(length=length, short_seq_prob=0.1, seed=seed)
    )
    starts, lengths = columns(segments)
    truncated = own_text(documents, segments, length - 3)[1] - lengths.sum(axis=1)
    borders = documents.sentence_offsets[documents.document_offsets]
    home = np.searchsorted(borders, starts, side="right") - 1
    for row, label in enumerate(segments.pair_label.tolist()):
        if label == NO_LABEL:
            assert lengths[row, 1] == 0
            continue
        assert lengths[row].min() >= 1
        assert home[row, 0] == home[row, 1] == segments.document[row]
        first, second = (0, 1) if label == IN_ORDER else (1, 0)
        end = starts[row, first] + lengths[row, first]
        gap = starts[row, second] - end
        assert gap >= 0  # in the text, the first one stands first …
        assert gap <= truncated[row]  # … with nothing between them but what truncation took


def test_half_of_the_orders_are_swapped_and_single_sentences_have_no_label():
    documents = make_documents([[12 + (5 * i + j) % 30 for j in range(60)] for i in range(120)])
    label = sentence_order(
        documents, ExampleConfig(length=128, short_seq_prob=0.1, seed=3)
    ).pair_label
    labelled = label[label != NO_LABEL]
    assert abs((labelled == SWAPPED).mean() - 0.5) < 5 * 0.5 / len(labelled) ** 0.5
    never = sentence_order(
        documents, ExampleConfig(length=128, short_seq_prob=0.1, seed=3, swap_prob=0.0)
    )
    assert set(never.pair_label.tolist()) <= {IN_ORDER, NO_LABEL}
    documents = make_documents([[50], [200]])
    alone = sentence_order(documents, ExampleConfig(length=64, short_seq_prob=0, seed=0))
    # a sentence longer than a row is cut, so its pieces have an order
    assert (alone.pair_label == NO_LABEL).tolist() == [True, False, False, False, True]
    assert len(tokens_in(documents, alone)) == 250


def test_pairs_without_labels_are_the_same_rows():
    documents = make_documents([[10, 20, 15] * 10, [30, 8] * 12])
    config = ExampleConfig(length=64, short_seq_prob=0.1, seed=1)
    with_labels, without = next_sentence(documents, config), segment_pairs(documents, config)
    np.testing.assert_array_equal(with_labels.starts, without.starts)
    assert set(without.pair_label.tolist()) == {NO_LABEL}
    block = assemble(documents, without, 1, SPECIAL)
    assert (block.segment_start < block.lengths).all()  # two segments still


def sentence_by_sentence(
    documents: TokenizedDocuments, config: ExampleConfig
) -> list[tuple[int, int | None, int]]:
    """Numbers of the sentences A and B and the label of each row, by the words of the paper."""
    row_key = sentence_keys(documents, config.seed)
    draw = {
        use: random_keys.uniform(random_keys.fold_in(row_key, use)).tolist()
        for use in (USE_COIN, USE_DOCUMENT, USE_START)
    }
    bounds = documents.document_offsets.tolist()
    texts = [list(range(low, high)) for low, high in zip(bounds, bounds[1:], strict=False)]
    pairs = []
    for number, text in enumerate(texts):
        others = [other for other in texts if other is not texts[number]]
        left = list(text)
        while left:
            a = left.pop(0)
            if others and (not left or draw[USE_COIN][a] < config.random_next_prob):
                other = others[int(draw[USE_DOCUMENT][a] * len(others))]
                pairs.append((a, other[int(draw[USE_START][a] * len(other))], RANDOM))
            elif left:
                pairs.append((a, left.pop(0), NEXT))
            else:
                pairs.append((a, None, NO_LABEL))
    return pairs


@settings(max_examples=100, deadline=None)
@given(
    sizes=corpora,
    seed=st.integers(0, 2**64 - 1),
    length=st.integers(8, 700),
    short=st.sampled_from([0.0, 0.1, 1.0]),
)
def test_sentence_pairs_are_two_natural_sentences(sizes, seed, length, short):
    documents = make_documents(sizes, seed)
    config = ExampleConfig(length=length, short_seq_prob=short, seed=seed)
    segments = sentence_pairs(documents, config)
    cut = cut_sentences(documents, config.max_tokens, 2)
    expected = sentence_by_sentence(cut, config)
    assert segments.pair_label.tolist() == [label for _, _, label in expected]
    borders = cut.sentence_offsets.tolist()
    for row, (a, b, _) in enumerate(expected):
        whole = [
            list(range(borders[each], borders[each + 1])) for each in (a, b) if each is not None
        ]
        found = [
            [token - FIRST_TOKEN for token in text] for text in texts_of(documents, segments, row)
        ]
        if sum(map(len, whole)) <= config.max_tokens:
            assert found == whole
        else:
            assert sum(map(len, found)) == config.max_tokens
            assert all(set(part) <= set(text) for part, text in zip(found, whole, strict=True))


def test_half_of_the_sentence_pairs_are_random():
    documents = make_documents([[12 + (5 * i + j) % 30 for j in range(61)] for i in range(120)])
    config = ExampleConfig(length=512, seed=3)
    label = sentence_pairs(documents, config).pair_label
    assert abs((label == RANDOM).mean() - 0.5) < 0.02
    segments = sentence_pairs(documents, config.model_copy(update={"random_next_prob": 0.0}))
    # of 61 sentences the last one is left over
    assert (segments.pair_label == RANDOM).sum() == len(documents)


def test_how_often_b_is_random_can_be_set():
    documents = make_documents([[10] * 60 for _ in range(30)])
    shares = [
        (
            next_sentence(
                documents, ExampleConfig(length=64, short_seq_prob=0, seed=1, random_next_prob=p)
            ).pair_label
            == 1
        ).mean()
        for p in (0.0, 0.2, 1.0)
    ]
    assert shares[0] < 0.15  # only chunks of one sentence
    assert shares[0] < shares[1] < 0.5
    assert shares[2] == 1.0


def example_builder(
    documents: TokenizedDocuments, config: ExampleConfig
) -> list[tuple[list[int], list[int]]]:
    """ELECTRA's `ExampleBuilder`, written out over lists, our numbers for its dice; segment B, once
    begun, is never left.
    """
    row_key = sentence_keys(documents, config.seed)
    dice = {
        use: random_keys.uniform(random_keys.fold_in(row_key, use)).tolist()
        for use in (USE_SHORT, USE_TARGET, USE_SINGLE, USE_COIN)
    }
    cut = documents.sentence_offsets.tolist()
    bounds = documents.document_offsets.tolist()
    examples = []
    for low, high in zip(bounds, bounds[1:], strict=False):
        at = low
        while at < high:
            begin, sentences, total = at, [], 0
            short = dice[USE_SHORT][begin] < config.short_seq_prob
            goal = (
                SHORTEST + int(dice[USE_TARGET][begin] * (config.length - SHORTEST + 1))
                if short
                else config.length
            )
            while at < high and total < goal:
                sentences.append(documents.tokens[cut[at] : cut[at + 1]].tolist())
                total += len(sentences[-1])
                at += 1
            half = (
                100000 if dice[USE_SINGLE][begin] < config.single_segment_prob else (goal - 3) // 2
            )
            first: list[int] = []
            second: list[int] = []
            for sentence in sentences:
                over = len(first) < half and dice[USE_COIN][begin] < 0.5
                if not first or (not second and (len(first) + len(sentence) < half or over)):
                    first += sentence
                else:
                    second += sentence
            first = first[: config.length - 2]
            examples.append((first, second[: max(0, config.length - len(first) - 3)]))
    return examples


@settings(max_examples=100, deadline=None)
@given(
    sizes=corpora,
    seed=st.integers(0, 2**64 - 1),
    length=st.integers(8, 140),
    short=st.sampled_from([0.0, 0.05, 1.0]),
)
def test_electra_rows_are_those_of_the_reference_program(sizes, seed, length, short):
    documents = make_documents(sizes, seed)
    config = ExampleConfig(length=length, short_seq_prob=short, seed=seed)
    segments = electra(documents, config)
    found = []
    for row in range(len(segments)):
        pieces = texts_of(documents, segments, row)
        found.append((pieces[0], pieces[1] if len(pieces) > 1 else []))
    assert found == example_builder(cut_sentences(documents, config.length, 2), config)


def test_one_electra_row_in_ten_is_a_single_segment():
    documents = make_documents([[8 + (3 * i + j) % 20 for j in range(200)] for i in range(60)])
    segments = electra(documents, ExampleConfig(length=128, short_seq_prob=0.05, seed=2))
    single = (np.diff(segments.range_offsets) == 1).mean()
    assert 0.07 < single < 0.15  # 10 %, and the ends of documents
    only = electra(
        documents, ExampleConfig(length=128, short_seq_prob=0, seed=2, single_segment_prob=1.0)
    )
    assert (np.diff(only.range_offsets) == 1).all()


@pytest.mark.parametrize("pairing", sorted(PAIRINGS))
def test_no_documents_give_no_rows(pairing):
    documents = make_documents([])
    segments = resolve_name(PAIRINGS[pairing].function)(
        documents, ExampleConfig(length=32, short_seq_prob=0.1, seed=9)
    )
    block = assemble(documents, segments, 9, SPECIAL)
    assert len(block) == 0
    assert ("boundaries" not in block.columns) != PAIRINGS[pairing].packed


@pytest.mark.parametrize("pairing", sorted(PAIRINGS))
def test_the_seed_is_all_that_changes_rows(pairing):
    documents = make_documents([[10, 20, 15] * 10, [30, 8] * 12])
    function = resolve_name(PAIRINGS[pairing].function)
    one, again, other = (
        assemble(
            documents,
            function(documents, ExampleConfig(length=64, short_seq_prob=0.5, seed=seed)),
            seed,
            SPECIAL,
        )
        for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(one.ids.values, again.ids.values)
    assert one.ids.values.tolist() != other.ids.values.tolist()
