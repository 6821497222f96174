"""Stage filter: good and bad documents in; a filter that tells such documents apart out, for the step `learned` of the corpus stage.

What is good is what one wants more of: chosen pages, or the texts of a domain. Documents are read and cleaned as the corpus stage does,
so the filter sees what it will see there. A fifth of them, chosen by their keys, is held out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from pipeline.core.config import StageConfig
from pipeline.core.stage import Build, Outcome, Stage
from pipeline.corpus.sources import Source, list_sources, source_fingerprints

VERSION = 1
HELDOUT_SHARE = 0.2


class FilterConfig(StageConfig):
    """What a filter is learned from."""

    good: tuple[Source, ...] = Field(min_length=1)
    """Documents that are wanted."""

    bad: tuple[Source, ...] = ()
    """Documents that are not; an n-gram model needs none, and is measured on them."""

    kind: Literal["linear", "ngram"] = "linear"
    """`linear`: a classifier over hashed words and pairs of words; `ngram`: the perplexity under a model of the good documents."""

    bits: int = Field(default=20, ge=10, le=28)
    """The number of buckets that n-grams are hashed to, as a power of two."""

    language: str = Field(default="en", pattern="^[a-z]{2,3}$")
    """Language of the text (ISO 639)."""

    @model_validator(mode="after")
    def _something_to_tell_apart(self) -> FilterConfig:
        if self.kind == "linear" and not self.bad:
            raise ValueError("a linear filter needs bad documents (found none); give --bad KIND=PATH, or kind: ngram")
        return self

    def external_fingerprints(self) -> dict[str, str]:
        """`good/source/KIND` and `bad/source/KIND`."""
        return {
            f"{side}/{name}": sha256
            for side, sources in (("good", self.good), ("bad", self.bad))
            for name, sha256 in source_fingerprints(list_sources(sources)).items()
        }


def run(config: FilterConfig, build: Build) -> Outcome:
    """Read, learn, measure, write.

    Returns:
        summary: `documents` by side, and the figures on held-out documents: `auc`; `bad_dropped`, the share of bad ones that goes with
        the threshold that loses this share of good ones.

    Raises:
        DataError: a source cannot be read, or holds too few documents.
    """
    from pipeline.corpus.learned.fit import Example, learn

    examples = [
        Example(text, good, heldout)
        for good, sources in ((True, config.good), (False, config.bad))
        for text, heldout in _documents(sources, config, build)
    ]
    found = learn(
        examples, config.kind, config.bits, lambda done: build.report.progress(done, 1.0, "filter", {"step": "learn"})
    )
    found.filter.write(build.path)
    counts = {"good": sum(example.good for example in examples), "bad": sum(not example.good for example in examples)}
    return Outcome(rows=len(examples), summary={"kind": config.kind, "documents": counts, **found.figures})


def _documents(sources: tuple[Source, ...], config: FilterConfig, build: Build) -> Iterator[tuple[str, bool]]:
    """The text of each document as the corpus stage's step would see it, and whether it is held out."""
    from pipeline.core import random_keys
    from pipeline.corpus.config import CorpusConfig
    from pipeline.corpus.extract import is_heldout, read_documents
    from pipeline.corpus.readers.base import Tally
    from pipeline.corpus.sources import plan_reading
    from pipeline.corpus.steps.chain import build_steps, run_steps

    if not sources:
        return
    corpus = CorpusConfig(sources=sources, language=config.language)
    steps = [(name, step) for name, step in build_steps(corpus) if name != "sentences"]
    slices, _ = plan_reading(corpus.listed())
    total = float(sum(one.slice.size for one in slices))
    done = 0.0
    for one in slices:
        tally = Tally(slice=one.slice)
        for raw in read_documents(corpus, tally):
            document = run_steps(raw, steps).document
            if document is None:
                build.counters["dropped/by_cleaning"] += 1
            elif any(letter.isalnum() for letter in document.text):
                yield document.text, is_heldout(random_keys.document_key(document.id), HELDOUT_SHARE)
        done += one.slice.size
        build.report.progress(done, total, "bytes", {"step": "read"})


def headline(summary: Mapping[str, Any]) -> str:
    """Documents, and how well it tells them apart."""
    counts = summary["documents"]
    told = f"{counts['good']:,} good and {counts['bad']:,} bad documents"
    return f"{told}, AUC {summary['auc']:.3f} on held-out ones" if "auc" in summary else told


STAGE = Stage(
    name="filter",
    version=VERSION,
    config=FilterConfig,
    run=run,
    worker="pipeline",
    headline=headline,
    compared=("auc",),
)
