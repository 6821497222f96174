"""WordPiece vocabularies in BERT's format, the same bytes from every process.

The merges are found by Hugging Face's trainer. Left alone, it gives other ids and even other pieces from run to run:
it numbers the `##x` pieces, and cuts the alphabet, in the order of a hash map with random seeds, and equal counts are
decided by these numbers. So the characters are counted here, and every single-character piece is registered, in
a fixed order, before it begins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import tokenizers
from tokenizers import trainers

from pipeline.errors import UsageError
from pipeline.tokenizer.reading import bert_backend

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # ids 0 to 4
PREFIX = "##"


def train(
    texts: Callable[[], Iterator[str]], *, size: int, lowercase: bool, min_frequency: int, limit_alphabet: int
) -> tokenizers.Tokenizer:
    """Train a WordPiece tokenizer.

    Args:
        texts: gives the documents, in any order, as often as it is called.
        size: pieces wanted; fewer where the text has no more pairs that occur `min_frequency` times.
        lowercase: lowercase and strip accents.
        min_frequency: of a pair of pieces, to be merged.
        limit_alphabet: the most characters kept, the frequent ones first, by code point where equal.

    Raises:
        UsageError: `size` is smaller than the pieces of one character.
    """
    backend = bert_backend({token: number for number, token in enumerate(SPECIAL)}, lowercase)
    words = count_words(backend, texts())
    first, inner = alphabet(words, limit_alphabet)
    single = [*first, *(PREFIX + character for character in inner)]
    if len(SPECIAL) + len(single) > size:
        raise UsageError(
            f"size ({size}) leaves no room for the {len(single)} pieces of a single character;"
            f" use at least {len(SPECIAL) + len(single)}, or a smaller limit_alphabet"
        )
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        min_frequency=min_frequency,
        special_tokens=[*SPECIAL, *single],  # registered first, in this order
        limit_alphabet=len(first),
        initial_alphabet=first,
        continuing_subword_prefix=PREFIX,
        show_progress=False,
    )
    backend.train_from_iterator(texts(), trainer)
    vocab: dict[str, int] = backend.get_vocab(with_added_tokens=True)
    pieces = sorted(vocab, key=vocab.__getitem__)
    return bert_backend({piece: number for number, piece in enumerate(pieces)}, lowercase)


def count_words(backend: tokenizers.Tokenizer, texts: Iterator[str]) -> Counter[str]:
    """How often each word occurs, as the backend's normalizer and pre-tokenizer cut them."""
    parts: Counter[str] = Counter()
    for text in texts:
        parts.update(text.split(" "))
    words: Counter[str] = Counter()
    for part, count in parts.items():  # both steps see no further than a space: each part once is enough
        for word, _ in backend.pre_tokenizer.pre_tokenize_str(backend.normalizer.normalize_str(part)):
            words[word] += count
    return words


def alphabet(words: Counter[str], limit: int) -> tuple[list[str], list[str]]:
    """The characters kept, and those of them that occur within words; each sorted by code point."""
    counts: Counter[str] = Counter()
    inner: set[str] = set()
    for word, count in words.items():
        for character in word:
            counts[character] += count
        inner.update(word[1:])
    kept = sorted(counts, key=lambda character: (-counts[character], character))[:limit]
    return sorted(kept), sorted(inner.intersection(kept))
