"""Corpus stage: documents that are mostly figures and signs, and no prose."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING

from pydantic import Field

from pipeline.corpus.document import A_HOLE, Document, has_hole
from pipeline.corpus.options import CorpusOptions
from pipeline.corpus.steps.base import StepFunction, StepKind, StepResult

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class LettersOptions(CorpusOptions):
    """The share of letters."""

    minimum_letters: float = Field(default=0.7, ge=0, le=1)
    """Documents with a lower share of letters among the non-blank characters are dropped as `not_prose` (English prose: .95)."""


_OTHER, _LETTER, _BLANK = 0, 1, 2
_ASSIGNED = 0x323B0  # code points; nothing above is assigned but tags, variation selectors and private use


@functools.cache
def _kinds() -> npt.NDArray[np.uint8]:
    """uint8 [0x110000]: for each code point whether it is a letter, white space, or something else, by Python's own tables."""
    import numpy as np

    characters = np.arange(_ASSIGNED, dtype=np.uint32).view("U1")  # one character each, asked all at once: 5 ms instead of 25
    kinds = np.zeros(sys.maxunicode + 1, dtype=np.uint8)
    assigned = kinds[:_ASSIGNED]
    assigned[np.strings.isalnum(characters) & ~np.strings.isdecimal(characters)] = _LETTER
    assigned[np.strings.isspace(characters)] = _BLANK
    return kinds


@functools.cache
def _ascii_kinds() -> bytes:
    """The same for `bytes.translate`; the bytes of other characters are `_OTHER`."""
    return _kinds()[:0x80].tobytes() + bytes(0x80)


def letter_share(text: str) -> float:
    """The share of letters among the non-blank characters; 1 where there are none."""
    import numpy as np

    data = text.encode("utf-8", "surrogatepass")
    kinds = np.frombuffer(data.translate(_ascii_kinds()), dtype=np.uint8)
    letters, blanks, characters = int(np.count_nonzero(kinds == _LETTER)), int(np.count_nonzero(kinds == _BLANK)), len(text)
    if not text.isascii():  # the few characters that are not, by themselves
        octets = np.frombuffer(data, dtype=np.uint8)
        others = octets[octets >= 0x80].tobytes().decode("utf-8", "surrogatepass")
        characters -= len(A_HOLE.findall(others)) if has_hole(others) else 0
        kinds = _kinds()[np.frombuffer(others.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)]
        letters += int(np.count_nonzero(kinds == _LETTER))
        blanks += int(np.count_nonzero(kinds == _BLANK))
    visible = characters - blanks
    return letters / visible if visible else 1.0


def _build(options: LettersOptions) -> StepFunction | None:
    minimum = options.minimum_letters

    def letters(document: Document) -> StepResult:
        return StepResult(None, "not_prose") if letter_share(document.text) < minimum else StepResult(document)

    return letters if minimum else None


STEP = StepKind(options=LettersOptions, build=_build)
