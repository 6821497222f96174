"""Stage filter: trains a quality filter on good and bad documents.

The corpus stage applies the filter in its step `learned`. Documents are read and cleaned as in that
stage. A fifth of them, chosen by document key, is held out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from cloze.core.config import StageConfig
from cloze.core.stages.stage import BuildContext, Stage, StageResult
from cloze.pipeline.corpus.sources import Source, list_sources, source_fingerprints

VERSION = 1
HELDOUT_SHARE = 0.2


class FilterConfig(StageConfig):
    """Config of the stage `filter`."""

    good: tuple[Source, ...] = Field(min_length=1)
    """Source of good documents, which a filter should keep. Repeatable."""

    bad: tuple[Source, ...] = ()
    """Source of bad documents, which a filter should drop. An n-gram filter needs none, and is
    measured on them. Repeatable."""

    kind: Literal["linear", "ngram"] = "linear"
    """Filter to train: linear (a classifier over hashed words and word pairs) or ngram (perplexity
    under a model of good documents)."""

    bits: int = Field(default=20, ge=10, le=28)
    """Number of hash buckets of n-grams, as a power of two."""

    language: str = Field(default="en", pattern="^[a-z]{2,3}$")
    """Language of the text (ISO 639)."""

    @model_validator(mode="after")
    def _has_bad_documents(self) -> FilterConfig:
        if self.kind == "linear" and not self.bad:
            raise ValueError(
                "a linear filter needs bad documents (found none). Set --bad KIND=PATH, or use "
                "kind: ngram"
            )
        return self

    def external_fingerprints(self) -> dict[str, str]:
        """Return the fingerprints `good/source/KIND` and `bad/source/KIND`."""
        return {
            f"{side}/{name}": sha256
            for side, sources in (("good", self.good), ("bad", self.bad))
            for name, sha256 in source_fingerprints(list_sources(sources).slices).items()
        }


def run(config: FilterConfig, build: BuildContext) -> StageResult:
    """Read the documents, train the filter, evaluate and write it.

    Returns:
        Stage result; its summary has `documents` by side and the metrics on held-out documents:
        `auc`, and `bad_dropped`, the share of bad documents dropped by the threshold that loses a
        given share of good ones.

    Raises:
        DataError: a source cannot be read, or has too few documents.
    """
    from cloze.labs.selection.quality_filter import Example, train_filter

    examples = [
        Example(text, good, heldout)
        for good, sources in ((True, config.good), (False, config.bad))
        for text, heldout in _documents(sources, config, build)
    ]
    trained = train_filter(
        examples,
        config.kind,
        config.bits,
        lambda done: build.report.progress(done, 1.0, "filter", {"step": "learn"}),
    )
    trained.filter.write(build.path)
    counts = {
        "good": sum(example.good for example in examples),
        "bad": sum(not example.good for example in examples),
    }
    return StageResult(
        rows=len(examples), summary={"kind": config.kind, "documents": counts, **trained.figures}
    )


def _documents(
    sources: tuple[Source, ...], config: FilterConfig, build: BuildContext
) -> Iterator[tuple[str, bool]]:
    """Yield (text, held out) per document, cleaned as by the corpus stage."""
    from cloze.core import random_keys
    from cloze.pipeline.corpus.config import CorpusConfig
    from cloze.pipeline.corpus.read.read_and_clean import is_heldout, read_documents
    from cloze.pipeline.corpus.readers.base import ReadCounters
    from cloze.pipeline.corpus.sources import plan_reading
    from cloze.pipeline.corpus.steps.chain import build_steps, run_steps

    if not sources:
        return
    corpus = CorpusConfig(sources=sources, language=config.language)
    steps = [(name, step) for name, step in build_steps(corpus) if name != "sentences"]
    slices, _ = plan_reading(corpus.listed())
    build.counters.update(corpus.listing().counters())
    total = float(sum(planned.slice.size for planned in slices))
    done = 0.0
    for planned in slices:
        counters = ReadCounters(slice=planned.slice)
        for raw in read_documents(corpus, counters):
            document = run_steps(raw, steps).document
            if document is None:
                build.counters["dropped/by_cleaning"] += 1
            elif any(letter.isalnum() for letter in document.text):
                yield (
                    document.text,
                    is_heldout(random_keys.document_key(document.id), HELDOUT_SHARE),
                )
        done += planned.slice.size
        build.report.progress(done, total, "bytes", {"step": "read"})


def headline(summary: Mapping[str, Any]) -> str:
    """Return a line with the numbers of documents and the AUC."""
    counts = summary["documents"]
    text = f"{counts['good']:,} good and {counts['bad']:,} bad documents"
    return f"{text}, AUC {summary['auc']:.3f} on held-out ones" if "auc" in summary else text


STAGE = Stage(
    name="filter",
    version=VERSION,
    config=FilterConfig,
    run=run,
    worker="cloze.pipeline",
    headline=headline,
    comparison_metrics=("auc",),
)
