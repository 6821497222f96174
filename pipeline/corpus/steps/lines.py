"""Corpus stage: lines and paragraphs that stand in one document more than once.

The first stays. Two lines are the same if they differ in case, digits and punctuation alone (`Page 1 of 9`, `Page 2 of
9`); two paragraphs of running text must be the same altogether, since a number may be all that they are about. Lines that many
documents share would need a count over the whole corpus, which no step that sees one document can have; menus and notices
of that kind are what the rules on boilerplate and C4's are for.
"""

from __future__ import annotations

import re
from dataclasses import replace

from pipeline.corpus.document import Document
from pipeline.corpus.steps.result import Removed, Result
from pipeline.corpus.steps.words import count_words

_NOT_LETTERS = re.compile(r"[\W\d_]+")
MINIMUM_WORDS = 6  # of a paragraph
_ENDS = (".", "!", "?", "…", "。", "！", "？", "।", "؟", "۔", '."', '!"', '?"', ".”", "!”", "?”", ".)", ".'", ".’", "」", "»")


def is_paragraph(text: str) -> bool:
    """Whether it is running text: six words, and ends as a sentence does. Else it is a line: a heading, an item, a verse."""
    return text.endswith(_ENDS) and count_words(text) >= MINIMUM_WORDS


def remove_repeated(document: Document, *, lines: bool = True, paragraphs: bool = True) -> Result:
    """The document without later copies of its own lines (`duplicate_line`) and paragraphs (`duplicate_paragraph`)."""
    if len(document.paragraphs) < 2:
        return Result(document)
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
    return Result(replace(document, paragraphs=tuple(kept)) if removed else document, None, tuple(removed))
