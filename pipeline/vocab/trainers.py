"""The kinds of vocabularies by name. Light, because configs import it.

A new kind is one module and one row here. The module has a function `(texts, options, *, size,
lowercase, strip_accents) -> tokenizers.Tokenizer` and a subclass of `cloze.core.options.Options`.
The same text must give the same bytes in every process.
"""

from __future__ import annotations

from typing import NamedTuple

from pydantic import Field

from cloze.core.options import Options


class TokenizerTrainer(NamedTuple):
    """A kind of vocabulary, a row of `TRAINERS`."""

    function: str  # `module:function`
    size: int  # size of the family's own vocabulary
    lowercase: bool  # the family lowercases text
    options: str | None = None  # `module:class`


TRAINERS = {
    # BERT
    "wordpiece": TokenizerTrainer(
        "cloze.pipeline.vocab.wordpiece:train",
        30522,
        True,
        "cloze.pipeline.vocab.wordpiece:WordPieceOptions",
    ),
    # RoBERTa: byte-level
    "bpe": TokenizerTrainer(
        "cloze.pipeline.vocab.bpe:train", 50265, False, "cloze.pipeline.vocab.bpe:BpeOptions"
    ),
    # ALBERT
    "unigram": TokenizerTrainer(
        "cloze.pipeline.vocab.unigram:train",
        30000,
        True,
        "cloze.pipeline.vocab.unigram:UnigramOptions",
    ),
}


# Options that several kinds of vocabularies share.


class MergeOptions(Options):
    """Options of kinds that merge pairs of tokens."""

    min_frequency: int = Field(default=2, ge=1)
    """Minimum frequency of a pair to be merged, or of a word to be added. Not with unigram."""


class AlphabetOptions(Options):
    """Options of kinds whose smallest tokens are characters."""

    limit_alphabet: int | None = Field(default=None, ge=1)
    """Maximum number of characters kept, by frequency. Default: 1,000, or enough for 99.99 % of the
    text, at most a third of --size. Not with bpe."""
