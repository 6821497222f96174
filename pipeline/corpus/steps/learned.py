"""Corpus stage: documents that a learned filter finds unlike what is wanted."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from pydantic import Field, model_validator
from typing_extensions import Self

from pipeline.core.config import InputPath
from pipeline.corpus.document import Document
from pipeline.corpus.options import CorpusOptions
from pipeline.corpus.steps.base import StepFunction, StepKind, StepResult, only_from

if TYPE_CHECKING:
    from pipeline.corpus.learned_filter import Filter

REASON = "unlike_good"
LOSES = 0.05  # of the good documents


class LearnedOptions(CorpusOptions):
    """A filter of `cloze filter train`."""

    filter: InputPath | None = None
    """A learned filter; documents below its threshold are dropped as `unlike_good`."""

    filter_loses: float = Field(default=LOSES, ge=0, lt=1)
    """Its threshold: the score that this share of the good documents does not reach which were held out when it was trained."""

    filter_sources: tuple[str, ...] = ()
    """Kinds of sources (`warc`, `jsonl`, …) that it looks at; empty: all."""

    @model_validator(mode="after")
    def _filter_is_named(self) -> Self:
        if self.filter is None and (self.filter_loses != LOSES or self.filter_sources):
            raise ValueError("filter_loses and filter_sources need filter: the directory that `cloze filter train` made")
        return self


@functools.lru_cache(maxsize=4)
def _filter(path: str) -> Filter:
    from pipeline.corpus.learned_filter import Filter

    return Filter.read(path)


def _build(options: LearnedOptions) -> StepFunction | None:
    if options.filter is None:
        return None
    found = _filter(options.filter)
    threshold = found.threshold(options.filter_loses)

    def learned(document: Document) -> StepResult:
        score = found.score(document.text)
        return StepResult(None, REASON) if score is not None and score < threshold else StepResult(document)

    return only_from(options.filter_sources, learned)


STEP = StepKind(options=LearnedOptions, build=_build)
