"""Stage "vocab": how well a tokenizer fits a text, in figures that different tokenizers can be compared by.

Words are counted in the text and not by the tokenizer, so they are the same for all.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from pipeline.core.errors import DataError
from pipeline.core.ragged import I64, offsets_of
from pipeline.tokenizer.tokenizer import Tokenizer

LENGTHS = (128, 512)  # rows of BERT's two phases (Devlin et al. 2019, A.2)
ENDS = 2  # special tokens around a text


def measure(tokenizer: Tokenizer, documents: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Figures of `tokenizer` on a text.

    Args:
        documents: each as its sentences; all but the first are encoded as following a space.

    Returns:
        size, kind: of the vocabulary.
        documents, bytes, words, pieces: of the text. A word is a run of letters, marks and digits, or another visible
            character alone (as BERT's pre-tokenizer has it, but for ideographs).
        fertility: pieces a word (Ács 2019; Rust et al. 2021, "How Good is Your Tokenizer?", section 4.2).
        single_piece_words: the share of running words with a letter that are one known piece behind a space; what is missing to 1
            is Rust's proportion of continued words, with the unknown ones.
        unknown_rate: the share of pieces that are the unknown token.
        bytes_per_piece: UTF-8 bytes of text.
        vocabulary_used: the share of the vocabulary that occurs in the text.
        words_in_128, words_in_512: words of running text that a row of so many pieces holds, two special tokens left out.
        documents_in_128, documents_in_512: the share of documents that fit into one.

    Raises:
        DataError: the text has no pieces.
    """
    sentences = [sentence for document in documents for sentence in document]
    counts = np.fromiter(map(len, documents), np.int64, len(documents))
    first = offsets_of(counts)
    behind = np.ones(len(sentences), np.bool_)
    behind[first[:-1][counts > 0]] = False
    ids, offsets = tokenizer.encode_flat(sentences, behind)
    words = Counter(word for sentence in sentences for word in word_pattern().findall(sentence))
    if not len(ids) or not words:
        raise DataError("the corpus holds no text that has pieces; give `cloze corpus` other text")
    lengths: I64 = np.diff(offsets[first])
    running, pieces = words.total(), len(ids)
    fertility = pieces / running
    return {
        "size": tokenizer.vocab_size,
        "kind": tokenizer.kind,
        "documents": len(documents),
        "bytes": sum(len(sentence.encode()) for sentence in sentences),
        "words": running,
        "pieces": pieces,
        "fertility": round(fertility, 4),
        "single_piece_words": round(_single(tokenizer, words), 4),
        "unknown_rate": round(float((ids == tokenizer.special.unk).mean()), 6),
        "bytes_per_piece": round(sum(len(sentence.encode()) for sentence in sentences) / pieces, 3),
        "vocabulary_used": round(len(np.unique(ids)) / tokenizer.vocab_size, 4),
        **{f"words_in_{length}": round((length - ENDS) / fertility, 1) for length in LENGTHS},
        **{f"documents_in_{length}": round(float((lengths <= length - ENDS).mean()), 4) for length in LENGTHS},
    }


def _single(tokenizer: Tokenizer, words: Counter[str]) -> float:
    lettered = [word for word in words if any(character.isalpha() for character in word)]
    if not lettered:
        return 0.0
    ids, offsets = tokenizer.encode_flat(lettered, np.ones(len(lettered), np.bool_))
    counts = np.fromiter((words[word] for word in lettered), np.int64, len(lettered))
    one = np.diff(offsets) == 1
    one[one] = ids[offsets[:-1][one]] != tokenizer.special.unk
    return float(counts[one].sum() / counts.sum())


@lru_cache(maxsize=1)
def word_pattern() -> re.Pattern[str]:
    """Runs of letters, marks and digits, or any other visible character. Python's `\\w` leaves out the marks, such as vowel signs."""
    marks: list[tuple[int, int]] = []
    for point in range(sys.maxunicode + 1):
        if unicodedata.category(chr(point))[0] == "M":
            if marks and marks[-1][1] == point - 1:
                marks[-1] = (marks[-1][0], point)
            else:
                marks.append((point, point))
    group = r"\w" + "".join(f"{chr(low)}-{chr(high)}" for low, high in marks)
    return re.compile(f"[{group}]+|[^{group}\\s]")
