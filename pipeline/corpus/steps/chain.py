"""Corpus stage: the steps that a document takes from its reader to its sentences, in their order.

A step is a pure function on a document. It returns the document, changed or not, with what it took out of it; or a
reason to drop the document. Reasons become counters, so nothing disappears uncounted.

    repair, clean             characters
    length                    too long
    boilerplate, c4, repeated lines
    length, letters           too short, not prose
    language
    gopher_quality, gopher_repetition
    personal_data

Sentences come last, by a call of their own (`sentences.split`), since what they give is no document any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

from pipeline.corpus.document import Document
from pipeline.corpus.steps.boilerplate import remove_boilerplate
from pipeline.corpus.steps.c4 import apply_c4
from pipeline.corpus.steps.clean import clean
from pipeline.corpus.steps.filters import Filter, NotProse, TooLong, TooShort
from pipeline.corpus.steps.gopher import gopher_quality
from pipeline.corpus.steps.language import Identify
from pipeline.corpus.steps.lines import remove_repeated
from pipeline.corpus.steps.personal import Kind, MaskPersonalData
from pipeline.corpus.steps.repair import repair_text
from pipeline.corpus.steps.repetition import gopher_repetition
from pipeline.corpus.steps.result import Removed, Result, Step
from pipeline.corpus.text_config import TextConfig

__all__ = ["Removed", "Result", "Step", "build_steps", "run_steps"]


@dataclass(frozen=True, slots=True)
class Change:
    """A step that changes the document and drops nothing."""

    name: str
    function: Callable[[Document], Document]

    def __call__(self, document: Document) -> Result:
        return Result(self.function(document))


@dataclass(frozen=True, slots=True)
class Judge:
    """A step that looks at the document, and drops it or leaves it as it is."""

    name: str
    function: Filter

    def __call__(self, document: Document) -> Result:
        reason = self.function(document)
        return Result(document) if reason is None else Result(None, reason)


@dataclass(frozen=True, slots=True)
class Apply:
    """A step that gives a result of its own."""

    name: str
    function: Callable[[Document], Result]

    def __call__(self, document: Document) -> Result:
        return self.function(document)


@dataclass(frozen=True, slots=True)
class ByLanguage:
    """A step whose rules depend on the document's language."""

    name: str
    function: Callable[..., Result | str | None]
    fallback: str

    def __call__(self, document: Document) -> Result:
        found = self.function(document, language=document.language or self.fallback)
        if isinstance(found, Result):
            return found
        return Result(document) if found is None else Result(None, found)


@dataclass(frozen=True, slots=True)
class OnlyFrom:
    """A step for the documents of some sources."""

    step: Step
    sources: frozenset[str]

    @property
    def name(self) -> str:
        return self.step.name

    def __call__(self, document: Document) -> Result:
        return self.step(document) if document.source in self.sources else Result(document)


def repair(document: Document) -> Document:
    """The document with wrongly decoded text put right in its title and paragraphs."""
    title = repair_text(document.title)
    paragraphs = tuple(map(repair_text, document.paragraphs))
    changed = title != document.title or paragraphs != document.paragraphs
    return replace(document, title=title, paragraphs=paragraphs) if changed else document


def build_steps(config: TextConfig) -> tuple[Step, ...]:
    """The steps that are on, in the order in which they run."""
    steps: list[Step] = []
    if config.repair_unicode:
        steps.append(Change("repair", repair))
    cleaning = partial(
        clean, controls=config.remove_controls, form=config.normalize_unicode, whitespace=config.collapse_whitespace
    )
    steps.append(Change("clean", cleaning))
    if config.maximum_characters:
        steps.append(Judge("too_long", TooLong(config.maximum_characters)))
    steps += _for_web(config, _line_steps(config))
    if config.minimum_characters or config.minimum_words:
        steps.append(Judge("too_short", TooShort(config.minimum_characters, config.minimum_words)))
    if config.minimum_letters:
        steps.append(Judge("letters", NotProse(config.minimum_letters)))
    steps += _language_steps(config)
    steps += _for_web(config, _gopher_steps(config))
    if config.mask_personal_data:
        tokens: dict[Kind, str] = {"email": config.email_token, "ip": config.ip_token, "phone": config.phone_token}
        chosen = tuple((kind, token) for kind, token in tokens.items() if kind in config.mask_personal_data)
        steps.append(MaskPersonalData(chosen, config.fallback_language))
    return tuple(steps)


def _line_steps(config: TextConfig) -> list[Step]:
    steps: list[Step] = []
    if config.boilerplate:
        steps.append(Apply("boilerplate", remove_boilerplate))
    if config.c4:
        # before the language is identified, as in C4; with `auto` the ends of sentences of all languages count
        steps.append(ByLanguage("c4", partial(apply_c4, end_marks=config.c4_end_marks), config.language))
    if config.duplicate_lines or config.duplicate_paragraphs:
        repeated = partial(remove_repeated, lines=config.duplicate_lines, paragraphs=config.duplicate_paragraphs)
        steps.append(Apply("repeated", repeated))
    return steps


def _language_steps(config: TextConfig) -> list[Step]:
    if config.language == "auto":
        return [Identify(frozenset(config.languages), config.language_probability)]
    if config.language_probability:
        return _for_web(config, [Identify(frozenset({config.language}), config.language_probability)])
    return []


def _gopher_steps(config: TextConfig) -> list[Step]:
    steps: list[Step] = []
    if config.gopher_quality:
        steps.append(ByLanguage("gopher_quality", gopher_quality, config.fallback_language))
    if config.gopher_repetition:
        steps.append(Judge("gopher_repetition", gopher_repetition))
    return steps


def _for_web(config: TextConfig, steps: list[Step]) -> list[Step]:
    """The steps, limited to the sources that they are meant for."""
    sources = frozenset(config.web_sources)
    return [OnlyFrom(step, sources) for step in steps] if sources else steps


def run_steps(
    document: Document, steps: Iterable[Step], observe: Callable[[str, Document, Result], None] | None = None
) -> Result:
    """Take the document through the steps, until one drops it.

    Args:
        document: as its reader gave it.
        steps: of `build_steps`.
        observe: called after each step with its name, the document before it, and its result.

    Returns:
        The last document, or the reason why there is none; and all that was removed on the way.
    """
    removed: tuple[Removed, ...] = ()
    for step in steps:
        result = step(document)
        if observe is not None:
            observe(step.name, document, result)
        removed += result.removed
        if result.document is None:
            return Result(None, result.reason, removed)
        document = result.document
    return Result(document, None, removed)
