"""Removal of lines and paragraphs that occur more than once in a document.

The first occurrence is kept. Lines are equal if they differ only in case, digits and punctuation
(`Page 1 of 9`, `Page 2 of 9`). Paragraphs of running text must be identical, since a number may be
what they are about. Lines shared by many documents would need counts over the whole corpus; the
rules on boilerplate and C4's cover such menus and notices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from cloze.core.words import count_words, letters_pattern
from cloze.pipeline.corpus.document import ELLIPSIS, LATIN, OTHER_SCRIPTS, Document, is_unmarked
from cloze.pipeline.corpus.options import CorpusOptions
from cloze.pipeline.corpus.steps.base import (
    CleaningResult,
    CleaningStep,
    RemovedText,
    StepFunction,
    restrict_to_sources,
)

MINIMUM_WORDS = 6  # of a paragraph
_CLOSED = ('."', '!"', '?"', ".”", "!”", "?”", ".)", ".'", ".’", "」", "»")
_ENDS = (*LATIN, ELLIPSIS, *OTHER_SCRIPTS, *_CLOSED)


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
    kept: list[str] = []
    removed: list[RemovedText] = []
    for text in document.paragraphs:
        running = is_paragraph(text)
        key = text if running else " ".join(letters_pattern().findall(text.lower()))
        if key and key in seen and (paragraphs if running else lines):
            removed.append(
                RemovedText("duplicate_paragraph" if running else "duplicate_line", text)
            )
            continue
        seen.add(key)
        kept.append(text)
    return CleaningResult(
        replace(document, paragraphs=tuple(kept)) if removed else document, None, tuple(removed)
    )


def _build(options: RepeatedLinesOptions) -> StepFunction | None:
    if not (options.drop_repeated_lines or options.drop_repeated_paragraphs):
        return None
    repeated = partial(
        remove_repeated,
        lines=options.drop_repeated_lines,
        paragraphs=options.drop_repeated_paragraphs,
    )
    return restrict_to_sources(options.web_sources, repeated)


STEP = CleaningStep(options=RepeatedLinesOptions, build=_build)
