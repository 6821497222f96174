"""Corpus stage: a filter looks at a cleaned document and gives a reason to drop it, or None to keep it.

The reasons become the counters `dropped/<reason>`. A new filter is a function here and a line in `document_filters`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from pipeline.text.document import HOLE, Document

Filter = Callable[[Document], str | None]

_NO_LETTER = re.compile(r"[\W\d_]+")


def too_short(characters: int, words: int) -> Filter:
    """Drop documents of fewer characters or fewer words (runs of non-blanks)."""

    def judge(document: Document) -> str | None:
        text = document.text
        return "too_short" if len(text) < characters or len(text.split()) < words else None

    return judge


def too_long(characters: int) -> Filter:
    """Drop documents of more characters: logs, tables and concatenations rather than texts."""

    def judge(document: Document) -> str | None:
        return "too_long" if sum(map(len, document.paragraphs)) > characters else None

    return judge


def not_prose(letters: float) -> Filter:
    """Drop documents whose share of letters among the non-blank characters is lower (English prose has about .95)."""

    def judge(document: Document) -> str | None:
        text = "".join(document.text.replace(HOLE, "").split())
        return "not_prose" if text and len(_NO_LETTER.sub("", text)) < letters * len(text) else None

    return judge


def document_filters(
    *,
    minimum_characters: int = 0,
    minimum_words: int = 0,
    maximum_characters: int = 0,
    minimum_letters: float = 0.0,
) -> tuple[Filter, ...]:
    """The filters that are on, in the order in which they are asked; a zero turns one off."""
    filters: list[Filter] = []
    if minimum_characters or minimum_words:
        filters.append(too_short(minimum_characters, minimum_words))
    if maximum_characters:
        filters.append(too_long(maximum_characters))
    if minimum_letters:
        filters.append(not_prose(minimum_letters))
    return tuple(filters)


def first_reason(document: Document, filters: Iterable[Filter]) -> str | None:
    """The reason of the first filter that has one; None: the document is kept."""
    for judge in filters:
        reason = judge(document)
        if reason is not None:
            return reason
    return None
