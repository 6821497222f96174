"""Corpus stage: paragraphs in, sentences out.

The splitting is sentencex's (Wikimedia's rules by language). What it gets wrong on English prose often enough to
matter is mended here: a split inside a dotted name (`torch.nn.` + `Linear`), one after an abbreviation that takes
a number or a bracket (`eq. (3)`, `Vol. 2`), and speech: it keeps whatever stands in quotation marks in one piece,
for which it also takes the text between two apostrophes (`don't … can't`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import sentencex

from pipeline.text.document import HOLE

# Abbreviations that go with what follows: before a number, a bracket or a small letter no sentence ends here.
_LEADS_ON = re.compile(
    r"(?<![\w.])(?:eqs?|refs?|figs?|tabs?|secs?|sects?|chaps?|chs?|vols?|nos?|pp?|arts?|par|pars|ll?|vv?|cf|ca?|approx|resp|"
    r"incl|excl|est|min|max|avg|dept|viz|vs|ed|eds|trans|ibid|op|e\.g|i\.e|b|d|r|fl|lat|long|ver)\.\s*$",
    re.IGNORECASE,
)
_LONGEST_ABBREVIATION = 20  # characters, with the blanks after it
_CONTINUES = re.compile(r"[\d(\[a-z#§]")

SHORTEST_SPEECH = 80  # characters; shorter quotations are titles and names as often as speech
_APOSTROPHE = re.compile(r"(?<=\w)'(?=\w)")
_SPEECH = re.compile(
    rf"\"([^\"]{{{SHORTEST_SPEECH},}})\"|“([^“”]{{{SHORTEST_SPEECH},}})”|"
    rf"(?<!\w)'([^']{{{SHORTEST_SPEECH},}})'(?!\w)|‘([^‘]{{{SHORTEST_SPEECH},}}?)’(?!\w)"
)


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
    shadow = _APOSTROPHE.sub("’", paragraph) if "'" in paragraph else paragraph
    borders = _borders(shadow, language)
    if len(shadow) >= SHORTEST_SPEECH:
        for speech in _SPEECH.finditer(shadow):
            group = speech.lastindex or 0
            inner = _borders(speech[group], language)
            borders += [speech.start(group) + border for border in inner if border < len(speech[group].rstrip())]
    edges = [0, *sorted(set(borders)), len(paragraph)]
    pieces = (paragraph[begin:end].strip() for begin, end in zip(edges[:-1], edges[1:], strict=True))
    return [piece for piece in pieces if piece]


def _borders(text: str, language: str) -> list[int]:
    """Where a sentence ends inside `text` and another begins."""
    borders: list[int] = []
    begin = position = 0
    for piece in sentencex.segment(language, text):
        if (
            position
            and text[position - 1].isspace()
            and not (_CONTINUES.match(piece) and _LEADS_ON.search(text, max(begin, position - _LONGEST_ABBREVIATION), position))
        ):
            borders.append(position)
            begin = position
        position += len(piece)
    return borders


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
