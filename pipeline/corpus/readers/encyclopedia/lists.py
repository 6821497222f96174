"""Lists: which of their items are running text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cloze.pipeline.corpus.readers.prose import (
    has_stating_sentence,
    reads_as_prose,
    reads_as_statement,
    states,
)

LETTER = re.compile(r"[^\W\d_]")
CLAUSE = re.compile(r"[;,](?:\s*(?:and|or|und|et|y|e|och|og|en|i|и))?\Z")
# A book, not a sentence. ISBN, ISSN, ASIN, OCLC or doi at the start of a word; the search is by one
# letter.
_CITATION = re.compile(r"[AIOd](?<!\w.)(?:(?<=I)S[BS]N|(?<=A)SIN|(?<=O)CLC|(?<=d)oi:)")
# Pages, a year at the end or behind the author: of a short text beside books, it is one, too.
_REFERENCE = re.compile(
    r"\b(?:pp?|S|s|с|стр|str|side|σ|σελ)\.\s?\d|\b(?:1[5-9]|20)\d\d[a-z]?[).]*\s*\Z|"
    r"\A[^\W\d_]+, [^()]{1,40}\((?:1[5-9]|20)\d\d[a-z]?\)|\d (?:pp?|S|s|с|σ)\.\Z"
)
_LONGEST_REFERENCE = 200  # characters
_SENTENCES_SHARE, _CHARACTERS_SHARE = 2 / 3, 0.8  # minimum of sentences in a list
_VERBS_SHARE = 0.5  # of the items
# Projects whose items stand alone: quotations, each with its source below it, and listings.
_ITEMIZED = frozenset(("wikiquote", "wikivoyage"))
_QUOTED = re.compile(r"\w{2}[.!?…。！？][\"“”»«’」』](?=\W|\Z)")  # a sentence, before its source


def running_items(
    items: Sequence[str], *, language: str, project: str, led: bool, indented: bool
) -> Sequence[str]:
    """Return the items of a list that are kept as text; none if it is no running text.

    Books and what has no words cost one item. The others are judged together. In an English
    encyclopedia, a list without a lead-in whose items hardly have verbs is a bibliography or an
    inventory, even if its items end like sentences.

    Args:
        language, project: of the wiki, such as en and wikipedia.
        led: bool, True if a sentence leads to the list.
        indented: bool, True if the items are indented text without bullets.
    """
    if led and len(items) > 1:
        clauses = [bool(CLAUSE.search(item)) for item in items]
        if all(clauses[:-1]) and not clauses[-1]:
            return () if any(map(is_bad, items)) else items
    good = [item for item in items if not is_bad(item)]
    has_books = len(good) < len(items)
    if has_books:
        good = [item for item in good if not is_reference(item)]
    is_english = language == "en"
    sentences = [item for item in good if _is_sentence(item, is_english)]
    if project in _ITEMIZED:
        return [item for item in good if item in sentences or _QUOTED.search(item)]
    if indented and led:
        return items if len(sentences) == len(items) else ()
    if 2 * len(good) < len(items) or len(sentences) < _SENTENCES_SHARE * len(good):
        return ()
    if sum(map(len, sentences)) < _CHARACTERS_SHARE * sum(map(len, good)):
        return ()
    if (led and not has_books) or not is_english or project != "wikipedia":
        return good
    return good if sum(map(states, good)) >= _VERBS_SHARE * len(good) else ()


def is_bad(item: str) -> bool:
    """Return True if an item is a book, or has no words."""
    return _CITATION.search(item) is not None or not LETTER.search(item)


def is_reference(text: str) -> bool:
    """Return True if a text ends like a reference to a book."""
    return len(text) <= _LONGEST_REFERENCE and _REFERENCE.search(text) is not None


def _is_sentence(item: str, is_english: bool) -> bool:
    return reads_as_prose(item) or (
        is_english and (reads_as_statement(item) or has_stating_sentence(item))
    )
