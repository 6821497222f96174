"""The cleaning step learned: drops the documents that a quality filter scores too low."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from cloze.core.config import InputPath
from cloze.pipeline.corpus.document import Document
from cloze.pipeline.corpus.options import CorpusOptions
from cloze.pipeline.corpus.steps.base import (
    CleaningStep,
    StepFunction,
    drop_if,
    restrict_to_sources,
)

if TYPE_CHECKING:
    from cloze.labs.selection.quality_filter import Filter

DEFAULT_LOSS = 0.05  # share of good documents


class QualityFilterOptions(CorpusOptions):
    """Options of the quality filter (`cloze train-filter`)."""

    main: ClassVar[tuple[str, str]] = (
        "quality_filter",
        "an output directory of `cloze train-filter`",
    )

    quality_filter: InputPath | None = None
    """Directory of a filter trained with `cloze train-filter`. Documents that score below its
    threshold are dropped."""

    quality_filter_loss: float = Field(default=DEFAULT_LOSS, ge=0, lt=1)
    """Threshold, as the share of held-out good documents that it drops."""

    quality_filter_sources: tuple[str, ...] = ()
    """Kind of source to filter. Repeatable. Default: all."""


@functools.lru_cache(maxsize=4)
def _read(path: str) -> Filter:
    from cloze.labs.selection.quality_filter import Filter

    return Filter.read(path)


def _build(options: QualityFilterOptions) -> StepFunction | None:
    if options.quality_filter is None:
        return None
    quality_filter = _read(options.quality_filter)
    threshold = quality_filter.threshold(options.quality_filter_loss)

    def reason_of(document: Document) -> str | None:
        score = quality_filter.score(document.text)
        return "low_quality" if score is not None and score < threshold else None

    return restrict_to_sources(options.quality_filter_sources, drop_if(reason_of))


STEP = CleaningStep(
    options=QualityFilterOptions, build=_build, settings={"low_quality": "quality_filter_loss"}
)
