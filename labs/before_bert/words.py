"""Vocabularies of whole words, for static vectors and ELMo. Light, because configs import it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloze.core.errors import DataError
from cloze.pipeline.vocab.kinds import TokenizerTrainer

if TYPE_CHECKING:
    import tokenizers

    from cloze.pipeline.vocab.config import VocabConfig
    from cloze.pipeline.vocab.trainers import Texts

KIND = TokenizerTrainer("cloze.labs.before_bert.words:count_vocabulary", 100_000, False)


def count_vocabulary(
    texts: Texts, options: VocabConfig, *, size: int, lowercase: bool, strip_accents: bool
) -> tokenizers.Tokenizer:
    """Take the most frequent words as tokens; every other word is [UNK].

    Ids: BERT's special tokens 0 to 4, then words by frequency, ties by code point. BERT's
    pre-tokenizer splits the words, so punctuation marks are words.

    Args:
        texts: the documents.
        options: `min_frequency`, of words.
        size: maximum vocabulary size.
        lowercase: lowercase the text.
        strip_accents: remove accents, and the vowel signs of other scripts.

    Raises:
        DataError: no word is frequent enough.
    """
    from cloze.pipeline.tokenizer.backends import word_backend
    from cloze.pipeline.tokenizer.special import BERT
    from cloze.pipeline.vocab.trainers import word_frequencies

    counts = word_frequencies(word_backend(BERT, lowercase, strip_accents), texts())
    frequent = [word for word, count in counts.items() if count >= options.min_frequency]
    if not frequent:
        raise DataError(
            f"no word of the sample occurs min_frequency ({options.min_frequency}) times; lower "
            f"it, or give `cloze corpus` more text"
        )
    ordered = sorted(set(frequent) - set(BERT), key=lambda word: (-counts[word], word))
    return word_backend([*BERT, *ordered[: size - len(BERT)]], lowercase, strip_accents)
