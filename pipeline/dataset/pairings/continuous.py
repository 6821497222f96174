"""Pairings of continuous text, without a pair task and without a lost token.

`full` and `document` are RoBERTa's FULL-SENTENCES and DOC-SENTENCES. `packed` puts sequences of
several documents into a row, for attention within each.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from cloze.core.ragged import I64, Ragged, offsets_of, ranges
from cloze.pipeline.dataset.pairings.segments import Segments, TokenizedDocuments, target_lengths

if TYPE_CHECKING:
    from cloze.pipeline.dataset.config import ExampleConfig


def document(documents: TokenizedDocuments, config: ExampleConfig) -> Segments:
    """Build rows of one segment that never cross the end of a document.

    DOC-SENTENCES (Liu et al. 2019, section 4.2) and SpanBERT's single segment (Joshi et al. 2020,
    section 3.3). Rows at the end of a document are shorter; length-balanced batches compensate, as
    RoBERTa's larger batches did.
    """
    cut = cut_sentences(documents, config.max_single)
    first = row_starts(cut, config)
    return Segments.of_runs(cut, Ragged(first, np.arange(len(first) + 1)))


def full(documents: TokenizedDocuments, config: ExampleConfig) -> Segments:
    """Build rows that continue into the next document after another [SEP]: FULL-SENTENCES.

    Liu et al. 2019, section 4.2.
    """
    cut = cut_sentences(documents, config.max_single)
    first = row_starts(cut, config, crosses_documents=True)
    # one range per row and document
    range_starts = np.union1d(first, cut.document_offsets[:-1])
    row_offsets = np.append(np.searchsorted(range_starts, first), len(range_starts))
    return Segments.of_runs(cut, Ragged(range_starts, row_offsets))


def packed(documents: TokenizedDocuments, config: ExampleConfig) -> Segments:
    """Build rows of several sequences, each from one document with its own [CLS] and [SEP].

    For attention within a sequence (Portes et al. 2023, MosaicBERT, section 3.2). Documents are cut
    into sequences as in `document`. Each sequence, the longest first, goes into the fullest row
    with enough room (Ding et al. 2024, "Fewer Truncations Improve Language Modeling").
    """
    cut = cut_sentences(documents, config.max_single)
    first = row_starts(cut, config)
    sizes = np.diff(np.append(cut.sentence_offsets[first], len(cut.tokens))) + 2
    row = best_fit(sizes, config.length)
    # within a row, sequences keep the order of their documents
    order = np.argsort(row, kind="stable")
    return Segments.of_runs(cut, Ragged(first[order], offsets_of(np.bincount(row))), packed=True)


def cut_sentences(documents: TokenizedDocuments, room: int, parts: int = 1) -> TokenizedDocuments:
    """Cut every sentence longer than `room` at the multiples of `room` / `parts` tokens.

    So rows of whole sentences lose no text (fairseq and SpanBERT drop such sentences). `parts`
    consecutive pieces have `room` tokens: two fill a pair, which loses nothing then. Each piece
    counts as a sentence: the following values of `sentence_index` increase by the number of cuts.
    """
    lengths = np.diff(documents.sentence_offsets)
    if not len(lengths) or int(lengths.max()) <= room:
        return documents
    part_counts = np.where(lengths > room, -(-lengths * parts // room), 1)
    part = ranges(np.zeros(len(part_counts)), part_counts)
    borders = offsets_of(part_counts)
    first = documents.document_offsets[documents.sentence_document]
    # Pieces count as sentences, and places must be unique in a document: they move on by the
    # cuts before them in it.
    splits_before = borders[:-1] - np.arange(len(lengths)) - (borders[first] - first)
    index = np.repeat(documents.sentence_index + splits_before, part_counts) + part
    starts = np.repeat(documents.sentence_offsets[:-1], part_counts) + part * room // parts
    return replace(
        documents,
        sentence_offsets=np.append(starts, len(documents.tokens)),
        sentence_index=index,
        document_offsets=borders[documents.document_offsets],
    )


def row_starts(
    documents: TokenizedDocuments, config: ExampleConfig, *, crosses_documents: bool = False
) -> I64:
    """Return the first sentences of rows: int64, ascending. A row has at least one sentence.

    Args:
        documents: no sentence is longer than a row's room.
        crosses_documents: rows continue into the next document after a separator; else they end
            with their document.
    """
    document_starts = documents.document_offsets.tolist()
    sentence_document, total = documents.sentence_document, len(documents.sentence_index)
    targets = target_lengths(documents, config, config.max_single)[sentence_document].tolist()
    # Cost of a row up to a sentence's end: tokens, and the separators between documents.
    separators = crosses_documents * sentence_document
    end_costs = (documents.sentence_offsets[1:] + separators).tolist()
    start_costs = (documents.sentence_offsets[:-1] + separators).tolist()
    document_numbers = sentence_document.tolist()
    firsts, first = [], 0
    while first < total:
        firsts.append(first)
        last = total if crosses_documents else document_starts[document_numbers[first] + 1]
        # The last sentence that ends within the target; a row has at least one.
        first = bisect_right(end_costs, start_costs[first] + targets[first], first + 1, last)
    return np.array(firsts, np.int64)


def best_fit(sizes: I64, room: int) -> I64:
    """Return the bin of each item by best-fit decreasing: int64; ties in order.

    Args:
        sizes: int64 [n], at most `room` each.
        room: capacity of a bin.
    """
    bins = np.zeros(len(sizes), np.int64)
    open_bins: list[list[int]] = [[] for _ in range(room + 1)]  # bins by their free room
    nonempty, count = 0, 0  # `nonempty`: a bit for each list that is not empty
    item_sizes = sizes.tolist()
    for item in np.argsort(-sizes, kind="stable").tolist():
        size = item_sizes[item]
        fitting = nonempty >> size
        if fitting:
            # The lowest set bit is the fullest row with enough room: a search without a loop.
            free = size + (fitting & -fitting).bit_length() - 1
            bin_index = open_bins[free].pop()
            if not open_bins[free]:
                nonempty ^= 1 << free
        else:
            free, bin_index, count = room, count, count + 1
        bins[item] = bin_index
        open_bins[free - size].append(bin_index)
        nonempty |= 1 << (free - size)
    return bins
