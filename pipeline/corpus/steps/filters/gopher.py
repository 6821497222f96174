"""MassiveText's filters of poor and of repetitive pages, from the Gopher paper.

Rae et al. 2021 (https://arxiv.org/abs/2112.11446), appendix A.1.1. A paragraph of the document is a
line of the page.

"Quality Filtering": the paper's rules are for English. Other languages use their own stop words, if
known. The rules on word length and stop words do not apply to scripts without spaces.

"Repetition Removal", with the thresholds of Table A1: a document has only paragraphs, so the
paper's rules on lines and on paragraphs, which have the same thresholds, coincide. A duplicate is a
copy of something earlier: the first occurrence does not count, for lines and n-grams. (Counting it
would drop a text that names one institution of six words four times.) White space does not count as
characters. An n-gram that occurs twice begins with an (n-1)-gram that does. Each n thus examines
only the positions where n-1 found repetitions, few in ordinary text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from cloze.core.words import UNSPACED, split_words, width, without_marks
from cloze.pipeline.corpus.document import Document
from cloze.pipeline.corpus.options import CorpusOptions
from cloze.pipeline.corpus.readers.prose import read_lists
from cloze.pipeline.corpus.steps.base import (
    CleaningStep,
    StepFunction,
    drop_if,
    restrict_to_sources,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    I64 = npt.NDArray[np.int64]

MINIMUM_WORDS = 50
MAXIMUM_WORDS = 100_000
MINIMUM_MEAN_LENGTH = 3  # characters per word
MAXIMUM_MEAN_LENGTH = 10
MAXIMUM_SYMBOLS = 0.1  # hashes, or ellipses, per word
MAXIMUM_BULLET_LINES = 0.9
MAXIMUM_ELLIPSIS_LINES = 0.3
MINIMUM_ALPHABETIC_WORDS = 0.8
MINIMUM_STOP_WORDS = 2

BULLETS = (*"•‣⁃◦∙·●○■□▪▫►▶➢❖✓*", "- ", "– ", "— ")
_ELLIPSES = ("...", "…")
_ALPHABETIC = re.compile(r"[^\W\d_]")

STOP_WORDS = read_lists(Path(__file__).with_suffix(".txt"))


class GopherOptions(CorpusOptions):
    """Options of MassiveText's filters."""

    web: ClassVar[Mapping[str, Any]] = {"gopher_quality": True, "gopher_repetition": True}

    gopher_repetition: bool = False
    """MassiveText rules on repeated lines and n-grams; on with --preset web."""

    gopher_quality: bool = False
    """MassiveText rules on words, symbols, bullets and stop words; on with --preset web."""


def gopher_quality(document: Document, *, language: str = "en") -> str | None:
    """Return the first rule that the document breaks, in the paper's order; None if it passes.

    `gopher_words`: fewer than 50 words, or more than 100,000.
    `gopher_word_length`: mean length outside 3 to 10.
    `gopher_symbols`: more than one hash, or one ellipsis, per ten words.
    `gopher_bullets`: more than 90 % of the lines start with a bullet.
    `gopher_ellipsis`: more than 30 % of the lines end with an ellipsis.
    `gopher_alphabetic`: fewer than 80 % of the words contain a letter.
    `gopher_stop_words`: fewer than two of the stop words occur.
    """
    text = document.text
    words = split_words(text)
    count = len(words)
    if not MINIMUM_WORDS <= count <= MAXIMUM_WORDS:
        return "gopher_words"
    spaced = language not in UNSPACED
    if spaced and not _is_word_length(words):
        return "gopher_word_length"
    if max(text.count("#"), sum(map(text.count, _ELLIPSES))) > MAXIMUM_SYMBOLS * count:
        return "gopher_symbols"
    lines = document.paragraphs
    if sum(line.startswith(BULLETS) for line in lines) > MAXIMUM_BULLET_LINES * len(lines):
        return "gopher_bullets"
    if sum(line.endswith(_ELLIPSES) for line in lines) > MAXIMUM_ELLIPSIS_LINES * len(lines):
        return "gopher_ellipsis"
    odd = [word for word in words if not word[0].isalpha()]
    lettered = count - sum(_ALPHABETIC.search(word) is None for word in odd)
    if lettered < MINIMUM_ALPHABETIC_WORDS * count:
        return "gopher_alphabetic"
    if spaced and language in STOP_WORDS:
        known = set(words)
        occurs = (
            word in known or word.capitalize() in known or word.upper() in known
            for word in STOP_WORDS[language]
        )
        if sum(occurs) < MINIMUM_STOP_WORDS:
            return "gopher_stop_words"
    return None


def _is_word_length(words: list[str]) -> bool:
    """Return True if the mean word length is 3 to 10.

    Lengths are those of English letters: Hangul counts twice, and combining marks do not count.
    """
    mean = sum(map(len, words)) / len(words)
    if mean < MINIMUM_MEAN_LENGTH:
        mean = sum(map(width, words)) / len(words)
    elif mean > MAXIMUM_MEAN_LENGTH:
        mean = sum(len(without_marks(word)) for word in words) / len(words)
    return MINIMUM_MEAN_LENGTH <= mean <= MAXIMUM_MEAN_LENGTH


def _build_quality(options: GopherOptions) -> StepFunction | None:
    fallback = options.fallback_language

    def reason_of(document: Document) -> str | None:
        return gopher_quality(document, language=document.language or fallback)

    if not options.gopher_quality:
        return None
    return restrict_to_sources(options.web_sources, drop_if(reason_of))


QUALITY = CleaningStep(
    options=GopherOptions, build=_build_quality, settings={"gopher_": "gopher_quality"}
)


# Repetition.

MAXIMUM_DUPLICATE_LINES = 0.30
MAXIMUM_DUPLICATE_LINE_CHARACTERS = 0.20
MAXIMUM_TOP = {2: 0.20, 3: 0.18, 4: 0.16}
MAXIMUM_DUPLICATE = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}


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

    known: dict[str, int] = {}
    ids = np.fromiter((known.setdefault(word, len(known)) for word in words), np.int64, len(words))
    lengths = np.fromiter(map(len, words), np.int64, len(words))
    ends = np.concatenate(([0], np.cumsum(lengths)))
    characters = int(ends[-1])
    starts = np.arange(ids.size)  # starts of n-grams that occur more than once
    classes = ids  # [places] number of the n-gram at each place
    for n in range(2, max(MAXIMUM_DUPLICATE) + 1):
        inside = starts + n <= ids.size
        starts, classes = starts[inside], classes[inside]
        if not starts.size:
            return None
        _, first, inverse, counts = np.unique(
            classes * ids.size + ids[starts + n - 1],
            return_index=True,
            return_inverse=True,
            return_counts=True,
        )
        repeated = counts[inverse] > 1
        if n in MAXIMUM_TOP:
            limit = MAXIMUM_TOP[n] * characters
            top = int(counts.max())
            at_top = counts[inverse] == top
            sizes = ends[starts + n] - ends[starts]
            # an upper bound, because occurrences may overlap
            if top > 1 and top * int(sizes[at_top].max()) > limit:
                longest = inverse == inverse[at_top][np.argmax(sizes[at_top])]
                if _covered(starts[longest], n, lengths) > limit:
                    return f"gopher_top_{n}gram"
        if n in MAXIMUM_DUPLICATE:
            copy = first[inverse] != np.arange(starts.size)
            if _covered(starts[copy], n, lengths) > MAXIMUM_DUPLICATE[n] * characters:
                return f"gopher_duplicate_{n}gram"
        starts, classes = starts[repeated], inverse[repeated]
    return None


def _covered(starts: I64, n: int, lengths: I64) -> int:
    """Return the number of characters in the n-grams at `starts`, each counted once."""
    import numpy as np

    if not starts.size:
        return 0
    steps = np.zeros(lengths.size + 1, dtype=np.int64)
    np.add.at(steps, starts, 1)
    np.subtract.at(steps, starts + n, 1)
    return int(lengths[np.cumsum(steps[:-1]) > 0].sum())


REPETITION = CleaningStep(
    options=GopherOptions,
    build=lambda options: (
        restrict_to_sources(options.web_sources, drop_if(gopher_repetition))
        if options.gopher_repetition
        else None
    ),
    settings=dict.fromkeys(("gopher_duplicate", "gopher_top"), "gopher_repetition"),
)
