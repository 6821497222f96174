"""Corpus stage: lines and paragraphs that stand in one document more than once.

The first stays. Two lines are the same if they differ in case, digits and punctuation alone (`Page 1 of 9`, `Page 2 of
9`); two paragraphs of running text must be the same altogether, since a number may be all that they are about. Lines that many
documents share would need a count over the whole corpus, which no step that sees one document can have; menus and notices
of that kind are what the rules on boilerplate and C4's are for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from pipeline.corpus.document import Document
from pipeline.corpus.end_marks import ELLIPSIS, LATIN, OTHER_SCRIPTS
from pipeline.corpus.options import CorpusOptions
from pipeline.corpus.steps.base import Removed, StepFunction, StepKind, StepResult, only_from
from pipeline.corpus.steps.word_count import count_words

_NOT_LETTERS = re.compile(r"[\W\d_]+")
MINIMUM_WORDS = 6  # of a paragraph
_CLOSED = ('."', '!"', '?"', ".”", "!”", "?”", ".)", ".'", ".’", "」", "»")
_ENDS = (*LATIN, ELLIPSIS, *OTHER_SCRIPTS, *_CLOSED)


class RepeatedLinesOptions(CorpusOptions):
    """Lines and paragraphs that one document says twice."""

    web: ClassVar[Mapping[str, Any]] = {"duplicate_lines": True, "duplicate_paragraphs": True}

    duplicate_lines: bool = False
    """Whether, of lines that stand in a document several times, all but the first are removed."""

    duplicate_paragraphs: bool = False
    """Whether, of paragraphs that stand in a document several times, all but the first are removed; a paragraph ends as a sentence
    does."""


def is_paragraph(text: str) -> bool:
    """Whether it is running text: six words, and ends as a sentence does. Else it is a line: a heading, an item, a verse."""
    return text.endswith(_ENDS) and count_words(text) >= MINIMUM_WORDS


def remove_repeated(document: Document, *, lines: bool = True, paragraphs: bool = True) -> StepResult:
    """The document without later repetitions of its own lines (`duplicate_line`) and paragraphs (`duplicate_paragraph`)."""
    if len(document.paragraphs) < 2:
        return StepResult(document)
    seen: set[str] = set()
    kept: list[str] = []
    removed: list[Removed] = []
    for text in document.paragraphs:
        running = is_paragraph(text)
        key = text if running else _NOT_LETTERS.sub(" ", text.lower()).strip()
        if key and key in seen and (paragraphs if running else lines):
            removed.append(Removed("duplicate_paragraph" if running else "duplicate_line", text))
            continue
        seen.add(key)
        kept.append(text)
    return StepResult(replace(document, paragraphs=tuple(kept)) if removed else document, None, tuple(removed))


def _build(options: RepeatedLinesOptions) -> StepFunction | None:
    if not (options.duplicate_lines or options.duplicate_paragraphs):
        return None
    repeated = partial(remove_repeated, lines=options.duplicate_lines, paragraphs=options.duplicate_paragraphs)
    return only_from(options.web_sources, repeated)


STEP = StepKind(options=RepeatedLinesOptions, build=_build)
