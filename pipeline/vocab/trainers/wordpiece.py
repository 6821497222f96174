"""WordPiece vocabularies in BERT's format, the same bytes from every process.

The merges are found by Hugging Face's trainer. Left alone, it gives other ids and even other pieces from run to run:
it numbers the `##x` pieces, and cuts the alphabet, in the order of a hash map with random seeds, and equal counts are
decided by these numbers. So the characters are counted here, and every single-character piece is registered, in
a fixed order, before it begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import tokenizers
from tokenizers import trainers

from pipeline.core.errors import UsageError
from pipeline.tokenizer.backends import bert_backend
from pipeline.tokenizer.special import BERT as SPECIAL
from pipeline.vocab.trainers.counting import alphabet, count_words

PREFIX = "##"


def train(
    texts: Callable[[], Iterator[str]],
    *,
    size: int,
    lowercase: bool,
    strip_accents: bool | None,
    min_frequency: int,
    limit_alphabet: int,
) -> tokenizers.Tokenizer:
    """Train a WordPiece tokenizer.

    Args:
        texts: gives the documents, in any order, as often as it is called.
        size: pieces wanted; fewer where the text has no more pairs that occur `min_frequency` times.
        lowercase: lowercase the text.
        strip_accents: remove accents; None: where case is removed.
        min_frequency: of a pair of pieces, to be merged.
        limit_alphabet: the most characters kept, the frequent ones first, by code point where equal.

    Raises:
        UsageError: `size` is smaller than the pieces of one character.
    """
    backend = bert_backend({token: number for number, token in enumerate(SPECIAL)}, lowercase, strip_accents)
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
    return bert_backend({piece: number for number, piece in enumerate(pieces)}, lowercase, strip_accents)
