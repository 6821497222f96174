"""Corpus stage: MassiveText's filter of repetitive pages, from the paper on Gopher.

Rae et al. 2021 (https://arxiv.org/abs/2112.11446), appendix A.1.1, "Repetition Removal", with the thresholds of its Table A1. A
document here has one level of structure, its paragraphs, so the rules about lines and those about paragraphs, which have
the same thresholds, are the same. A duplicate is a copy of something earlier: the first of them does not count, for lines
as for n-grams. (Counting it too would drop a text that names one institution of six words four times.) Characters are those
of words; white space does not count.

An n-gram that occurs twice begins with an (n-1)-gram that does. So each n looks at the places alone where the last one
found something, which in ordinary text are soon few.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pipeline.corpus.document import Document
from pipeline.corpus.options import CorpusOptions
from pipeline.corpus.steps.base import StepFunction, StepKind, StepResult, only_from
from pipeline.corpus.steps.word_count import split_words

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    I64 = npt.NDArray[np.int64]

MAXIMUM_DUPLICATE_LINES = 0.30
MAXIMUM_DUPLICATE_LINE_CHARACTERS = 0.20
MAXIMUM_TOP = {2: 0.20, 3: 0.18, 4: 0.16}
MAXIMUM_DUPLICATE = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}


class GopherRepetitionOptions(CorpusOptions):
    """MassiveText's filter of repetitive pages."""

    web: ClassVar[Mapping[str, Any]] = {"gopher_repetition": True}

    gopher_repetition: bool = False
    """Whether MassiveText's rules on repeated lines and n-grams apply (`gopher_duplicate_*`, `gopher_top_*`)."""


def gopher_repetition(document: Document) -> str | None:
    """The first of the paper's rules that the document breaks, in the paper's order; None: it keeps them all.

    `gopher_duplicate_lines`: over 30 % of the lines are copies of earlier ones. `gopher_duplicate_line_characters`: over
    20 % of the characters are in such lines. `gopher_top_2gram` to `gopher_top_4gram`: over 20, 18, 16 % of the characters are in
    the commonest n-gram. `gopher_duplicate_5gram` to `gopher_duplicate_10gram`: over 15, 14, 13, 12, 11, 10 % of the characters
    are in n-grams that occurred before, each character counted once.
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
    ids = np.fromiter((numbers.setdefault(word, len(numbers)) for word in words), np.int64, len(words))
    lengths = np.fromiter(map(len, words), np.int64, len(words))
    ends = np.concatenate(([0], np.cumsum(lengths)))
    characters = int(ends[-1])
    places = np.arange(ids.size)  # where an n-gram begins that occurs more than once
    classes = ids  # [places] a number for the n-gram that begins there
    for n in range(2, max(MAXIMUM_DUPLICATE) + 1):
        inside = places + n <= ids.size
        places, classes = places[inside], classes[inside]
        if not places.size:
            return None
        _, first, inverse, counts = np.unique(
            classes * ids.size + ids[places + n - 1], return_index=True, return_inverse=True, return_counts=True
        )
        repeated = counts[inverse] > 1
        if n in MAXIMUM_TOP:
            limit = MAXIMUM_TOP[n] * characters
            top = int(counts.max())
            at_top = counts[inverse] == top
            sizes = ends[places + n] - ends[places]
            # where they overlap they cover less than this bound
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
    """The characters in that one of some equally common n-grams which is the longest."""
    import numpy as np

    return _covered(places[classes == classes[np.argmax(sizes)]], n, lengths)


def _covered(places: I64, n: int, lengths: I64) -> int:
    """How many characters are in the n-grams that begin at `places`, each counted once."""
    import numpy as np

    if not places.size:
        return 0
    steps = np.zeros(lengths.size + 1, dtype=np.int64)
    np.add.at(steps, places, 1)
    np.subtract.at(steps, places + n, 1)
    return int(lengths[np.cumsum(steps[:-1]) > 0].sum())


def _build(options: GopherRepetitionOptions) -> StepFunction | None:
    def repetition(document: Document) -> StepResult:
        reason = gopher_repetition(document)
        return StepResult(document) if reason is None else StepResult(None, reason)

    return only_from(options.web_sources, repetition) if options.gopher_repetition else None


STEP = StepKind(options=GopherRepetitionOptions, build=_build)
