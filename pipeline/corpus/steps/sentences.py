"""Corpus stage: paragraphs in, sentences out.

The splitting is sentencex's (Wikimedia's rules by language; a language that it does not know is split by those of a related one, at
last by English ones). What it gets wrong often enough to matter is mended here: a split inside a dotted name (`torch.nn.` +
`Linear`), one after an abbreviation that takes a number or a bracket (`eq. (3)`, `Vol. 2`), after a list's number (`1. First`), and
speech: it keeps whatever stands in quotation marks in one piece, for which it also takes the text between two apostrophes
(`don't … can't`).

Other languages than English have rules of their own: abbreviations (pipeline/corpus/steps/abbreviations.py), ordinals, no sentence
that begins with a small letter, and ends of sentences without a blank in Chinese and Japanese. Thai, Lao and Khmer mark
no ends of sentences; there a paragraph is a sentence.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.corpus.document import A_HOLE, HOLES, Document, has_hole
from pipeline.corpus.options import CorpusOptions
from pipeline.corpus.steps import abbreviations
from pipeline.corpus.steps.base import Removed, Sentences, StepFunction, StepKind, StepResult

# Abbreviations that go with what follows: before a number, a bracket or a small letter no sentence ends here.
_LEADS_ON = re.compile(
    r"(?<![\w.])(?:eqs?|refs?|figs?|tabs?|secs?|sects?|chaps?|chs?|vols?|nos?|pp?|arts?|par|pars|ll?|vv?|cf|ca?|approx|resp|"
    r"incl|excl|est|min|max|avg|dept|viz|vs|ed|eds|trans|ibid|op|e\.g|i\.e|b|d|r|fl|lat|long|ver)\.\s*$",
    re.IGNORECASE,
)
_LONGEST_ABBREVIATION = 20  # characters, with the blanks after it
_CONTINUES = re.compile(r"[\d(\[a-z#§]")
_RUNS_ON = re.compile(
    r"(?:[?!][\"'”’)]*|(?<!\w)(?:\d{1,3}|\w)\.)\s*$"
)  # a title's mark, an initial, a number: small letters go on
_TITLE_GOES_ON = re.compile(
    r"\([^()]{1,60}\)(?:,? [a-z]|[,;:]|\.?$)"
)  # what a bracket behind a title's own end mark says, and its sentence
_ENUMERATOR = re.compile(r"\s*\(?(?:\d{1,3}|[a-zA-Z]|[ivxIVX]{1,5})[.)]+\s*")  # of a list's item; its text follows
_LONGEST_ENUMERATOR = 8  # characters

WINDOW = 10_000  # characters given to sentencex at once, whose time grows with the square of the sentences in them
LONGEST_SENTENCE = 4 * WINDOW  # what is longer is no sentence (a quotation mark that is never closed), and is cut at a blank
SHORTEST_SPEECH = 80  # characters; shorter quotations are titles and names as often as speech
_APOSTROPHE = re.compile(r"'(?<=\w')(?=\w)")
_SPEECH = re.compile(
    rf"[\"“'‘](?:(?<=\")([^\"]{{{SHORTEST_SPEECH},}})\"|(?<=“)([^“”]{{{SHORTEST_SPEECH},}})”|"
    rf"(?<=')(?<!\w')([^']{{{SHORTEST_SPEECH},}})'(?!\w)|(?<=‘)([^‘]{{{SHORTEST_SPEECH},}}?)’(?!\w))"
)

# Marks after which a sentence begins without a blank: where to cut, and not how a line ends (pipeline/corpus/end_marks.py). No Latin
# ones, and none of Khmer, Burmese and Tibetan, which leave a blank.
_ENDS_UNSPACED = frozenset("。｡！？।॥۔։።")
_CLOSES_UNSPACED = frozenset("」』”’）】》〉")
_QUOTATIVE = re.compile(r"[とっ、，,]|って|という|など")  # Japanese goes on after a quotation, and so does a comma

_LAST_WORD = re.compile(r"(?<![^\W_])([^\W\d_][\w.'’-]*?)\.\s*$")
_LAST_NUMBER = re.compile(r"(?<![\w.,])(?:\d{1,2}|[IVXLC]{1,5})\.\s*$")
_FIRST_WORD = re.compile(r"[\s\"'“”„«»‚‘’(\[—–-]*(\w+)")


@dataclass(frozen=True, slots=True)
class _Rules:
    """What is known of a language other than English."""

    titles: frozenset[str]
    leads_on: frozenset[str]
    ordinals: bool
    openers: frozenset[str]

    def goes_on(self, before: str, after: str) -> bool:
        """Whether the sentence that ends in `before` goes on in `after`."""
        first = _FIRST_WORD.match(after)
        if first is None:
            return False
        word = first[1]
        if not before.rstrip().endswith("."):
            return word[0].islower()  # “…?” she said
        if word[0].islower():
            return True
        if (last := _LAST_WORD.search(before)) is not None:
            name = last[1].lower()
            if name in self.titles or (len(name) == 1 and last[1].isupper()):
                return True
            return name in self.leads_on and (word[0].isdigit() or after[:1] in "([")
        return self.ordinals and _LAST_NUMBER.search(before) is not None and not (word[0].isdigit() or word in self.openers)


@functools.cache
def _rules(language: str) -> _Rules | None:
    if language == "en":
        return None
    return _Rules(
        titles=abbreviations.words(abbreviations.TITLES, language),
        leads_on=abbreviations.words(abbreviations.LEADS_ON, language),
        ordinals=language in abbreviations.ORDINALS,
        openers=frozenset(abbreviations.OPENERS.get(language, ())),
    )


def split_paragraph(paragraph: str, language: str = "en") -> list[str]:
    """The sentences of one paragraph, ends stripped; nothing but white space at their borders is lost."""
    pieces: list[str] = []
    begin, width = 0, WINDOW
    while begin < len(paragraph):
        window = paragraph[begin : begin + width]
        borders = _all_borders(window, language)
        if begin + width < len(paragraph):  # the last piece of a window may go on in the next
            cut = borders[-1] if borders else window.rfind(" ") + 1 if width >= LONGEST_SENTENCE else 0
            if not cut:
                width *= 2
                continue
            edges = [0, *(borders or [cut])]
        else:
            edges = [0, *borders, len(window)]
        pieces += [piece for left, right in itertools.pairwise(edges) if (piece := window[left:right].strip())]
        begin, width = begin + edges[-1], WINDOW
    return pieces


def _all_borders(text: str, language: str) -> list[int]:
    """Where sentences end inside `text`, those in long speech included, rising."""
    shadow = _APOSTROPHE.sub("’", text) if "'" in text else text
    borders = _borders(shadow, language)
    if len(shadow) >= SHORTEST_SPEECH and ('"' in shadow or "“" in shadow or "'" in shadow or "‘" in shadow):
        inside: list[int] = []
        for speech in _SPEECH.finditer(shadow):
            group = speech.lastindex or 0
            inner = _borders(speech[group], language)
            inside += [speech.start(group) + border for border in inner if border < len(speech[group].rstrip())]
        if inside:
            borders = sorted({*borders, *inside})
    return borders


def _borders(text: str, language: str) -> list[int]:
    """Where a sentence ends inside `text` and another begins."""
    import sentencex  # not at the top: a config is read without it

    borders: list[int] = []
    pieces: list[str] = sentencex.segment(language, text)
    if len(pieces) < 2:
        return borders
    rules = _rules(language)
    if rules is not None and (text.islower() or text.isupper()):
        rules = None  # case says nothing here
    begin = position = 0
    for piece in pieces:
        # the first three say what `_is_border` finds of most sentences, at a fifth of the price
        if position and (
            (rules is None and position - begin > _LONGEST_ENUMERATOR and text[position - 1] == " " and piece[0].isupper())
            or _is_border(text, begin, position, piece, rules)
        ):
            borders.append(position)
            begin = position
        position += len(piece)
    return borders


def _is_border(text: str, begin: int, position: int, piece: str, rules: _Rules | None) -> bool:
    """Whether the sentence that begins at `begin` ends at `position`, where `piece` follows."""
    last = text[position - 1]
    if not last.isspace():
        if last in _CLOSES_UNSPACED:
            return text[position - 2] in _ENDS_UNSPACED and _QUOTATIVE.match(piece) is None
        return last in _ENDS_UNSPACED
    if position - begin <= _LONGEST_ENUMERATOR and _ENUMERATOR.fullmatch(text, begin, position):
        return False
    near = max(begin, position - _LONGEST_ABBREVIATION)
    if not piece[0].isupper():
        if (
            rules is None
            and piece[0].islower()
            and _RUNS_ON.search(text, max(begin, position - 12), position)
            and not text.islower()
        ):
            return False
        if piece[0] == "(" and _TITLE_GOES_ON.match(text, position):  # Who's Afraid? (film) is
            return False
        if _CONTINUES.match(piece) and _LEADS_ON.search(text, near, position):
            return False
    return rules is None or not rules.goes_on(text[near:position], piece)


def split(paragraphs: Iterable[str], language: str = "en") -> Sentences:
    """The sentences of a cleaned document in a language (ISO 639)."""
    texts: list[str] = []
    starts: list[int] = []
    dropped: list[str] = []
    for paragraph in paragraphs:
        sentences = split_paragraph(paragraph, language)
        if has_hole(paragraph):
            dropped += [sentence for sentence in sentences if A_HOLE.search(sentence)]
            sentences = [sentence for sentence in sentences if not A_HOLE.search(sentence)]
        if sentences:
            starts.append(len(texts))
            texts += sentences
    return Sentences(texts, starts, dropped)


def _removed(sentence: str) -> Removed:
    """A sentence with holes, by the first of them."""
    hole = A_HOLE.search(sentence)
    return Removed(HOLES[hole[0]] if hole else "", A_HOLE.sub("[…]", sentence))


def _build(options: CorpusOptions) -> StepFunction:
    fallback = options.fallback_language

    def sentences(document: Document) -> StepResult:
        found = split(document.paragraphs, document.language or fallback)
        removed = tuple(map(_removed, found.dropped))
        if not found.texts:
            return StepResult(None, "too_short", removed)
        return StepResult(document, None, removed, sentences=found)

    return sentences


STEP = StepKind(options=CorpusOptions, build=_build)
