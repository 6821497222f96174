"""Corpus stage: a filter looks at a cleaned document and gives a reason to drop it, or None to keep it.

The reasons become the counters `dropped/<reason>`. A new filter is a function here and a line in pipeline/corpus/steps/chain.py.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.corpus.document import HOLE, Document
from pipeline.corpus.steps.words import count_words

Filter = Callable[[Document], str | None]


@dataclass(frozen=True, slots=True)
class TooShort:
    """Drop documents of fewer characters or fewer words (`count_words`)."""

    characters: int
    words: int

    def __call__(self, document: Document) -> str | None:
        lines = document.paragraphs
        if sum(map(len, lines)) + len(lines) - 1 < self.characters:
            return "too_short"
        missing = self.words
        for line in lines:  # most documents have enough of them in the first paragraphs
            if missing <= 0:
                break
            missing -= count_words(line)
        return "too_short" if missing > 0 else None


@dataclass(frozen=True, slots=True)
class TooLong:
    """Drop documents of more characters: logs, tables and concatenations rather than texts."""

    characters: int

    def __call__(self, document: Document) -> str | None:
        return "too_long" if sum(map(len, document.paragraphs)) > self.characters else None


@dataclass(frozen=True, slots=True)
class NotProse:
    """Drop documents whose share of letters among the non-blank characters is lower (English prose has about .95)."""

    letters: float

    def __call__(self, document: Document) -> str | None:
        return "not_prose" if letter_share(document.text) < self.letters else None


_OTHER, _LETTER, _BLANK = 0, 1, 2


@functools.cache
def _kinds() -> npt.NDArray[np.uint8]:
    """uint8 [0x110000]: for each code point whether it is a letter, white space, or something else."""
    kinds = np.zeros(sys.maxunicode + 1, dtype=np.uint8)
    for code in range(0x323B0):  # nothing above is assigned but tags, variation selectors and private use
        character = chr(code)
        if character.isalnum() and not character.isdecimal():
            kinds[code] = _LETTER
        elif character.isspace():
            kinds[code] = _BLANK
    return kinds


def letter_share(text: str) -> float:
    """The share of letters among the non-blank characters; 1 where there are none."""
    if text.isascii():
        kinds = _kinds()[np.frombuffer(text.encode("ascii"), dtype=np.uint8)]
    else:
        data = text.replace(HOLE, "").encode("utf-32-le", "surrogatepass")
        kinds = _kinds()[np.frombuffer(data, dtype=np.uint32)]
    visible = kinds.size - int(np.count_nonzero(kinds == _BLANK))
    return int(np.count_nonzero(kinds == _LETTER)) / visible if visible else 1.0
