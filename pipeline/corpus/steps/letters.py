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


@functools.cache
def _kinds() -> npt.NDArray[np.uint8]:
    """uint8 [0x110000]: for each code point whether it is a letter, white space, or something else."""
    import numpy as np

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
    import numpy as np

    if text.isascii():
        kinds = _kinds()[np.frombuffer(text.encode("ascii"), dtype=np.uint8)]
    else:
        data = (A_HOLE.sub("", text) if has_hole(text) else text).encode("utf-32-le", "surrogatepass")
        kinds = _kinds()[np.frombuffer(data, dtype=np.uint32)]
    visible = kinds.size - int(np.count_nonzero(kinds == _BLANK))
    return int(np.count_nonzero(kinds == _LETTER)) / visible if visible else 1.0


def _build(options: LettersOptions) -> StepFunction | None:
    minimum = options.minimum_letters

    def letters(document: Document) -> StepResult:
        return StepResult(None, "not_prose") if letter_share(document.text) < minimum else StepResult(document)

    return letters if minimum else None


STEP = StepKind(options=LettersOptions, build=_build)
