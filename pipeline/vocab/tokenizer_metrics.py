"""Metrics of how well a tokenizer fits a text, comparable between tokenizers.

Words are counted in the text, independently of the tokenizer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from cloze.core.errors import DataError
from cloze.core.ragged import I64, offsets_of
from cloze.pipeline import tokenizer
from cloze.pipeline.corpus.files.shards import CorpusShards
from cloze.pipeline.tokenizer.tokenizer import U32, Tokenizer
from cloze.pipeline.vocab.sample import heldout_sample

LENGTHS = (128, 512)  # row lengths of BERT's two phases (Devlin et al. 2019, A.2)
ENDS = 2  # special tokens around a text


def tokenizer_metrics(tokenizer: Tokenizer, documents: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Return the metrics of `tokenizer` on a text.

    Args:
        documents: sentences of each document; all but the first are encoded as following a space.

    Returns:
        size, kind: size and kind of the vocabulary.
        documents, bytes, words, pieces: size of the text; pieces are tokens. A word is a run of
            letters, marks and digits, or another visible character (as in BERT's pre-tokenizer,
            except for ideographs).
        fertility: tokens per word (Ács 2019; Rust et al. 2021, "How Good is Your Tokenizer?",
            section 4.2).
        single_piece_words: share of running words with a letter that are one known token after a
            space. The rest is Rust's proportion of continued words, plus the unknown words.
        unknown_rate: share of unknown tokens.
        unknown_characters: share of visible characters that unknown tokens represent.
        bytes_per_piece: UTF-8 bytes of text per token.
        vocabulary_used: share of the vocabulary that occurs in the text.
        words_in_128, words_in_512: words that fit in a row of this many tokens, two of them
            special.
        documents_in_128, documents_in_512: share of documents that fit in such a row.

    Raises:
        DataError: the text has no tokens.
    """
    sentences = [sentence for document in documents for sentence in document]
    counts = np.fromiter(map(len, documents), np.int64, len(documents))
    first = offsets_of(counts)
    after_space = np.ones(len(sentences), np.bool_)
    after_space[first[:-1][counts > 0]] = False
    ids, offsets = tokenizer.encode_flat(sentences, after_space)
    words = Counter(word for sentence in sentences for word in piece_pattern().findall(sentence))
    if not len(ids) or not words:
        raise DataError("the corpus has no text to measure; give `cloze corpus` other text")
    lengths: I64 = np.diff(offsets[first])
    size, pieces = sum(len(sentence.encode()) for sentence in sentences), len(ids)
    fertility = pieces / words.total()
    return {
        "size": tokenizer.vocab_size,
        "kind": tokenizer.kind,
        "documents": len(documents),
        "bytes": size,
        "words": words.total(),
        "pieces": pieces,
        "fertility": round(fertility, 4),
        "single_piece_words": round(_single_piece_words(tokenizer, words), 4),
        "unknown_rate": round(float((ids == tokenizer.special.unk).mean()), 6),
        "unknown_characters": round(_unknown_characters(tokenizer, sentences, ids, offsets), 6),
        "bytes_per_piece": round(size / pieces, 3),
        "vocabulary_used": round(len(np.unique(ids)) / tokenizer.vocab_size, 4),
        **{f"words_in_{length}": round((length - ENDS) / fertility, 1) for length in LENGTHS},
        **{
            f"documents_in_{length}": round(float((lengths <= length - ENDS).mean()), 4)
            for length in LENGTHS
        },
    }


def _unknown_characters(
    tokenizer: Tokenizer, sentences: Sequence[str], ids: U32, offsets: I64
) -> float:
    is_unknown = ids == tokenizer.special.unk
    affected = np.flatnonzero(np.diff(np.concatenate(([0], np.cumsum(is_unknown)))[offsets]))
    unknown = 0
    texts = [sentences[index] for index in affected.tolist()]
    for pieces, spans in tokenizer.encode_with_offsets(texts):
        spans = spans[np.array(pieces) == tokenizer.special.unk]
        unknown += int((spans[:, 1] - spans[:, 0]).sum())
    return unknown / max(1, sum(len("".join(sentence.split())) for sentence in sentences))


def _single_piece_words(tokenizer: Tokenizer, words: Counter[str]) -> float:
    lettered = [word for word in words if any(character.isalpha() for character in word)]
    if not lettered:
        return 0.0
    ids, offsets = tokenizer.encode_flat(lettered, np.ones(len(lettered), np.bool_))
    counts = np.fromiter((words[word] for word in lettered), np.int64, len(lettered))
    is_single = np.diff(offsets) == 1
    is_single[is_single] = ids[offsets[:-1][is_single]] != tokenizer.special.unk
    return float(counts[is_single].sum() / counts.sum())


@lru_cache(maxsize=1)
def piece_pattern() -> Any:
    """Compile the pattern of a word of letters, marks and digits, or any other visible character.

    Python's `\\w` excludes marks such as vowel signs.
    """
    import regex

    return regex.compile(r"\w+|[^\w\s]")


# Comparison of tokenizers on the held-out text of a corpus, for `cloze compare-vocab`.


def compare(corpus: str, paths: Sequence[str]) -> list[dict[str, Any]]:
    """Return the `tokenizer_metrics` of each tokenizer, with its path as `tokenizer`.

    Args:
        paths: tokenizers, as `cloze.pipeline.tokenizer.load` accepts them.

    Raises:
        DataError: the corpus or a tokenizer is missing or damaged, or the corpus has no text.
    """
    tokenizers = {path: tokenizer.load(path) for path in paths}
    documents = list(heldout_sample(CorpusShards.open(corpus)).sentences())
    return [{"tokenizer": path, **tokenizer_metrics(tokenizers[path], documents)} for path in paths]
