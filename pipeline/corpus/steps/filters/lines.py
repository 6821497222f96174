"""Removal of lines: boilerplate, and repetitions inside a document.

Boilerplate is cookie notices, menus, share buttons and licences. Each line is judged alone and must
be short. Most rules match whole lines only, so that a sentence about cookies or a privacy policy is
kept. English is covered best; cookie notices are known in six languages.

Of repetitions the first one is kept. Lines are equal if they differ only in case, digits and
punctuation (`Page 1 of 9`, `Page 2 of 9`). Paragraphs of running text must be identical, since a
number may be what they are about. Lines shared by many documents would need counts over the whole
corpus; the rules on boilerplate and C4's cover such menus and notices.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from cloze.core.words import count_words, letters_pattern
from cloze.pipeline.corpus.document import (
    ELLIPSIS,
    ETHIOPIC_STOP,
    LATIN,
    OTHER_SCRIPTS,
    Document,
    is_unmarked,
)
from cloze.pipeline.corpus.options import CorpusOptions
from cloze.pipeline.corpus.readers.prose import alternatives, read_lists
from cloze.pipeline.corpus.steps.base import (
    CleaningResult,
    CleaningStep,
    StepFunction,
    remove_paragraphs,
    restrict_to_sources,
)


class BoilerplateOptions(CorpusOptions):
    """Options of boilerplate removal."""

    web: ClassVar[Mapping[str, Any]] = {"boilerplate": True}

    boilerplate: bool = False
    """Remove lines of cookie notices, menus, share buttons and licences; on with --preset web."""


LONGEST_LINE = 400  # characters; longer lines are kept
_LONGEST_WHOLE = 120

_LISTS = read_lists(Path(__file__).with_suffix(".txt"), "\t")


def _rules(kind: str) -> dict[str, re.Pattern[str]]:
    """Return the pattern of each reason; see lines.txt."""
    return {
        section.removeprefix(f"{kind} "): re.compile(alternatives(_LISTS, section))
        for section in _LISTS
        if section.startswith(f"{kind} ")
    }


_INSIDE, _WHOLE = _rules("inside"), _rules("whole")
REASONS = (*_INSIDE, *_WHOLE)
_SIGNS = re.compile(_LISTS["signs"][0])
_BARE_ENDS = " \t.:;,!|»›>«<-–—•·*…→←↑#()[]"


def boilerplate_reason(line: str) -> str | None:
    """Return why a cleaned line is boilerplate; None if it is not."""
    if len(line) > LONGEST_LINE:
        return None
    lower = line.lower()
    if _SIGNS.search(lower):
        for reason, pattern in _INSIDE.items():
            if pattern.search(lower):
                return reason
    if len(lower) <= _LONGEST_WHOLE:
        bare = lower.strip(_BARE_ENDS)
        for reason, pattern in _WHOLE.items():
            if pattern.fullmatch(bare):
                return reason
    return None


def remove_boilerplate(document: Document) -> CleaningResult:
    """Remove boilerplate lines; their reasons are REASONS."""
    return remove_paragraphs(document, boilerplate_reason)


BOILERPLATE = CleaningStep(
    options=BoilerplateOptions,
    build=lambda options: (
        restrict_to_sources(options.web_sources, remove_boilerplate)
        if options.boilerplate
        else None
    ),
)


MINIMUM_WORDS = 6  # of a paragraph
_CLOSED = ('."', '!"', '?"', ".”", "!”", "?”", ".)", ".'", ".’", "」", "»")
_ENDS = (*LATIN, ELLIPSIS, *OTHER_SCRIPTS, ETHIOPIC_STOP, *_CLOSED)


class RepeatedLinesOptions(CorpusOptions):
    """Options of the removal of repeated lines and paragraphs."""

    web: ClassVar[Mapping[str, Any]] = {
        "drop_repeated_lines": True,
        "drop_repeated_paragraphs": True,
    }

    drop_repeated_lines: bool = False
    """Remove lines that occurred earlier in the same document; on with --preset web."""

    drop_repeated_paragraphs: bool = False
    """Remove paragraphs that occurred earlier in the same document; on with --preset web."""


def is_paragraph(text: str) -> bool:
    """Return True for running text: at least six words and the end of a sentence.

    Other texts are lines: headings, items, verse.
    """
    return (text.endswith(_ENDS) or is_unmarked(text)) and count_words(text) >= MINIMUM_WORDS


def remove_repeated(
    document: Document, *, lines: bool = True, paragraphs: bool = True
) -> CleaningResult:
    """Remove repeated lines (`duplicate_line`) and paragraphs (`duplicate_paragraph`)."""
    if len(document.paragraphs) < 2:
        return CleaningResult(document)
    seen: set[str] = set()

    def reason_of(text: str) -> str | None:
        running = is_paragraph(text)
        key = text if running else " ".join(letters_pattern().findall(text.lower()))
        if key and key in seen and (paragraphs if running else lines):
            return "duplicate_paragraph" if running else "duplicate_line"
        seen.add(key)
        return None

    return remove_paragraphs(document, reason_of)


def _build_repeated(options: RepeatedLinesOptions) -> StepFunction | None:
    if not (options.drop_repeated_lines or options.drop_repeated_paragraphs):
        return None
    repeated = partial(
        remove_repeated,
        lines=options.drop_repeated_lines,
        paragraphs=options.drop_repeated_paragraphs,
    )
    return restrict_to_sources(options.web_sources, repeated)


REPEATED = CleaningStep(options=RepeatedLinesOptions, build=_build_repeated)
