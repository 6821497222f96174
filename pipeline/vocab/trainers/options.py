"""Options that several kinds of vocabularies share."""

from __future__ import annotations

from pydantic import Field

from pipeline.core.options import Options


class MergeOptions(Options):
    """Of kinds that merge pairs of pieces."""

    min_frequency: int = Field(default=2, ge=1)
    """How often a pair of pieces must occur to be merged, or a word to be added. Not for unigram."""


class AlphabetOptions(Options):
    """Of kinds whose single pieces are characters."""

    limit_alphabet: int = Field(default=1000, ge=1)
    """The most different characters kept, by frequency; words with others become unknown. Not for bpe."""
