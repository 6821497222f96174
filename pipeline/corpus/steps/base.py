"""Interface of a cleaning step and its result."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cloze.pipeline.corpus.document import Document
from cloze.pipeline.corpus.options import CorpusOptions


@dataclass(frozen=True, slots=True)
class RemovedText:
    """Text that a step removed or replaced."""

    reason: str  # name of the counter
    text: str  # the removed line, paragraph or sentence; for personal data only the replacement


@dataclass(frozen=True, slots=True)
class TaskMatch:
    """A run of words that a document shares with a task."""

    task: str
    words: str


@dataclass(frozen=True, slots=True)
class Sentences:
    """Sentences of a document."""

    texts: list[str]  # sentences in reading order, non-empty, without line breaks
    paragraphs: list[int]  # index of the first sentence of each paragraph, ascending, from 0
    dropped: list[str]  # sentences dropped because of a placeholder (pipeline/corpus/document.py)


@dataclass(frozen=True, slots=True)
class CleaningResult:
    """Result of a cleaning step."""

    document: Document | None  # the cleaned document; None if and only if it is dropped
    reason: str | None = None  # why it is dropped; None if and only if it is kept
    removed: tuple[RemovedText, ...] = ()  # removed texts in reading order
    matches: tuple[TaskMatch, ...] = ()  # task texts found in the document
    sentences: Sentences | None = None  # sentences, from the step that splits the document


StepFunction = Callable[[Document], CleaningResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningStep:
    """Definition of a cleaning step, referenced by the table in pipeline/corpus/steps/chain.py."""

    options: type[CorpusOptions]  # options of the step; those declared in this class are its own
    # returns the function for documents, given the config (and the result of `prepare`, if any);
    # None turns the step off
    build: Callable[..., StepFunction | None]
    # called once before reading, with the config and a directory visible to all workers; returns
    # plain JSON. For steps that need more than the config, such as an index.
    prepare: Callable[[Any, str], Any] | None = None
    # option behind each reason to drop a document, by the reason or its beginning. A warning names
    # it when the reason drops most of a corpus; default: all own options.
    settings: Mapping[str, str] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)  # what each reason means, for the card

    @property
    def own_options(self) -> list[str]:
        return list(inspect.get_annotations(self.options))

    def is_on(self, config: CorpusOptions) -> bool:
        """Return whether the step is on; one that needs `prepare`, whether an option is set."""
        if self.prepare is None:
            return self.build(config) is not None
        fields = self.options.model_fields
        return any(getattr(config, name) != fields[name].get_default() for name in self.own_options)


def drop_if(reason_of: Callable[[Document], str | None]) -> StepFunction:
    """Return a step that drops the documents for which `reason_of` returns a reason."""

    def step(document: Document) -> CleaningResult:
        reason = reason_of(document)
        return CleaningResult(document) if reason is None else CleaningResult(None, reason)

    return step


def remove_paragraphs(document: Document, reason_of: Callable[[str], str | None]) -> CleaningResult:
    """Remove the paragraphs for which `reason_of` returns a reason; it gets them in order."""
    retained: list[str] = []
    removed: list[RemovedText] = []
    for text in document.paragraphs:
        reason = reason_of(text)
        if reason is None:
            retained.append(text)
        else:
            removed.append(RemovedText(reason, text))
    if not removed:
        return CleaningResult(document)
    return CleaningResult(replace(document, paragraphs=tuple(retained)), None, tuple(removed))


def restrict_to_sources(
    sources: Iterable[str], function: StepFunction, others: StepFunction = CleaningResult
) -> StepFunction:
    """Restrict a step to documents of these kinds of sources; `others` is for the other documents.

    Without kinds it applies to all.
    """
    selected = frozenset(sources)
    if not selected:
        return function
    return lambda document: (function if document.source in selected else others)(document)
