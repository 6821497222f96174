"""Filter of documents with too few letters, such as tables of figures.

A letter with its vowel sign or accent counts as one letter, whether composed or not.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING

from pydantic import Field

from cloze.core.words import TSHEG, mark_codes
from cloze.pipeline.corpus.document import A_HOLE, Document, has_hole
from cloze.pipeline.corpus.options import CorpusOptions
from cloze.pipeline.corpus.steps.base import CleaningStep, StepFunction, drop_if

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class LettersOptions(CorpusOptions):
    """Options of the filter by share of letters."""

    minimum_letters: float = Field(default=0.7, ge=0, le=1)
    """Minimum share of letters among non-blank characters (not_prose)."""


_OTHER, _LETTER, _BLANK = (
    0,
    1,
    2,
)  # marks, and the separators of Tibetan syllables, count as blank
_ASSIGNED = 0x323B0  # code points; above are only tags, variation selectors and private use


@functools.cache
def _kinds() -> npt.NDArray[np.uint8]:
    """Return letter, blank or other for each code point, uint8 [0x110000], from Python's tables."""
    import numpy as np

    characters = np.arange(_ASSIGNED, dtype=np.uint32).view(
        "U1"
    )  # one character each, tested as an array: 5 ms instead of 25
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
    """Return the share of letters among the non-blank characters; 1 if there are none."""
    import numpy as np

    data = text.encode("utf-8", "surrogatepass")
    kinds = np.frombuffer(data.translate(_ascii_kinds()), dtype=np.uint8)
    letters, blanks, characters = (
        int(np.count_nonzero(kinds == _LETTER)),
        int(np.count_nonzero(kinds == _BLANK)),
        len(text),
    )
    if not text.isascii():  # non-ASCII characters separately
        octets = np.frombuffer(data, dtype=np.uint8)
        others = octets[octets >= 0x80].tobytes().decode("utf-8", "surrogatepass")
        characters -= len(A_HOLE.findall(others)) if has_hole(others) else 0
        kinds = _kinds()[
            np.frombuffer(others.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        ]
        letters += int(np.count_nonzero(kinds == _LETTER))
        blanks += int(np.count_nonzero(kinds == _BLANK))
    visible = characters - blanks
    return letters / visible if visible else 1.0


def _build(options: LettersOptions) -> StepFunction | None:
    minimum = options.minimum_letters

    def reason_of(document: Document) -> str | None:
        return "not_prose" if letter_share(document.text) < minimum else None

    return drop_if(reason_of) if minimum else None


STEP = CleaningStep(options=LettersOptions, build=_build)
