"""Rules, by language, on whether a sentence continues after an end mark.

sentence_rules.txt lists the words of each language. English has rules that supplement sentencex.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path

from cloze.pipeline.corpus.readers.prose import alternatives, read_lists


def _by_language(entries: list[str]) -> dict[str, frozenset[str]]:
    """Return the words after each `language:`."""
    words: dict[str, list[str]] = {}
    for entry in entries:
        if entry.endswith(":"):
            listed = words.setdefault(entry[:-1], [])
        else:
            listed.append(entry)
    return {language: frozenset(listed) for language, listed in words.items()}


_LISTS = read_lists(Path(__file__).with_suffix(".txt"))
_TABLES = {
    name: _by_language(_LISTS[name])
    for name in ("never final", "before numbers", "starters", "related")
}
_PREPOSITIONS, _AND_SO_ON, ORDINALS, _ENGLISH_TITLES = (
    frozenset(_LISTS[name]) for name in ("openers", "and so on", "ordinals", "english titles")
)

_NEAR = 20  # characters before a sentence: an abbreviation and blanks
_FAR = 80  # characters from the start of a sentence

_LAST_WORD = re.compile(
    r"(?:^|[\s'“”„«»‚‘’(\[/—–-]|(?<!\w)\")([^\W\d_][^\s\"'“”‘’„«»()\[\]/,;:!?]*)\.\s*$"
)
_LAST_NUMBER = re.compile(r"(?<![\w.,–-])(?:\d{1,2}|[IVXLC]{1,5})\.\s*$")
_OPENING = re.compile(r"\W*(\w+)\s+(?:\d{1,4}|[IVXLC]{1,5})(?:[–—-]\w{1,5})?\.?\s+\w{1,3}\.\s*$")
_SPACED = re.compile(r"(?<!\w)(\w{1,2})\.\s(\w{1,3})\.\s*$")  # z. B., т. д.
# A number after such a word is no ordinal: č. 5.
_LABELLED = re.compile(
    r"(?:(?<!\w)(?:č|čís|čl|br|nr|no|str|s|p|lk|бр|стр|чл)\.|§)\s\d{1,3}\.\s*$", re.I
)
_ROMAN = re.compile("[IVXLC]{1,5}(?!\\w)")
_CENTURIES = ("sec", "séc", "s")  # before a single letter; V and I are words in other languages
_FIRST_WORD = re.compile(r"[\s\"'`“”„«»‚‘’(\[,—–-]*(\w+)")
_DASH = re.compile("[-–—] ")
_ITEM = re.compile(r"\((?:[a-z]|\d{1,2})\)\s")  # begins a list item
# Capital letters, or syllables of scripts without case, separated by dots: `J.R`, `डॉ`, `कि.मी`,
# `წ`.
_VIRAMA = "[\u094d\u09cd\u0a4d\u0acd\u0b4d\u0bcd\u0c4d\u0ccd\u0d4d\u0dca]"
_SYLLABLE = rf"[\u05d0-\u0dff\u10d0-\u10ff\u1200-\u137f][^\w.]*(?:(?<={_VIRAMA})\w[^\w.]*)*"
_CAPITAL = "[A-ZÀ-ÖØ-ÞĀĂĄĆČĎĐĒĖĘĚĞĢİĪĮĶĹĻĽŁŃŅŇŌŐŒŔŘŚŞŠŢŤŪŮŰŲŹŻŽƏȘȚΆ-ΏΑ-ΫА-ЯЀ-Џ]"
# words of one syllable exist in India
_LETTER = r"[\u0900-\u0dff]|[\u05d0-\u08ff\u0b80-\u0bff\u10d0-\u10ff\u1200-\u137f][^\w.]*"
_INITIALS = re.compile(
    rf"{_CAPITAL}(?:\.-?{_CAPITAL}){{0,2}}|{_LETTER}|{_SYLLABLE}(?:\.{_SYLLABLE})+"
)
_GEORGIAN = re.compile("[\u10d0-\u10ff]")  # lower case in Unicode, but sentences begin with them
# Long and ends in a vowel: hardly an abbreviation.
_WHOLE_WORD = re.compile(
    "[^\\W\\d_]{4,}[aeiouyàáâãäåæèéêëìíîïòóôõöøùúûüýąęășаеёиоуыэюяіїєαεηιουωάέήίόύώ]"
)
# One letter, dotted, or without vowels: an abbreviation if a number follows.
_SHORTENED = re.compile(
    r"\w|\w+\..*|[bcdfghj-np-tv-xzçčćšžśźńłбвгджзклмнпрстфхцчшщйβγδζθκλμνξπρσςτφχψ]{2,5}"
)

_ENGLISH_LEADS_ON = re.compile(
    rf"(?<![\w.])(?:{alternatives(_LISTS, 'english before numbers')})\.\s*$", re.IGNORECASE
)
_CONTINUES = re.compile(r"[\d(\[a-z#§]")
# The mark of a title, a quotation, an initial, a number: small letters continue.
_RUNS_ON = re.compile(r"(?:[?!…][\"'”’)]*|\.[\"'”’)]+|(?<!\w)(?:\d{1,3}|\w)\.)\s*$")
# A question; the last word of a title is capitalized.
_QUESTION = re.compile(r"(?<![\w'’-])[a-z][a-z'’]*\s?\?\s+$")
_ANSWERED = re.compile(r"(?:s?he|said|asked|cried|replied|and|or|nor|but|for)\b")
_SHORT_SENTENCE = 20  # characters
# A bracket after a title's own end mark, and its sentence.
_TITLE_CONTINUES = re.compile(r"\([^()]{0,59}[^().!?]\)(?:,? [a-z]|[,;:]|\.?$)")


@dataclass(frozen=True, slots=True)
class SentenceRules:
    """Rules on whether a sentence continues, for languages other than English."""

    titles: frozenset[str]
    leads_on: frozenset[str]
    has_ordinals: bool
    openers: frozenset[str]

    def continues(self, text: str, begin: int, position: int, has_case: bool) -> bool:
        """Return True if the sentence from `begin` continues at `position`, after an end mark.

        Args:
            begin: start of the sentence.
            position: start of what follows the end mark and the blank.
            has_case: `text` mixes capital and small letters, or its script has none.
        """
        after = text[position : position + _FAR]
        first = _FIRST_WORD.match(after)
        if first is None or _ITEM.match(after):
            before = text[max(begin, position - _NEAR) : position]
            return self.has_ordinals and after[:1] == "§" and bool(_LAST_NUMBER.search(before))
        word = first[1]
        is_small = has_case and word[0].islower() and not _GEORGIAN.match(word)
        before = text[max(begin, position - _NEAR) : position]
        if not before.rstrip().endswith("."):
            return is_small  # “…?” she said
        last = _LAST_WORD.search(before)
        if last is not None:
            name = last[1].lower()
            spaced = _SPACED.search(before) if before.count(".") > 1 else None
            joint = f"{spaced[1]}.{spaced[2]}".lower() if spaced else ""
            if joint in _AND_SO_ON:
                return is_small
            if joint in self.titles or self._is_opening(text, begin, position, name):
                return True
            if last[1] in _ENGLISH_TITLES or _INITIALS.fullmatch(last[1]) or self._is_title(name):
                return True
            if is_small:
                return _WHOLE_WORD.fullmatch(name) is None and not (
                    len(name) > 3 and _DASH.match(after)
                )
            is_roman = _ROMAN.match(word) and (len(word) > 1 or name in _CENTURIES)
            if is_roman and name in self.leads_on:
                return True
            if word[0].isdigit() or after[0] in "([":
                return name in self.leads_on or _SHORTENED.fullmatch(name) is not None
        elif is_small:
            return True
        return (
            self.has_ordinals
            and _LAST_NUMBER.search(before) is not None
            and _LABELLED.search(before) is None
            and word.capitalize() not in self.openers
        )

    def _is_opening(self, text: str, begin: int, position: int, name: str) -> bool:
        """Return True if the sentence has only a date so far: `В 1950 г.`"""
        if position - begin > _NEAR or name not in self.leads_on:
            return False
        opening = _OPENING.match(text[begin:position])
        return opening is not None and opening[1].lower() in _PREPOSITIONS

    def _is_title(self, name: str) -> bool:
        """Return True if `name`, or each of its dotted parts, is in `titles`: `dr`, `எம்.ஜி`."""
        return name in self.titles or (
            "." in name and all(part in self.titles for part in name.split("."))
        )


class EnglishRules:
    """English rules on whether a sentence continues, in addition to sentencex."""

    def continues(self, text: str, begin: int, position: int, has_case: bool) -> bool:
        """Return True if the sentence continues; see `SentenceRules.continues`."""
        first = text[position]
        if first.isupper():
            return False
        if has_case and first.islower() and self._runs_on(text, begin, position):
            return True
        if first == "(" and _TITLE_CONTINUES.match(text, position):  # Who's Afraid? (film) is
            return True
        return bool(_CONTINUES.match(first)) and bool(
            _ENGLISH_LEADS_ON.search(text, max(begin, position - _NEAR), position)
        )

    @staticmethod
    def _runs_on(text: str, begin: int, position: int) -> bool:
        """Return True if a small letter at `position` continues the sentence."""
        near = max(begin, position - 12)
        if _RUNS_ON.search(text, near, position) is None:
            return False
        # the writer uses no capitals
        if text[begin].islower() and position - begin > _SHORT_SENTENCE:
            return False
        return (
            _QUESTION.search(text, near, position) is None
            or _ANSWERED.match(text, position) is not None
        )


@functools.cache
def sentence_rules(language: str) -> SentenceRules | EnglishRules:
    """Return the rules of a language (ISO 639)."""
    if language == "en":
        return EnglishRules()
    if language not in _TABLES["never final"]:
        related = (main for main, others in _TABLES["related"].items() if language in others)
        language = next(related, language)
    titles, leads_on, openers = (
        _TABLES[name].get(language, frozenset())
        for name in ("never final", "before numbers", "starters")
    )
    return SentenceRules(titles, leads_on, language in ORDINALS, openers)
