"""Filters of whole documents: by licence, length and share of letters."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING

from pydantic import Field, field_validator

from cloze.core.words import TSHEG, count_words, mark_codes, width
from cloze.pipeline.corpus.document import PLACEHOLDER_PATTERN, Document, has_hole
from cloze.pipeline.corpus.options import CorpusOptions
from cloze.pipeline.corpus.provenance import licence_name, license_matches
from cloze.pipeline.corpus.steps.base import CleaningStep, StepFunction, drop_if

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class LicenceOptions(CorpusOptions):
    """Options of the licence filter."""

    licences: tuple[str, ...] = ()
    """Keep only documents under this licence (SPDX name; `unknown`: none stated). Repeatable.
    Default: all."""

    @field_validator("licences")
    @classmethod
    def _named(cls, licences: tuple[str, ...]) -> tuple[str, ...]:
        names = tuple(map(licence_name, licences))
        if not all(names):
            raise ValueError("a licence name is empty; write it as CC-BY-SA-4.0, or `unknown`")
        return names


def _build_licences(options: LicenceOptions) -> StepFunction | None:
    if not options.licences:
        return None
    accepted = frozenset(name.casefold() for name in options.licences)

    def reason_of(document: Document) -> str | None:
        return None if license_matches(document.licence, accepted) else "other_licence"

    return drop_if(reason_of)


LICENCES = CleaningStep(
    options=LicenceOptions,
    build=_build_licences,
    reasons={"other_licence": "under a licence that is not in the list"},
)


class MaximumOptions(CorpusOptions):
    """Options of the maximum length, which drops logs, tables and concatenations."""

    maximum_characters: int = Field(default=5_000_000, ge=0)
    """Drop documents with more characters (too_long); 0: no limit."""


class MinimumOptions(CorpusOptions):
    """Options of the minimum length."""

    minimum_characters: int = Field(default=200, ge=0)
    """Drop documents with fewer characters (too_short)."""

    minimum_words: int = Field(default=30, ge=0)
    """Drop documents with fewer words (too_short)."""


def _build_maximum(options: MaximumOptions) -> StepFunction | None:
    limit = options.maximum_characters

    def reason_of(document: Document) -> str | None:
        return "too_long" if sum(map(len, document.paragraphs)) > limit else None

    return drop_if(reason_of) if limit else None


def _build_minimum(options: MinimumOptions) -> StepFunction | None:
    characters, words = options.minimum_characters, options.minimum_words

    def reason_of(document: Document) -> str | None:
        lines = document.paragraphs
        missing = characters - len(lines) + 1
        if sum(map(len, lines)) < missing and sum(map(width, lines)) < missing:
            return "too_short"
        missing = words
        for line in lines:  # most documents have enough words in the first paragraphs
            if missing <= 0:
                break
            missing -= count_words(line)
        return "too_short" if missing > 0 else None

    return drop_if(reason_of) if characters or words else None


MAXIMUM = CleaningStep(
    options=MaximumOptions,
    build=_build_maximum,
    reasons={"too_long": "more characters than the limit"},
)
MINIMUM = CleaningStep(
    options=MinimumOptions,
    build=_build_minimum,
    reasons={"too_short": "fewer characters or words than the limit"},
)


class LettersOptions(CorpusOptions):
    """Options of the filter of documents with too few letters, such as tables of figures."""

    minimum_letters: float = Field(default=0.7, ge=0, le=1)
    """Minimum share of letters among non-blank characters (not_prose)."""


# Marks, and the separators of Tibetan syllables, count as blank.
_OTHER, _LETTER, _BLANK = range(3)
_ASSIGNED = 0x323B0  # code points; above are only tags, variation selectors and private use


@functools.cache
def _kinds() -> npt.NDArray[np.uint8]:
    """Return letter, blank or other for each code point, uint8 [0x110000], from Python's tables."""
    import numpy as np

    # one character each, tested as an array: 5 ms instead of 25
    characters = np.arange(_ASSIGNED, dtype=np.uint32).view("U1")
    kinds = np.zeros(sys.maxunicode + 1, dtype=np.uint8)
    assigned = kinds[:_ASSIGNED]
    assigned[np.strings.isalnum(characters) & ~np.strings.isdecimal(characters)] = _LETTER
    assigned[np.strings.isspace(characters)] = _BLANK
    kinds[[*mark_codes(), *map(ord, TSHEG)]] = _BLANK
    return kinds


@functools.cache
def _ascii_kinds() -> bytes:
    """Return the ASCII part of `_kinds` for `bytes.translate`; other bytes are `_OTHER`."""
    return _kinds()[:0x80].tobytes() + bytes(0x80)


def letter_share(text: str) -> float:
    """Return the share of letters among the non-blank characters; 1 if there are none.

    A letter with its vowel sign or accent counts as one letter, whether composed or not.
    """
    import numpy as np

    data = text.encode("utf-8", "surrogatepass")
    kinds = np.frombuffer(data.translate(_ascii_kinds()), dtype=np.uint8)
    letters, blanks = (int(np.count_nonzero(kinds == kind)) for kind in (_LETTER, _BLANK))
    characters = len(text)
    if not text.isascii():  # non-ASCII characters separately
        octets = np.frombuffer(data, dtype=np.uint8)
        others = octets[octets >= 0x80].tobytes().decode("utf-8", "surrogatepass")
        characters -= len(PLACEHOLDER_PATTERN.findall(others)) if has_hole(others) else 0
        kinds = _kinds()[
            np.frombuffer(others.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        ]
        letters += int(np.count_nonzero(kinds == _LETTER))
        blanks += int(np.count_nonzero(kinds == _BLANK))
    visible = characters - blanks
    return letters / visible if visible else 1.0


def _build_letters(options: LettersOptions) -> StepFunction | None:
    minimum = options.minimum_letters

    def reason_of(document: Document) -> str | None:
        return "not_prose" if letter_share(document.text) < minimum else None

    return drop_if(reason_of) if minimum else None


LETTERS = CleaningStep(
    options=LettersOptions, build=_build_letters, reasons={"not_prose": "too few letters"}
)
