"""Corpus stage: documents that are too long or too short to be texts."""

from __future__ import annotations

from pydantic import Field

from pipeline.corpus.document import Document
from pipeline.corpus.options import CorpusOptions
from pipeline.corpus.steps.base import StepFunction, StepKind, StepResult
from pipeline.corpus.steps.word_count import count_words


class MaximumOptions(CorpusOptions):
    """Documents that are logs, tables and concatenations rather than texts."""

    maximum_characters: int = Field(default=5_000_000, ge=0)
    """Documents with more characters are dropped as `too_long`; 0: none is."""


class MinimumOptions(CorpusOptions):
    """Documents that hold next to nothing."""

    minimum_characters: int = Field(default=200, ge=0)
    """Documents with fewer characters are dropped as `too_short`."""

    minimum_words: int = Field(default=30, ge=0)
    """Documents with fewer words are dropped as `too_short`."""


def _build_maximum(options: MaximumOptions) -> StepFunction | None:
    limit = options.maximum_characters

    def too_long(document: Document) -> StepResult:
        long = sum(map(len, document.paragraphs)) > limit
        return StepResult(None, "too_long") if long else StepResult(document)

    return too_long if limit else None


def _build_minimum(options: MinimumOptions) -> StepFunction | None:
    characters, words = options.minimum_characters, options.minimum_words

    def too_short(document: Document) -> StepResult:
        lines = document.paragraphs
        if sum(map(len, lines)) + len(lines) - 1 < characters:
            return StepResult(None, "too_short")
        missing = words
        for line in lines:  # most documents have enough of them in the first paragraphs
            if missing <= 0:
                break
            missing -= count_words(line)
        return StepResult(None, "too_short") if missing > 0 else StepResult(document)

    return too_short if characters or words else None


MAXIMUM = StepKind(options=MaximumOptions, build=_build_maximum)
MINIMUM = StepKind(options=MinimumOptions, build=_build_minimum)
