"""Stage "dataset", first step: the documents of a corpus shard as flat arrays of pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pipeline.core.ragged import I64, offsets_of
from pipeline.core.random_keys import U64

if TYPE_CHECKING:
    from pipeline.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedDocuments:
    """Tokenized documents, of one corpus shard and one split, in the order of their keys.

    Attributes:
        keys: uint64 [D], each document's random number seed.
        tokens: [T], all pieces, without special tokens, in the dtype that rows will have.
        sentence_offsets: int64 [S + 1] into `tokens`. No sentence is empty.
        sentence_index: int32 [S], which sentence of its document in the corpus it is.
        document_offsets: int64 [D + 1] into sentences. No document is empty.
        empty_sentences: sentences without a piece, left out.
        empty_documents: documents without a piece, left out.
    """

    keys: U64
    tokens: npt.NDArray[Any]
    sentence_offsets: I64
    sentence_index: npt.NDArray[np.int32]
    document_offsets: I64
    empty_sentences: int = 0
    empty_documents: int = 0

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def sentence_document(self) -> I64:
        """Which document each sentence is of: int64 [S]."""
        return np.repeat(np.arange(len(self.keys)), np.diff(self.document_offsets))


def tokenize(
    keys: U64, sentences: Sequence[str], sentence_counts: npt.NDArray[Any], tokenizer: Tokenizer, dtype: npt.DTypeLike
) -> TokenizedDocuments:
    """Tokenize documents, and leave out what has no piece.

    Args:
        keys: uint64 [D].
        sentences: the sentences of all documents, end to end.
        sentence_counts: how many of them each document has, [D].
        tokenizer: cuts sentences into pieces.
        dtype: the dtype of ids, from `schema.id_dtype`.
    """
    counts = np.asarray(sentence_counts, np.int64)
    document = np.repeat(np.arange(len(counts)), counts)
    index = np.arange(len(sentences)) - np.repeat(offsets_of(counts)[:-1], counts)
    # All but a document's first sentence stand behind a space, which to a byte-level BPE is a part of their first word.
    behind = (index > 0) & np.fromiter(map(bool, sentences), np.bool_, len(sentences))
    ids, offsets = tokenizer.encode_flat(sentences, behind)
    lengths = np.diff(offsets)
    full = lengths > 0
    kept = np.bincount(document[full], minlength=len(counts))
    return TokenizedDocuments(
        keys=np.asarray(keys, np.uint64)[kept > 0],
        tokens=ids.astype(dtype, copy=False),
        sentence_offsets=offsets_of(lengths[full]),
        sentence_index=index[full].astype(np.int32),
        document_offsets=offsets_of(kept[kept > 0]),
        empty_sentences=int(len(full) - full.sum()),
        empty_documents=int((kept == 0).sum()),
    )
