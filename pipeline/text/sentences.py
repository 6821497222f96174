"""Corpus stage: paragraphs in, sentences out.

The splitting is sentencex's (Wikimedia's rules by language). What it gets wrong on English prose often enough to
matter is mended here: a split inside a dotted name (`torch.nn.` + `Linear`), and one after an abbreviation that
takes a number or a bracket (`eq. (3)`, `Vol. 2`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import sentencex

from pipeline.text.document import HOLE

# Abbreviations that go with what follows: before a number, a bracket or a small letter no sentence ends here.
_LEADS_ON = re.compile(
    r"(?:^|[\s(\[“\"])(?:eqs?|refs?|figs?|tabs?|secs?|sects?|chaps?|chs?|vols?|nos?|pp?|arts?|par|pars|ll?|vv?|cf|ca?|approx|resp|"
    r"incl|excl|est|min|max|avg|dept|viz|vs|ed|eds|trans|ibid|op|e\.g|i\.e|b|d|r|fl|lat|long|ver)\.\s*$",
    re.IGNORECASE,
)
_CONTINUES = re.compile(r"[\d(\[a-z#§]")


@dataclass(frozen=True, slots=True)
class Sentences:
    """A document's sentences.

    Attributes:
        texts: in reading order, none empty, none with a line break.
        paragraphs: for each paragraph the index of its first sentence, rising, beginning with 0.
        holes: the sentences dropped because a formula had been taken out of them.
    """

    texts: list[str]
    paragraphs: list[int]
    holes: int


def split_paragraph(paragraph: str, language: str = "en") -> list[str]:
    """The sentences of one paragraph, ends stripped; nothing but white space at their borders is lost."""
    sentences: list[str] = []
    whole = True  # whether the sentence before has ended for sure
    for piece in sentencex.segment(language, paragraph):
        if sentences and (not whole or (_CONTINUES.match(piece) and _LEADS_ON.search(sentences[-1]))):
            sentences[-1] += piece
        else:
            sentences.append(piece)
        whole = piece[-1:].isspace()
    return [stripped for sentence in sentences if (stripped := sentence.strip())]


def split(paragraphs: Iterable[str], language: str = "en") -> Sentences:
    """The sentences of a cleaned document."""
    texts: list[str] = []
    starts: list[int] = []
    holes = 0
    for paragraph in paragraphs:
        sentences = split_paragraph(paragraph, language)
        if HOLE in paragraph:
            whole = [sentence for sentence in sentences if HOLE not in sentence]
            holes += len(sentences) - len(whole)
            sentences = whole
        if sentences:
            starts.append(len(texts))
            texts += sentences
    return Sentences(texts, starts, holes)
