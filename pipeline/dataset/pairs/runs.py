"""Rows of text that runs on, without a pair task: RoBERTa's FULL-SENTENCES and DOC-SENTENCES, SpanBERT's single segments.

A row takes whole sentences while they fit. Nothing is lost: a sentence too long for a row is cut into pieces that fit, which go
on in the next row (fairseq#1103: programs that leave such rows out).

    document    [CLS] sentences of one document [SEP]
    full        [CLS] the end of one document [SEP] the next [SEP]

`pipeline.dataset.pairs.packed` puts such runs into rows of several sequences.
Documents follow each other in the order of their keys, which is a shuffle, within one corpus shard.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from pipeline.core.ragged import I64, Ragged
from pipeline.dataset.pairs.segments import PairConfig, Segments, cut_sentences, target_lengths
from pipeline.dataset.tokenized_documents import TokenizedDocuments


def document(documents: TokenizedDocuments, config: PairConfig) -> Segments:
    """Rows that never cross the end of a document, one segment each.

    DOC-SENTENCES (Liu et al. 2019, section 4.2) and SpanBERT's single segment (Joshi et al. 2020, section 3.3). Rows at the end
    of a document are shorter; length-balanced batches make up for it, as RoBERTa's larger ones did.
    """
    cut = cut_sentences(documents, config.max_single)
    first = row_starts(cut, target_lengths(cut, config, config.max_single), None)
    return Segments.of_runs(cut, Ragged(first, np.arange(len(first) + 1)))


def full(documents: TokenizedDocuments, config: PairConfig) -> Segments:
    """FULL-SENTENCES: rows that run on into the next document, behind one more [SEP] (Liu et al. 2019, section 4.2)."""
    cut = cut_sentences(documents, config.max_single)
    return Segments.of_runs(cut, pieces_across(cut, row_starts(cut, target_lengths(cut, config, config.max_single), 1)))


def row_starts(documents: TokenizedDocuments, targets: I64, joint: int | None) -> I64:
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


def pieces_across(documents: TokenizedDocuments, firsts: I64) -> Ragged:
    """The pieces of rows that begin with these sentences: a new one at every row and every document."""
    pieces = np.union1d(firsts, documents.document_offsets[:-1])
    return Ragged(pieces, np.append(np.searchsorted(pieces, firsts), len(pieces)))
