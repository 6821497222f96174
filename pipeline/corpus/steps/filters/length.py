"""Filters of documents that are too long or too short."""

from __future__ import annotations

from pydantic import Field

from cloze.core.words import count_words, width
from cloze.pipeline.corpus.document import Document
from cloze.pipeline.corpus.options import CorpusOptions
from cloze.pipeline.corpus.steps.base import CleaningStep, StepFunction, drop_if


class MaximumOptions(CorpusOptions):
    """Options of the maximum length, which drops logs, tables and concatenations."""

    maximum_characters: int = Field(default=5_000_000, ge=0)
    """Drop documents with more characters (too_long); 0: no limit."""


class MinimumOptions(CorpusOptions):
    """Options of the minimum length."""

    minimum_characters: int = Field(default=200, ge=0)
    """Drop documents with fewer characters (too_short)."""

    minimum_words: int = Field(default=30, ge=0)
    """Drop documents with fewer words (too_short)."""


def _build_maximum(options: MaximumOptions) -> StepFunction | None:
    limit = options.maximum_characters

    def reason_of(document: Document) -> str | None:
        return "too_long" if sum(map(len, document.paragraphs)) > limit else None

    return drop_if(reason_of) if limit else None


def _build_minimum(options: MinimumOptions) -> StepFunction | None:
    characters, words = options.minimum_characters, options.minimum_words

    def reason_of(document: Document) -> str | None:
        lines = document.paragraphs
        missing = characters - len(lines) + 1
        if sum(map(len, lines)) < missing and sum(map(width, lines)) < missing:
            return "too_short"
        missing = words
        for line in lines:  # most documents have enough words in the first paragraphs
            if missing <= 0:
                break
            missing -= count_words(line)
        return "too_short" if missing > 0 else None

    return drop_if(reason_of) if characters or words else None


MAXIMUM = CleaningStep(options=MaximumOptions, build=_build_maximum)
MINIMUM = CleaningStep(options=MinimumOptions, build=_build_minimum)
