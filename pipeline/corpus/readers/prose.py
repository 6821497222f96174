"""For readers that take markup away: whether a line of its own is running text, in any script."""

from __future__ import annotations

import re

from pipeline.corpus.end_marks import ELLIPSIS, LATIN, OTHER_SCRIPTS
from pipeline.corpus.readers.english_verbs import has_finite_verb

_CLOSERS = "\"'”’“‘»›«‹)\\]」』）》】"  # of any language: German closes with what English opens with
_BURMESE_STOP = "၊"  # ends a clause as often as a sentence
_END = re.compile(rf"[{LATIN}{OTHER_SCRIPTS}{ELLIPSIS}{_BURMESE_STOP}][{_CLOSERS}\s]*\Z")
_LONGEST_END = 8  # characters of an end mark and what closes behind it
# Inside a line: only marks that hardly stand there for anything else, with a blank where the script leaves one.
_INNER_END = re.compile(r"[.!?؟۔।] |[。！？]")
# Scripts written without blanks between words: Han, kana, Thai, Lao, Tibetan, Burmese, Khmer.
_UNSPACED = re.compile(
    "[\u3005-\u3007\u3041-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u0e01-\u0eff\u0f40-\u0fbc\u1000-\u109f\u1780-\u17ff]"
)
_UNSTOPPED = re.compile("[\u0e01-\u0eff\u0f40-\u0fbc\u1780-\u17ff]")  # of them, those that need no full stop
_LETTERS_A_WORD = 2  # of unspaced scripts, about
_FEWEST_WORDS = 4
_LONG = 120  # characters of text that needs no end of its own

_FEWEST_STATED = 5  # words of a statement without an end mark
_OPENS = re.compile(r"[\"'“‘«(\[]*[\dA-ZÀ-ÖØ-Þ]")
_BREAKS_OFF = re.compile(
    r"(?:[,;:–—-]|\b(?:of|the|an?|and|or|to|in|by|with|for|as|from|at|on|is|are|was|were|include|includes|including|than))\s*\Z"
)


def ends_as_sentence(text: str) -> bool:
    """Whether the text's last mark is one that ends sentences, in any script."""
    return _END.search(text, max(0, len(text) - _LONGEST_END)) is not None


def reads_as_prose(text: str) -> bool:
    """Whether a line of its own (a list's item, a remnant of a table) is a sentence: four words, and the end of one.

    Of fewer words one must be an English verb.
    """
    if len(text.split(maxsplit=_FEWEST_WORDS)) < _FEWEST_WORDS:
        if text.isascii():
            return ends_as_sentence(text) and has_finite_verb(text)
        letters = len(_UNSPACED.findall(text[:_LONG]))
        if letters < _FEWEST_WORDS * _LETTERS_A_WORD:
            return ends_as_sentence(text) and has_finite_verb(text)
        if len(text) >= _LONG // 3 and len(_UNSTOPPED.findall(text[:_LONG])) * 2 > letters:
            return True
    if ends_as_sentence(text):
        return True
    return len(text) > _LONG and bool(_INNER_END.search(text))


def reads_as_statement(text: str) -> bool:
    """Whether English text without an end mark is a sentence whose full stop was forgotten: it begins as one, has a verb and is whole."""
    return (
        len(text.split(maxsplit=_FEWEST_STATED - 1)) >= _FEWEST_STATED
        and _OPENS.match(text) is not None
        and _BREAKS_OFF.search(text) is None
        and has_finite_verb(text)
    )
