"""Tests of whether text is a sentence or a heading, by finite verbs and end marks.

benchmarks/text_scorecard.py measures both kinds of errors on headings and short sentences of real
articles.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from cloze.core.words import UNSPACED_LETTER
from cloze.pipeline.corpus.document import (
    ELLIPSIS,
    ETHIOPIC_STOP,
    LATIN,
    OTHER_SCRIPTS,
    is_unmarked,
)


def read_lists(path: Path, separator: str | None = None) -> dict[str, list[str]]:
    """Return the entries of a data file by section.

    Args:
        path: text file of `[section]` lines, lines of entries, and comments (`#`).
        separator: text between entries; None: white space.
    """
    lists: dict[str, list[str]] = {}
    entries: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            entries = lists.setdefault(line.strip("[]"), [])
        elif line and not line.startswith("#"):
            entries += line.split(separator)
    return lists


def alternatives(lists: Mapping[str, list[str]], name: str) -> str:
    """Return a section as alternatives of a pattern; <NAME> in it stands for the section NAME."""
    return re.sub("<([A-Z]+)>", lambda match: alternatives(lists, match[1]), "|".join(lists[name]))


_LISTS = read_lists(Path(__file__).with_suffix(".txt"))
_WORDS = {name: frozenset(words) for name, words in _LISTS.items()}
_AUXILIARIES, _FINITE = _WORDS["auxiliaries"], _WORDS["finite verbs"]
_AMBIGUOUS, _IMPERATIVES = _WORDS["ambiguous verbs"], _WORDS["imperatives"]
_PERSONS, _SUBJECTS = _WORDS["persons"], _WORDS["subjects"]
_DETERMINERS, _NO_VERB_AFTER = _WORDS["determiners"], _WORDS["before no verb"]
_AFTER_PAST, _AFTER_PRESENT = _WORDS["after past tense"], _WORDS["after present tense"]
_NOUNS_OR_IMPERATIVES, _OBJECTS = _WORDS["nouns or imperatives"], _WORDS["after imperatives"]
_BEFORE_IMPERATIVES = _WORDS["before imperatives"]
_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*|\d[\d.,–-]*")
_FARTHEST = 14  # words in which the verb of a statement is searched


def has_finite_verb(text: str) -> bool:
    """Return True if one of the first words is a finite verb with a subject before it."""
    words = _WORD.findall(text[:200])[:_FARTHEST]
    if len(words) < 2:
        return False
    first, second = words[0].lower(), words[1]
    if first in _SUBJECTS:
        if "'" in first or "’" in first:
            return True
        if second.islower() and second not in _NO_VERB_AFTER:
            if first not in _DETERMINERS:
                return True
            if first in ("this", "that") and (second in _AUXILIARIES or second in _FINITE):
                return True
    return _has_finite(words)


def is_instruction(text: str) -> bool:
    """Return True if English text begins with an imperative, maybe after an adverb or a clause."""
    _, comma, remainder = text.partition(", ")
    words = _WORD.findall(text[:200])[:_FARTHEST]
    while words and (words[0].lower() in _BEFORE_IMPERATIVES or words[0].endswith("ly")):
        words = words[1:]
    if len(words) < 2:
        return False
    verb, following = words[0].lower(), words[1]
    if verb in _IMPERATIVES and (following.islower() or following[0].isdigit()):
        return following not in ("of", "is", "was", "and")
    if verb in _NOUNS_OR_IMPERATIVES and (following in _OBJECTS or following[0].isdigit()):
        return True
    return bool(comma) and words[0][0].isupper() and is_instruction(remainder)


def states(text: str) -> bool:
    """Return True if a sentence of English text has a finite verb or is an instruction."""
    return has_finite_verb(text) or any(
        is_instruction(sentence) or has_finite_verb(sentence)
        for sentence in _SENTENCE_END.split(text)
    )


def has_stating_sentence(text: str) -> bool:
    """Return True if English text has a complete sentence before its end, and a verb."""
    return (". " in text or "! " in text or "? " in text) and states(text)


def _has_finite(words: list[str]) -> bool:
    starts_with_subject = words[0].lower() in _DETERMINERS or words[0].lower() in _SUBJECTS
    for index in range(1, len(words)):
        word = words[index]
        if not word.islower():
            continue
        previous = words[index - 1].lower()
        if previous in _PERSONS and word not in _NO_VERB_AFTER:
            return True
        if previous in _NO_VERB_AFTER:
            continue
        if word in _AUXILIARIES or word in _FINITE:
            return True
        next_word = words[index + 1] if index + 1 < len(words) else ""
        if word in _AMBIGUOUS and (
            next_word in _AFTER_PAST
            or (starts_with_subject and index > 1 and next_word not in ("of", ""))
        ):
            return True
        if len(word) > 4 and word.endswith("ed"):
            if starts_with_subject and next_word not in ("by", "with", "for", "as", "under"):
                return True
            # "States admitted to the Union" has no finite verb
            if next_word in _AFTER_PAST and not (index == 1 and previous[-1] == "s"):
                return True
        elif (
            len(word) > 3
            and word[-1] == "s"
            and word[-2] not in "su"
            and (
                next_word in _AFTER_PRESENT
                or (starts_with_subject and index > 1 and next_word in _AFTER_PAST)
            )
        ):
            return True
    return False


# Tests for readers of markup: whether a line is running text, in any script.

# Closing marks of any language; German closes with the opening mark of English.
_CLOSERS = "\"'”’“‘»›«‹)\\]」』）》】"
_BURMESE_STOP = "၊"  # ends a clause as often as a sentence
_END = re.compile(
    rf"(?:[{LATIN}{OTHER_SCRIPTS}{ELLIPSIS}{_BURMESE_STOP}]|{ETHIOPIC_STOP})[{_CLOSERS}\s]*\Z"
)
_LONGEST_END = 8  # characters of an end mark and closing marks
# Inside a line: only marks with hardly any other use, followed by a blank if the script has blanks.
_INNER_END = re.compile(rf"[{LATIN}] |[{OTHER_SCRIPTS}]")
_SENTENCE_END = re.compile(rf"(?<=[{LATIN}])[{_CLOSERS}]*\s+|\s[–—-]\s")
_LETTERS_A_WORD = 2  # approximate, in unspaced scripts
_FEWEST_WORDS = 4
_LONG = 120  # characters of text that needs no end mark
_LONG_UNMARKED = 30  # characters of text in a script without end marks

_FEWEST_STATED = 5  # words of a statement without an end mark
_OPENS = re.compile(r"[\"'“‘«(\[]*[\dA-ZÀ-ÖØ-Þ]")
_BREAKS_OFF = re.compile(
    r"(?:[,;:–—-]|\b(?:of|the|an?|and|or|to|in|by|with|for|as|from|at|on|is|are|was|were|include|"
    r"includes|including|than))\s*\Z"
)


def has_end(text: str) -> bool:
    """Return True if the text ends with an end mark."""
    return _END.search(text, max(0, len(text) - _LONGEST_END)) is not None


def ends_as_sentence(text: str) -> bool:
    """Return True if the text ends with an end mark or its script has none."""
    return has_end(text) or is_unmarked(text)


def reads_as_prose(text: str) -> bool:
    """Return True if a separate line (list item, rest of a table) is a sentence.

    A sentence has an end mark and at least four words, or an English finite verb.
    """
    fewest_letters = _FEWEST_WORDS * _LETTERS_A_WORD
    if is_unmarked(text):
        if len(text) >= _LONG_UNMARKED:
            return True
        return len(UNSPACED_LETTER.findall(text)) >= fewest_letters and has_end(text)
    if len(text.split(maxsplit=_FEWEST_WORDS)) < _FEWEST_WORDS and (
        text.isascii() or len(UNSPACED_LETTER.findall(text[:_LONG])) < fewest_letters
    ):
        return has_end(text) and (has_finite_verb(text) or is_instruction(text))
    return has_end(text) or (len(text) > _LONG and bool(_INNER_END.search(text)))


def reads_as_statement(text: str) -> bool:
    """Return True if English text is a sentence that lacks only its full stop.

    It begins with a capital or a digit, has a verb and does not break off.
    """
    return (
        len(text.split(maxsplit=_FEWEST_STATED - 1)) >= _FEWEST_STATED
        and _OPENS.match(text) is not None
        and _BREAKS_OFF.search(text) is None
        and has_finite_verb(text)
    )
