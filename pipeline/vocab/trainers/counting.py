"""Stage "vocab": how often each word of a text occurs, as a tokenizer's first two steps cut it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import tokenizers


def count_words(backend: tokenizers.Tokenizer, texts: Iterator[str]) -> Counter[str]:
    """How often each word occurs, as the backend's normalizer and pre-tokenizer cut them.

    For backends whose pre-tokenizer cuts at every space: both steps see no further, so each stretch between spaces once is enough.
    """
    words: Counter[str] = Counter()
    for stretch, count in count_stretches(texts).items():
        for word, _ in backend.pre_tokenizer.pre_tokenize_str(backend.normalizer.normalize_str(stretch)):
            words[word] += count
    return words


def count_stretches(texts: Iterator[str]) -> Counter[str]:
    """How often each stretch between spaces occurs."""
    stretches: Counter[str] = Counter()
    for text in texts:
        stretches.update(text.split(" "))
    return stretches


def alphabet(words: Counter[str], limit: int, mark: str = "") -> tuple[list[str], list[str]]:
    """The characters kept, and those of them that occur within words; each sorted by code point.

    Args:
        words: with their counts.
        limit: the most characters kept, the frequent ones first, by code point where equal.
        mark: a first character of words that does not count as one.
    """
    counts: Counter[str] = Counter()
    inner: set[str] = set()
    for word, count in words.items():
        for character in word.removeprefix(mark):
            counts[character] += count
        inner.update(word[1:])
    kept = sorted(counts, key=lambda character: (-counts[character], character))[:limit]
    return sorted(kept), sorted(inner.intersection(kept))
