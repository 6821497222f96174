"""Drawings: the same documents cut into rows anew, as google-research's duplicates are."""

from __future__ import annotations

from pkgutil import resolve_name

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.core.errors import UsageError
from cloze.pipeline.dataset.build import _counters
from cloze.pipeline.dataset.config import DatasetConfig, ExampleConfig
from cloze.pipeline.dataset.masking.candidates import row_keys
from cloze.pipeline.dataset.pairings.registry import PAIRINGS
from cloze.pipeline.dataset.pairings.segments import NO_LABEL, Segments, TokenizedDocuments
from cloze.pipeline.dataset.pairings.sentence_pairs import NEXT, RANDOM
from cloze.pipeline.dataset.rows import RowBlock, assemble
from tests.pipeline.dataset.pairings.documents import (
    SPECIAL,
    columns,
    corpora,
    make_documents,
    tokens_in,
)

PAIRED = sorted(name for name, pairing in PAIRINGS.items() if pairing.options is not None)


def drawn(documents: TokenizedDocuments, config: ExampleConfig) -> list[Segments]:
    pairing = resolve_name(PAIRINGS[config.pairing].function)
    return [pairing(documents.draw(number), config) for number in range(config.drawings)]


@settings(max_examples=60, deadline=None)
@given(
    pairing=st.sampled_from(sorted(PAIRINGS)),
    sizes=corpora,
    seed=st.integers(0, 2**64 - 1),
    length=st.integers(8, 140),
    short=st.sampled_from([0.0, 0.1, 1.0]),
    drawings=st.integers(1, 4),
)
def test_what_drawings_promise(pairing, sizes, seed, length, short, drawings):
    """All tokens are counted, rows fit, no two share a key, labels mean what they say, and the
    first drawing is the one that a dataset of a single drawing has.
    """
    documents = make_documents(sizes)
    config = ExampleConfig(
        pairing=pairing, length=length, short_seq_prob=short, seed=seed, drawings=drawings
    )
    found = drawn(documents, config)
    counts = _counters(documents, found)
    assert counts["tokens/read"] == len(documents.tokens)
    assert counts["tokens/in_rows"] == len(tokens_in(documents, *found))
    assert counts["tokens/in_rows"] + counts["tokens/truncated"] == counts["tokens/read"]
    blocks = [assemble(documents, each, seed, SPECIAL, drawings) for each in found]
    block = RowBlock.concatenate(blocks)
    text = counts["tokens/in_rows"] + counts["tokens/again"]
    heads = counts["rows/sequences"] if PAIRINGS[pairing].packed else len(block)
    assert len(block.ids.values) == text + counts["rows/sequences"] + heads
    assert block.lengths.max() <= length
    assert len(np.unique(row_keys(seed, block.document, block.offset))) == len(block)
    assert (np.diff(block.rank.astype(object)) > 0).all()  # one drawing after the other
    borders = documents.sentence_offsets[documents.document_offsets]
    for segments in found if PAIRINGS[pairing].task else []:
        starts, lengths = columns(segments)
        home = np.searchsorted(borders, starts, side="right") - 1
        is_random = (segments.pair_label == RANDOM) & (PAIRINGS[pairing].task == "nsp")
        assert (home[is_random, 0] != home[is_random, 1]).all()
        is_pair = (segments.pair_label != NO_LABEL) & ~is_random
        assert (home[is_pair, 0] == home[is_pair, 1]).all()
        follows = segments.pair_label == NEXT  # of both tasks
        assert (starts[follows, 0] + lengths[follows, 0] <= starts[follows, 1]).all()
    alone = drawn(documents, config.model_copy(update={"drawings": 1}))[0]
    np.testing.assert_array_equal(alone.starts, found[0].starts)


@pytest.mark.parametrize("pairing", PAIRED)
def test_drawings_differ(pairing):
    documents = make_documents([[10, 20, 15, 7] * 10, [30, 8] * 20, [12] * 50])
    config = ExampleConfig(pairing=pairing, length=64, seed=1, drawings=5, short_seq_prob=0.3)
    rows = [(each.starts.tolist(), each.lengths.tolist()) for each in drawn(documents, config)]
    assert all(rows[a] != rows[b] for a in range(5) for b in range(a))


@pytest.mark.parametrize("pairing", sorted(PAIRINGS))
@pytest.mark.parametrize("length", [8, 9, 64, 128])
@pytest.mark.parametrize(
    "sizes", [[[9000]], [[700], [650, 701], [2000]], [[130, 400, 250] * 5, [333] * 9, [129]]]
)
def test_sentences_longer_than_a_row_reach_rows(pairing, length, sizes):
    """Text without end marks, and of scripts in which a paragraph is a sentence."""
    documents = make_documents(sizes)
    config = ExampleConfig(pairing=pairing, length=length, seed=3, drawings=1, short_seq_prob=0)
    lost = 1 - len(tokens_in(documents, *drawn(documents, config))) / len(documents.tokens)
    # what the last piece of a sentence displaces; ELECTRA's rows fill before their special tokens
    assert lost < (0.1 + 3 / length if pairing == "electra" else 0.1)
    if pairing != "electra":
        five = config.model_copy(update={"drawings": 5})
        lost = 1 - len(tokens_in(documents, *drawn(documents, five))) / len(documents.tokens)
        assert lost < 0.03


def test_pairings_without_pairs_have_one_drawing_of_all_masks():
    for recipe, masks in (("bert", 10), ("albert", 40)):
        own = ExampleConfig(recipe=recipe)
        assert own.drawings * own.mask_copies == masks
        assert own.drawings > 1
        full = ExampleConfig(recipe=recipe, pairing="full")
        assert (full.drawings, full.mask_copies) == (1, masks)
        assert not full.warnings()
    assert ExampleConfig(recipe="albert", pairing="full", mask_copies=3).mask_copies == 3
    [warning] = ExampleConfig(pairing="full", drawings=2, mask_copies=1).warnings()
    assert "drawings (2)" in warning


@pytest.mark.parametrize("value", [0, -1, 1001, 1.5, "many"])
def test_drawings_that_cannot_be(value):
    from cloze.core.config import parse_config

    with pytest.raises(UsageError, match=r"dataset\.drawings"):
        parse_config(DatasetConfig, {"drawings": value}, "dataset")
