"""WordPiece vocabularies in BERT's format, the same bytes from every process.

The merges are found by Hugging Face's trainer. Left alone, it gives other ids and even other pieces from run to run:
it numbers the `##x` pieces, and cuts the alphabet, in the order of a hash map with random seeds, and equal counts are
decided by these numbers. So the characters are counted here, and every single-character piece is registered, in
a fixed order, before it begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pipeline.core.errors import UsageError
from pipeline.vocab.trainers.options import AlphabetOptions, MergeOptions

if TYPE_CHECKING:
    import tokenizers

PREFIX = "##"


class WordPieceOptions(MergeOptions, AlphabetOptions):
    """What can be set of the kind `wordpiece`."""


def train(
    texts: Callable[[], Iterator[str]], options: WordPieceOptions, *, size: int, lowercase: bool, strip_accents: bool | None
) -> tokenizers.Tokenizer:
    """Train a WordPiece tokenizer.

    Args:
        texts: gives the documents, in any order, as often as it is called.
        options: see there.
        size: pieces wanted; fewer where the text has no more pairs that occur `min_frequency` times.
        lowercase: lowercase the text.
        strip_accents: remove accents; None: where case is removed.

    Raises:
        UsageError: `size` is smaller than the pieces of one character.
    """
    from tokenizers import trainers

    from pipeline.tokenizer.backends import bert_backend
    from pipeline.tokenizer.special import BERT as SPECIAL
    from pipeline.vocab.trainers.counting import alphabet, count_words

    backend = bert_backend({token: number for number, token in enumerate(SPECIAL)}, lowercase, strip_accents)
    words = count_words(backend, texts())
    first, inner = alphabet(words, options.limit_alphabet)
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
    return bert_backend({piece: number for number, piece in enumerate(pieces)}, lowercase, strip_accents)
