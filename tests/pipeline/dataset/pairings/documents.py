"""Made-up tokenized documents, and segments in a form that tests can compare."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from cloze.core import random_keys
from cloze.core.ragged import offsets_of, ranges
from cloze.pipeline.dataset.pairings.continuous import cut_sentences
from cloze.pipeline.dataset.pairings.segments import Segments, TokenizedDocuments
from cloze.pipeline.tokenizer.special import SpecialTokens

SPECIAL = SpecialTokens(pad=0, unk=1, cls=2, sep=3, mask=4)
FIRST_TOKEN = 10  # token t of the flat array is FIRST_TOKEN + t


def make_documents(sizes: list[list[int]], seed: int = 0) -> TokenizedDocuments:
    """Documents from the numbers of tokens in their sentences."""
    flat = np.array([size for document in sizes for size in document], np.int64)
    counts = np.array([len(document) for document in sizes], np.int64)
    return TokenizedDocuments(
        keys=np.sort(random_keys.fold_in(seed, np.arange(len(sizes)))),
        tokens=(FIRST_TOKEN + np.arange(flat.sum())).astype(np.uint32),
        sentence_offsets=offsets_of(flat),
        sentence_index=ranges(np.zeros(len(counts)), counts),
        document_offsets=offsets_of(counts),
    )


def columns(segments: Segments) -> tuple[np.ndarray, np.ndarray]:
    """Starts and lengths of segments A and B: int64 [R, 2] each; a B that is not there has no
    tokens.
    """
    counts, at = np.diff(segments.range_offsets), segments.range_offsets[:-1]
    second = np.minimum(at + 1, max(0, len(segments.starts) - 1))
    starts = np.stack(
        [segments.starts[at], np.where(counts > 1, segments.starts[second], 0)], axis=1
    )
    return starts, np.stack(
        [segments.lengths[at], np.where(counts > 1, segments.lengths[second], 0)], axis=1
    )


def tokens_in(documents: TokenizedDocuments, *drawings: Segments) -> set[int]:
    """Places of the tokens that are in a row of some drawing."""
    return {
        place
        for segments in drawings
        for start, length in zip(segments.starts.tolist(), segments.lengths.tolist(), strict=True)
        for place in range(start, start + length)
    }


def own_text(
    documents: TokenizedDocuments, segments: Segments, room: int
) -> tuple[np.ndarray, np.ndarray]:
    """Start and length of the text that each row of pairs was made of: int64 [R] each.

    A row's text ends where the next row begins, so that all of them are all text.
    """
    cut = cut_sentences(documents, room, 2)
    first = cut.document_offsets[segments.document] + segments.offset
    starts = cut.sentence_offsets[first]
    return starts, np.diff(np.append(starts, len(documents.tokens)))


sentence = st.one_of(st.integers(1, 30), st.integers(1, 300))
corpora = st.lists(st.lists(sentence, min_size=1, max_size=40), min_size=1, max_size=8)
