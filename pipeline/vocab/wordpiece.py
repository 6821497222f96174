"""WordPiece vocabularies in BERT's format, and word counts and alphabets for the trainers."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING

from cloze.core.errors import UsageError
from cloze.pipeline.vocab.trainers import AlphabetOptions, MergeOptions

if TYPE_CHECKING:
    import tokenizers


# minimum size of an alphabet: letters of all scripts, as in Hugging Face's BertWordPieceTokenizer
USUAL = 1000
COVERAGE = 0.9999  # share of characters covered, for ideographs; SentencePiece has .9995


def count_words(backend: tokenizers.Tokenizer, texts: Iterator[str]) -> Counter[str]:
    """Count the words that the backend's normalizer and pre-tokenizer produce.

    For backends whose pre-tokenizer splits at every space, so that each distinct segment between
    spaces is processed once.
    """
    words: Counter[str] = Counter()
    for stretch, count in count_segments(texts).items():
        for word, _ in backend.pre_tokenizer.pre_tokenize_str(
            backend.normalizer.normalize_str(stretch)
        ):
            words[word] += count
    return words


def count_segments(texts: Iterator[str]) -> Counter[str]:
    """Count the segments between spaces."""
    stretches: Counter[str] = Counter()
    for text in texts:
        stretches.update(text.split(" "))
    return stretches


def alphabet(
    words: Counter[str], limit: int | None, size: int, mark: str = ""
) -> tuple[list[str], list[str]]:
    """Return the kept characters, and those of them that occur inside words, by code point.

    Args:
        words: words with their counts.
        limit: maximum number of characters, by frequency, then code point. None: USUAL, or enough
            for COVERAGE of the text, at most a third of the vocabulary.
        size: vocabulary size.
        mark: first character of words that does not count.
    """
    counts: Counter[str] = Counter()
    inner: set[str] = set()
    for word, count in words.items():
        for character in word.removeprefix(mark):
            counts[character] += count
        inner.update(word[1:])
    ordered = sorted(counts, key=lambda character: (-counts[character], character))
    if limit is None:
        covering = (
            bisect_left(
                list(accumulate(counts[character] for character in ordered)),
                COVERAGE * counts.total(),
            )
            + 1
        )
        limit = max(USUAL, min(covering, size // 3))
    kept = ordered[:limit]
    return sorted(kept), sorted(inner.intersection(kept))


# The trainer; it gives the same bytes in every process.

PREFIX = "##"


class WordPieceOptions(MergeOptions, AlphabetOptions):
    """Options of the kind `wordpiece`."""


def train(
    texts: Callable[[], Iterator[str]],
    options: WordPieceOptions,
    *,
    size: int,
    lowercase: bool,
    strip_accents: bool,
) -> tokenizers.Tokenizer:
    """Train a WordPiece tokenizer.

    Args:
        texts: returns an iterator over the documents, in any order; called repeatedly.
        options: options of the kind.
        size: wanted vocabulary size; smaller if too few pairs occur `min_frequency` times.
        lowercase: lowercase the text.
        strip_accents: remove accents, and the vowel signs of other scripts.

    Raises:
        UsageError: `size` is smaller than the number of single-character tokens.
    """
    from tokenizers import trainers

    from cloze.pipeline.tokenizer.backends import bert_backend
    from cloze.pipeline.tokenizer.special import BERT as SPECIAL

    backend = bert_backend(
        {token: number for number, token in enumerate(SPECIAL)}, lowercase, strip_accents
    )
    words = count_words(backend, texts())
    first, inner = alphabet(words, options.limit_alphabet, size)
    single = [*first, *(PREFIX + character for character in inner)]
    if len(SPECIAL) + len(single) > size:
        raise UsageError(
            f"size ({size}) leaves no room for the {len(single)} pieces of a single character;"
            f" use at least {len(SPECIAL) + len(single)}, or a smaller limit_alphabet"
        )
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        min_frequency=options.min_frequency,
        special_tokens=[*SPECIAL, *single],  # registered first, in this order
        limit_alphabet=len(first),
        initial_alphabet=first,
        continuing_subword_prefix=PREFIX,
        show_progress=False,
    )
    backend.train_from_iterator(texts(), trainer)
    vocab: dict[str, int] = backend.get_vocab(with_added_tokens=True)
    pieces = sorted(vocab, key=vocab.__getitem__)
    return bert_backend(
        {piece: number for number, piece in enumerate(pieces)}, lowercase, strip_accents
    )
