"""MassiveText's filter of repetitive pages, from the Gopher paper.

Rae et al. 2021 (https://arxiv.org/abs/2112.11446), appendix A.1.1, "Repetition Removal", with the
thresholds of Table A1. A document has only paragraphs, so the paper's rules on lines and on
paragraphs, which have the same thresholds, coincide. A duplicate is a copy of something earlier:
the first occurrence does not count, for lines and n-grams. (Counting it would drop a text that
names one institution of six words four times.) White space does not count as characters.

An n-gram that occurs twice begins with an (n-1)-gram that does. Each n thus examines only the
positions where n-1 found repetitions, few in ordinary text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from cloze.core.words import split_words
from cloze.pipeline.corpus.document import Document
from cloze.pipeline.corpus.options import CorpusOptions
from cloze.pipeline.corpus.steps.base import (
    CleaningResult,
    CleaningStep,
    StepFunction,
    restrict_to_sources,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    I64 = npt.NDArray[np.int64]

MAXIMUM_DUPLICATE_LINES = 0.30
MAXIMUM_DUPLICATE_LINE_CHARACTERS = 0.20
MAXIMUM_TOP = {2: 0.20, 3: 0.18, 4: 0.16}
MAXIMUM_DUPLICATE = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}


class GopherRepetitionOptions(CorpusOptions):
    """Options of MassiveText's repetition filter."""

    web: ClassVar[Mapping[str, Any]] = {"gopher_repetition": True}

    gopher_repetition: bool = False
    """MassiveText rules on repeated lines and n-grams; on with --profile web."""


def gopher_repetition(document: Document) -> str | None:
    """Return the first rule that the document breaks, in the paper's order; None if it passes.

    `gopher_duplicate_lines`: more than 30 % of the lines are copies of earlier ones.
    `gopher_duplicate_line_characters`: more than 20 % of the characters are in such lines.
    `gopher_top_2gram` to `gopher_top_4gram`: more than 20, 18, 16 % of the characters are in the
    commonest n-gram.
    `gopher_duplicate_5gram` to `gopher_duplicate_10gram`: more than 15, 14, 13, 12, 11, 10 % of the
    characters are in repeated n-grams, each character counted once.
    """
    return _line_reason(document.paragraphs) or _ngram_reason(split_words(document.text))


def _line_reason(lines: tuple[str, ...]) -> str | None:
    counts = Counter(lines)
    if len(counts) == len(lines):
        return None
    if len(lines) - len(counts) > MAXIMUM_DUPLICATE_LINES * len(lines):
        return "gopher_duplicate_lines"
    repeated = sum(len(line) * (count - 1) for line, count in counts.items())
    if repeated > MAXIMUM_DUPLICATE_LINE_CHARACTERS * sum(map(len, lines)):
        return "gopher_duplicate_line_characters"
    return None


def _ngram_reason(words: list[str]) -> str | None:
    import numpy as np

    numbers: dict[str, int] = {}
    ids = np.fromiter(
        (numbers.setdefault(word, len(numbers)) for word in words), np.int64, len(words)
    )
    lengths = np.fromiter(map(len, words), np.int64, len(words))
    ends = np.concatenate(([0], np.cumsum(lengths)))
    characters = int(ends[-1])
    places = np.arange(ids.size)  # starts of n-grams that occur more than once
    classes = ids  # [places] number of the n-gram at each place
    for n in range(2, max(MAXIMUM_DUPLICATE) + 1):
        inside = places + n <= ids.size
        places, classes = places[inside], classes[inside]
        if not places.size:
            return None
        _, first, inverse, counts = np.unique(
            classes * ids.size + ids[places + n - 1],
            return_index=True,
            return_inverse=True,
            return_counts=True,
        )
        repeated = counts[inverse] > 1
        if n in MAXIMUM_TOP:
            limit = MAXIMUM_TOP[n] * characters
            top = int(counts.max())
            at_top = counts[inverse] == top
            sizes = ends[places + n] - ends[places]
            # an upper bound, because occurrences may overlap
            if top > 1 and top * int(sizes[at_top].max()) > limit:
                most = _most(places[at_top], inverse[at_top], sizes[at_top], n, lengths)
                if most > limit:
                    return f"gopher_top_{n}gram"
        if n in MAXIMUM_DUPLICATE:
            copy = first[inverse] != np.arange(places.size)
            if _covered(places[copy], n, lengths) > MAXIMUM_DUPLICATE[n] * characters:
                return f"gopher_duplicate_{n}gram"
        places, classes = places[repeated], inverse[repeated]
    return None


def _most(places: I64, classes: I64, sizes: I64, n: int, lengths: I64) -> int:
    """Return the characters covered by the longest of several equally common n-grams."""
    import numpy as np

    return _covered(places[classes == classes[np.argmax(sizes)]], n, lengths)


def _covered(places: I64, n: int, lengths: I64) -> int:
    """Return the number of characters in the n-grams at `places`, each counted once."""
    import numpy as np

    if not places.size:
        return 0
    steps = np.zeros(lengths.size + 1, dtype=np.int64)
    np.add.at(steps, places, 1)
    np.subtract.at(steps, places + n, 1)
    return int(lengths[np.cumsum(steps[:-1]) > 0].sum())


def _build(options: GopherRepetitionOptions) -> StepFunction | None:
    def repetition(document: Document) -> CleaningResult:
        reason = gopher_repetition(document)
        return CleaningResult(document) if reason is None else CleaningResult(None, reason)

    return (
        restrict_to_sources(options.web_sources, repetition) if options.gopher_repetition else None
    )


STEP = CleaningStep(options=GopherRepetitionOptions, build=_build)
