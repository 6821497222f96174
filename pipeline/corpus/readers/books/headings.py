"""Headings of chapters in books, by their words and numbers in many languages."""

from __future__ import annotations

import re
from pathlib import Path

from cloze.core.words import word_pattern
from cloze.pipeline.corpus.readers import prose
from cloze.pipeline.corpus.readers.prose import has_end, read_lists

_LONGEST_LINE = 200  # characters that are compared
_PAGE_NUMBER = re.compile(r"[ .…·]{1,200}\d+\s*$")
LISTS = read_lists(Path(__file__).with_name("books.txt"), " | ")


def alternatives(name: str) -> str:
    """Return the entries of a list in books.txt as the alternatives of a pattern."""
    return prose.alternatives(LISTS, name)


_ROMAN = r"(?=[ivxlcm])m{0,3}(?:cm|cd|d?c{0,3})(?:xc|xl|l?x{0,3})(?:ix|iv|v?i{0,3})"
_ORDINAL, _PART = f"(?:{alternatives('english ordinals')})", f"(?:{alternatives('english parts')})"
_UNIT, _TEEN, _TEN = (
    f"(?:{alternatives(f'english {kind}')})" for kind in ("units", "teens", "tens")
)
_CARDINAL = rf"(?:{_TEN}(?:[- ]{_UNIT})?|{_UNIT}|{_TEEN})"
_HEADING = re.compile(
    rf"_?(?:{_PART}\.? +(?:the +)?(?:{_ROMAN}|\d{{1,3}}|{_CARDINAL}|{_ORDINAL})\b(?:[.:,\]_ "
    rf")—–-]*$|[.:,]?[ —–-]+.{{1,70}}$|\.?:.{{1,70}}$)|"
    rf"(?:the )?{_ORDINAL} {_PART}[.:_]*$|"
    r"(?:author['’]s |editor['’]s |translator['’]s )?"
    rf"(?:{alternatives('english prefaces')})(?: to .{{1,50}})?[.:_]*$)",
    re.IGNORECASE,
)
NUMBER_ONLY = re.compile(rf"(?:{_ROMAN})\.?|\d{{1,2}}\.?", re.IGNORECASE)
NUMBER_TITLE = re.compile(
    rf"(?:(?:{_ROMAN})|\d{{1,2}})(?![\w'’])[.:]? *[—–-]* *(.{{2,60}})", re.IGNORECASE
)

_CHAPTERS, _PARTS = alternatives("chapters"), alternatives("parts")
_NUMBER = rf"(?:\d{{1,3}}|{_ROMAN}|[א-תΑ-Ω]{{1,2}}['׳ʹ΄]?)"
_END = r"[.:,\])_ —–-]*$"
_OTHER_LANGUAGES = re.compile(
    rf"_?(?:{_CHAPTERS}|{_PARTS})[ .]{{0,2}}{_NUMBER}\b(?:{_END}|[.:,]?[ —–-]+.{{1,70}}$)"
    rf"|_?(?:{_CHAPTERS}) \w+{_END}"
    # Das erste Kapitel, 1. Kapitel, 1-тарау, 1 дугаар бүлэг
    r"|_?(?:(?:das|le|el|il|het|o|\d{1,3}) )?[\w.-]+(?: |(?<=[.-]))"
    rf"(?:{_CHAPTERS}){_END}",
    re.IGNORECASE,
)
# The first two letters are looked up for speed.
_BEGINNINGS = frozenset(word[:2] for word in LISTS["chapters"] + LISTS["parts"])
_CHAPTER_END = re.compile(rf"[ .-](?:{_CHAPTERS}){_END}", re.IGNORECASE)
# 第一章, 第一回　題, 卷三, 제1장; and the number alone: 一
_HAN_NUMBER = "[〇零一二三四五六七八九十百千两兩]{1,8}"
_HAN = re.compile(
    rf"(?:第(?:{_HAN_NUMBER}|\d{{1,4}}) ?[章回节節篇編编話话幕折卷巻部場场集]|卷{_HAN_NUMBER}|"
    r"제? ?\d{1,3} ?[장부편막회])(?:[\s:：.、，·]+[^。！？!?]{1,40}|"
    r"[^\s。！？!?，,、；;「」『』“”]{0,15})?\W*$"
    rf"|[（(]?{_HAN_NUMBER}[)）]?[、．.]?$|[上中下][篇編编卷巻]$"
)
_PREFACES = frozenset(LISTS["prefaces"])
_PREFACE_BEGINNINGS = frozenset(word[:2] for word in _PREFACES)


def is_heading(text: str) -> bool:
    """Return True if a line is the heading of a chapter, a part or a preface."""
    if len(text) > 100:
        return False
    if _HEADING.match(text) or (not text.isascii() and _HAN.match(text)):
        return True
    begin = text.lstrip("_")[:2].lower()
    if (begin in _BEGINNINGS or _CHAPTER_END.search(text[-20:])) and _OTHER_LANGUAGES.match(text):
        return not has_end(text.rstrip(".")) or len(text.split()) < 3
    return begin in _PREFACE_BEGINNINGS and key(text) in _PREFACES


def key(line: str) -> str:
    """Return a heading for comparison: words in lower case, without the page number."""
    return words(_PAGE_NUMBER.sub("", line[:_LONGEST_LINE]))


def words(line: str) -> str:
    """Return the words of a line in lower case."""
    return " ".join(word_pattern().findall(line.lower()[:_LONGEST_LINE]))
