"""What is wrong with the text that a program took out of wikitext: each measure compares the text
with the page it came from.

All are counted by patterns, so they miss some and count some that are right; they are the same for
every program.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

_MARKUP = re.compile(
    r"\{\{|\}\}|\[\[|\]\]|\{\||\|\}|'''|''|</?(?:ref|br|div|span|small|sub|sup|math|nowiki|center|"
    r"gallery)\b|&(?:nbsp|lt|gt|amp|ndash|mdash);|"
    r"__[A-Z]{3,}__|\bthumb\||\d+px\b|\b(?:align|style|class|colspan|rowspan|bgcolor|width)\s*=|"
    r"\bformula_\d+|\bcodice_\d+"
)
_HOLE = re.compile(
    r"(?<=[^\W\d_])\s[.,](?=\s|$)|\(\s*[,;:)]|\[\s*\]|\(\s*(?:or|and)\s*\)|(?<!\S)\"\s*\"|"
    r"\b(?:[Ff]rom (?:to|and)|[Bb]etween and|[Tt]he (?:and|or|is|was|of)|"
    r"an? (?:and|or|is|was|of)|by (?:and|,)|of (?:\.|,)|at (?:\.|,|and))\s|\$\s(?=\(|in\b)"
)
_REFERENCE = re.compile(
    r"<ref\b[^<>]*/>|<ref\b[^<>]*>.*?</ref>|<!--.*?-->|<math\b.*?</math>", re.DOTALL | re.IGNORECASE
)
_INNERMOST = re.compile(r"\{\{[^{}]*\}\}")
_LINK = re.compile(r"\[\[(?:[^\[\]|]*\|)*([^\[\]|]*)\]\]")
_WORD = re.compile(r"[^\W\d_]+")
_LISTED = re.compile(r"(?:^[*#][^\n]*\n(?:[ \t]*\n(?=[*#]))?)+", re.MULTILINE)
_HEADING = re.compile(r"^(=+)\s*(.*?)\s*=+\s*$", re.MULTILINE)
_NUMBERED = re.compile(
    r"\{\{\s*(?:convert|cvt|val|formatnum\s*:|currency|as of)\s*\|?\s*([−-]?\d[\d,.]*)",
    re.IGNORECASE,
)
_END = re.compile(r"[.!?…][\"'”’)\]]*$")
APPENDED = frozenset(
    """see also|references|external links|further reading|notes|bibliography|sources|footnotes|citations|notes and references|works cited|gallery|
    discography|filmography|publications|selected bibliography|literature""".replace("\n", "")
    .replace("    ", "")
    .split("|")
)  # sections that no program is blamed for leaving out
_KEY = 24  # letters by which an item of a list is found again


@dataclass(slots=True)
class Faults:
    """What is counted, over all pages.

    Attributes:
        pages, characters: of the text.
        markup: marks of wikitext and HTML that are left.
        glued: words that neither the page nor other pages have, for something between two words
            went.
        holes: places where punctuation or small words show that something went.
        lists, half_lists: those of which an item is in the text, and of these those of which not
            all are.
        numbers, lost_numbers: of measures, dates and sums inside sentences, and of these those that
            are not in the text.
        sentences, torn: those that begin with a small letter or end without an end mark.
    """

    pages: int = 0
    characters: int = 0
    markup: int = 0
    glued: int = 0
    holes: int = 0
    lists: int = 0
    half_lists: int = 0
    numbers: int = 0
    lost_numbers: int = 0
    sentences: int = 0
    torn: int = 0

    def __iadd__(self, other: Faults) -> Faults:
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))
        return self


def common_words(pages: Mapping[str, str]) -> set[str]:
    """Words that stand on three pages or more, in lower case: no two words glued together are one
    of these.
    """
    found: Counter[str] = Counter()
    for wikitext in pages.values():
        found.update({word.lower() for word in _WORD.findall(wikitext)})
    return {word for word, count in found.items() if count > 2}


def faults(
    wikitext: str, lines: Sequence[str], sentences: Iterable[str], common: set[str]
) -> Faults:
    """Count what is wrong.

    Args:
        wikitext: of the page.
        lines: of the text that a program took out of it.
        sentences: of the same.
        common: of `common_words`.
    """
    text = "\n".join(lines)
    found = Faults(pages=1, characters=len(text), markup=len(_MARKUP.findall(text)))
    found.holes = sum(len(_HOLE.findall(line)) for line in lines)
    bare = (
        html.unescape(html.unescape(wikitext))
        .replace("[[", "")
        .replace("]]", "")
        .replace("'''", "")
        .replace("''", "")
    )
    own = {word.lower() for word in _WORD.findall(bare)} | {
        word.lower() for word in _WORD.findall(wikitext)
    }
    found.glued = sum(
        len(word) > 5 and word.lower() not in own and word.lower() not in common
        for word in _WORD.findall(text)
    )
    letters = _letters(text)
    for keys in _lists(wikitext):
        there = sum(key in letters for key in keys)
        found.lists += there > 0
        found.half_lists += 0 < there < len(keys)
    digits = set(
        re.findall(r"\d+(?:\.\d+)?", re.sub(r"(?<=\d)[,\u00a0\u2009 ](?=\d{3})", "", text))
    )
    for number in _numbers(wikitext):
        found.numbers += 1
        found.lost_numbers += number not in digits
    for sentence in sentences:
        found.sentences += 1
        found.torn += sentence[:1].islower() or not _END.search(sentence)
    return found


def _letters(text: str) -> str:
    return "".join(_WORD.findall(text)).lower()


def _prose(wikitext: str) -> str:
    """The page without references and without the sections that articles append."""
    text = _REFERENCE.sub("", wikitext)
    pieces, position, skipped = [], 0, 7
    for heading in [*_HEADING.finditer(text), None]:
        if skipped == 7:
            pieces.append(text[position : heading.start() if heading else len(text)])
        if heading:
            position, level = heading.end(), len(heading[1])
            if level <= skipped:
                skipped = level if heading[2].strip().lower() in APPENDED else 7
    return "".join(pieces)


def _lists(wikitext: str) -> list[list[str]]:
    """The lists of the page's own sections: of each item the letters that it begins with, templates
    left out.
    """
    text = _prose(wikitext)
    for _ in range(4):
        text = _INNERMOST.sub("", text)
    text = re.sub(r"\{\|.*?\n\|\}", "", text, flags=re.DOTALL)
    lists = []
    for block in _LISTED.findall(html.unescape(text)):
        items = [
            _letters(re.sub(r"<[^<>]*>", "", _LINK.sub(r"\1", line.lstrip("*#;: "))))[:_KEY]
            for line in block.split("\n")
            if line.strip()
        ]
        keys = [item for item in items if len(item) == _KEY]
        if len(keys) > 1:
            lists.append(keys)
    return lists


def _numbers(wikitext: str) -> list[str]:
    """The first number of each template that says one, inside of running text alone: no tables,
    boxes, lists and captions.
    """
    text = re.sub(r"\{\|.*?\n\|\}", "", _prose(wikitext), flags=re.DOTALL)
    found = []
    for line in text.split("\n"):
        if len(line) > 200 and line[0] not in "|*#:;{![":
            found += [
                number.replace(",", "").lstrip("−-").rstrip(".")
                for number in _NUMBERED.findall(line)
            ]
    return found
