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
    """Text that a step removed or replaced.

    Attributes:
        reason: name of the counter.
        text: the removed line, paragraph or sentence; for personal data only the replacement.
    """

    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class TaskMatch:
    """A run of words that a document shares with a task."""

    task: str
    words: str


@dataclass(frozen=True, slots=True)
class Sentences:
    """Sentences of a document.

    Attributes:
        texts: sentences in reading order, non-empty, without line breaks.
        paragraphs: index of the first sentence of each paragraph, ascending, from 0.
        dropped: sentences dropped because of a placeholder (pipeline/corpus/document.py).
    """

    texts: list[str]
    paragraphs: list[int]
    dropped: list[str]


@dataclass(frozen=True, slots=True)
class CleaningResult:
    """Result of a cleaning step.

    Attributes:
        document: the cleaned document; None if and only if it is dropped.
        reason: why it is dropped; None if and only if it is kept.
        removed: removed texts in reading order.
        matches: task texts found in the document.
        sentences: sentences, from the step that splits the document.
    """

    document: Document | None
    reason: str | None = None
    removed: tuple[RemovedText, ...] = ()
    matches: tuple[TaskMatch, ...] = ()
    sentences: Sentences | None = None


StepFunction = Callable[[Document], CleaningResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningStep:
    """Definition of a cleaning step, referenced by the table in pipeline/corpus/steps/chain.py.

    Attributes:
        options: options of the step; those declared in this class are its own.
        build: returns the function for documents, given the config (and the result of `prepare`, if
            any); None turns the step off.
        prepare: called once before reading, with the config and a directory visible to all workers;
            returns plain JSON. For steps that need more than the config, such as an index.
        settings: option behind each reason to drop a document, by the reason or its beginning. A
            warning names it when the reason drops most of a corpus; default: all own options.
        reasons: what each reason means, for the card.
    """

    options: type[CorpusOptions]
    build: Callable[..., StepFunction | None]
    prepare: Callable[[Any, str], Any] | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)

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
