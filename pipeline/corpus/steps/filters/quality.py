"""Filter of documents that a trained quality filter scores below its threshold."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from pydantic import Field, model_validator
from typing_extensions import Self

from cloze.core.config import InputPath
from cloze.pipeline.corpus.document import Document
from cloze.pipeline.corpus.options import CorpusOptions
from cloze.pipeline.corpus.steps.base import (
    CleaningResult,
    CleaningStep,
    StepFunction,
    restrict_to_sources,
)

if TYPE_CHECKING:
    from cloze.pipeline.corpus.quality_filter import Filter

REASON = "unlike_good"
LOSES = 0.05  # share of good documents


class QualityFilterOptions(CorpusOptions):
    """Options of the quality filter (`cloze train-filter`)."""

    filter: InputPath | None = None
    """Learned filter from `cloze train-filter`; drops documents below its threshold."""

    quality_filter_loss: float = Field(default=LOSES, ge=0, lt=1)
    """Threshold, as the share of held-out good documents that it drops."""

    quality_filter_sources: tuple[str, ...] = ()
    """Kind of source to filter. Repeatable. Default: all."""

    @model_validator(mode="after")
    def _filter_is_named(self) -> Self:
        if self.filter is None and (
            self.quality_filter_loss != LOSES or self.quality_filter_sources
        ):
            raise ValueError(
                "quality_filter_loss and quality_filter_sources need filter: the directory that "
                "`cloze "
                "train-filter` made"
            )
        return self


@functools.lru_cache(maxsize=4)
def _filter(path: str) -> Filter:
    from cloze.pipeline.corpus.quality_filter import Filter

    return Filter.read(path)


def _build(options: QualityFilterOptions) -> StepFunction | None:
    if options.filter is None:
        return None
    found = _filter(options.filter)
    threshold = found.threshold(options.quality_filter_loss)

    def learned(document: Document) -> CleaningResult:
        score = found.score(document.text)
        return (
            CleaningResult(None, REASON)
            if score is not None and score < threshold
            else CleaningResult(document)
        )

    return restrict_to_sources(options.quality_filter_sources, learned)


STEP = CleaningStep(options=QualityFilterOptions, build=_build)
