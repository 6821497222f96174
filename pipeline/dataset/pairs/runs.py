"""Rows of text that runs on, without a pair task: RoBERTa's FULL-SENTENCES and DOC-SENTENCES, SpanBERT's single segments, packing.

A row takes whole sentences while they fit. Nothing is lost: a sentence too long for a row is cut into parts that fit, which go
on in the next row (fairseq#1103: programs that leave such rows out).

    document    [CLS] sentences of one document [SEP]
    full        [CLS] the end of one document [SEP] the next [SEP]
    packed      [CLS] one document [SEP] [CLS] the next [SEP], with boundaries, for attention that stays within a sequence

Documents follow each other in the order of their keys, which is a shuffle, within one corpus shard.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from pipeline.core.ragged import I64, Ragged, offsets_of
from pipeline.dataset.pairs import PACKINGS
from pipeline.dataset.pairs.segments import PairConfig, Segments, split_sentences, target_lengths
from pipeline.dataset.tokenized import Documents

BEST_FIT, IN_ORDER = PACKINGS


def document(documents: Documents, config: PairConfig) -> Segments:
    """Rows that never cross the end of a document, one segment each.

    DOC-SENTENCES (Liu et al. 2019, section 4.2) and SpanBERT's single segment (Joshi et al. 2020, section 3.3). Rows at the end
    of a document are shorter; length-balanced batches make up for it, as RoBERTa's larger ones did.
    """
    cut = split_sentences(documents, config.max_single)
    first = _fill(cut, target_lengths(cut, config, config.max_single), None)
    return Segments.of_runs(cut, Ragged(first, np.arange(len(first) + 1)))


def full(documents: Documents, config: PairConfig) -> Segments:
    """FULL-SENTENCES: rows that run on into the next document, behind one more [SEP] (Liu et al. 2019, section 4.2)."""
    cut = split_sentences(documents, config.max_single)
    return Segments.of_runs(cut, _across(cut, _fill(cut, target_lengths(cut, config, config.max_single), 1)))


def packed(documents: Documents, config: PairConfig) -> Segments:
    """Several sequences a row, each of one document with its own [CLS] and [SEP], and where they begin.

    in-order: like `full`, so documents that follow each other share rows, and are cut where a row ends.
    best-fit: documents are cut into sequences as `document` does, and each, the longest first, goes into the fullest row that
    still takes it (Ding et al. 2024, "Fewer Truncations Improve Language Modeling"). Fewer documents are cut, rows are as full.
    """
    cut = split_sentences(documents, config.max_single)
    targets = target_lengths(cut, config, config.max_single)
    if config.packing == IN_ORDER:
        return Segments.of_runs(cut, _across(cut, _fill(cut, targets, 2)), packed=True)
    first = _fill(cut, targets, None)
    sizes = np.diff(np.append(cut.sentence_offsets[first], len(cut.tokens))) + 2
    row = best_fit(sizes, config.length)
    order = np.argsort(row, kind="stable")  # within a row, sequences in the order of their documents
    return Segments.of_runs(cut, Ragged(first[order], offsets_of(np.bincount(row))), packed=True)


def _fill(documents: Documents, targets: I64, joint: int | None) -> I64:
    """The sentences with which rows begin: int64, ascending.

    Args:
        documents: no sentence is longer than a row's room.
        targets: int64 [D], the tokens that rows aim at, by the document in which they begin; a row has at least one sentence.
        joint: the special tokens between two documents in a row; None: a row ends with its document.
    """
    at = documents.document_offsets.tolist()
    owner = documents.sentence_document
    home, goals, total = owner.tolist(), targets.tolist(), len(owner)
    between = joint or 0
    # What a row costs up to a sentence's end, beside what its first document costs: tokens, and what joins documents.
    spent = (documents.sentence_offsets[1:] + between * owner).tolist()
    begun = (documents.sentence_offsets[:-1] + between * owner).tolist()
    firsts, first = [], 0
    while first < total:
        firsts.append(first)
        own = home[first]
        last = total if joint is not None else at[own + 1]
        first = bisect_right(spent, begun[first] + goals[own], first + 1, last)
    return np.array(firsts, np.int64)


def _across(documents: Documents, firsts: I64) -> Ragged:
    """The pieces of rows that begin with these sentences: a new one at every row and every document."""
    pieces = np.union1d(firsts, documents.document_offsets[:-1])
    return Ragged(pieces, np.append(np.searchsorted(pieces, firsts), len(pieces)))


def best_fit(sizes: I64, room: int) -> I64:
    """The bin of each item: int64. The longest first, ties in order, each into the fullest bin that has room; else a new one.

    Args:
        sizes: int64 [n], at most `room` each.
        room: of a bin.
    """
    bins = np.zeros(len(sizes), np.int64)
    waiting: list[list[int]] = [[] for _ in range(room + 1)]  # bins by what is left in them
    some, count = 0, 0  # a bit for each such list that is not empty
    plain = sizes.tolist()
    for item in np.argsort(-sizes, kind="stable").tolist():
        size = plain[item]
        fitting = some >> size
        if fitting:
            left = size + (fitting & -fitting).bit_length() - 1
            found = waiting[left].pop()
            if not waiting[left]:
                some ^= 1 << left
        else:
            left, found, count = room, count, count + 1
        bins[item] = found
        waiting[left - size].append(found)
        some |= 1 << (left - size)
    return bins
