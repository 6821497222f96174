"""Corpus stage: what a cleaning step is, and what it says about a document."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pipeline.corpus.document import Document
from pipeline.corpus.options import CorpusOptions


@dataclass(frozen=True, slots=True)
class Removed:
    """A line, paragraph or sentence that was taken out of a document, or a piece of it that was replaced.

    Attributes:
        reason: becomes a counter.
        text: what was there; of personal data only what stands in its place.
    """

    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class Match:
    """A run of words that a document and a task have in common."""

    task: str
    words: str


@dataclass(frozen=True, slots=True)
class Sentences:
    """A document's sentences.

    Attributes:
        texts: in reading order, none empty, none with a line break.
        paragraphs: for each paragraph the index of its first sentence, rising, beginning with 0.
        dropped: the sentences dropped because something had been taken out of them: those with a hole (pipeline/corpus/document.py).
    """

    texts: list[str]
    paragraphs: list[int]
    dropped: list[str]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step made of a document.

    Attributes:
        document: what is left; None if and only if it is dropped.
        reason: why it is dropped; None if and only if it stays.
        removed: what was taken out of it, in reading order.
        matches: texts of tasks that were found in it.
        sentences: of the document, from the step that splits it.
    """

    document: Document | None
    reason: str | None = None
    removed: tuple[Removed, ...] = ()
    matches: tuple[Match, ...] = ()
    sentences: Sentences | None = None


StepFunction = Callable[[Document], StepResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepKind:
    """A row of the table of steps (pipeline/corpus/steps/chain.py).

    Attributes:
        options: the options that the step is built from; those declared in this class are the step's own.
        build: from the config to the function that treats a document, a pure one; None: the step is off. Where there is a
            `prepare`, it takes what that gave as a second argument.
        prepare: called once before anything is read, with the config and a directory that all workers see; what it returns is plain
            JSON. For steps that need more than the config, such as an index.
    """

    options: type[CorpusOptions]
    build: Callable[..., StepFunction | None]
    prepare: Callable[[Any, str], Any] | None = None


def only_from(sources: Iterable[str], function: StepFunction) -> StepFunction:
    """The function for the documents of these kinds of sources alone; for all of them where none is named."""
    chosen = frozenset(sources)
    return (lambda document: function(document) if document.source in chosen else StepResult(document)) if chosen else function
