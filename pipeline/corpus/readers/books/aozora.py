"""Marks of Aozora Bunko in books: readings, notes of the volunteers, and the colophon.

https://www.aozora.gr.jp/annotation/ describes them. `漢字《かんじ》` is a word with its reading,
`｜` begins such a word, `［＃…］` is a note, and `※［＃…］` is a character that JIS X 0208 lacks.
"""

from __future__ import annotations

import re
from collections import Counter

from cloze.pipeline.corpus.readers.base import ReadCounters
from cloze.pipeline.corpus.readers.books.gutenberg import count_lines

_MARKS = ("［＃", "《》：ルビ", "\n底本：")
_RULE = "^[-－]{20,}"
_EXPLANATION = re.compile(
    rf"{_RULE}\n【テキスト中に現れる.{{0,4000}}?{_RULE}$", re.MULTILINE | re.DOTALL
)
_COLOPHON = re.compile(r"^底本：.*?(?:^このファイルは.*?$|\Z)", re.MULTILINE | re.DOTALL)
_NOTE = re.compile("(※?)［＃((?:[^［］]|［[^［］]{0,200}］){0,300})］")
_CODE = re.compile(r"U\+([0-9A-Fa-f]{4,6})|(?:水準|、)([12])-(\d{1,2})-(\d{1,2})")
_READING = re.compile("(?<!《)《[^《》\n]{1,60}》(?!》)")
_MISSING = "〓"  # a printer's mark for a character that is lacking


def strip_notes(text: str, tally: ReadCounters) -> str:
    """Return the text without the marks, counted by kind; any other text unchanged."""
    if not any(mark in text for mark in _MARKS):
        return text
    counts: Counter[str] = Counter()

    def replace_note(match: re.Match[str]) -> str:
        character = _character(match[2]) if match[1] else ""
        if character in ("", _MISSING):
            counts["missing_character" if character else "note"] += 1
        return character

    for pattern, reason in ((_EXPLANATION, "note"), (_COLOPHON, "colophon")):
        remaining = pattern.sub("", text)
        counts[reason] += count_lines(text) - count_lines(remaining)
        text = remaining
    text = _NOTE.sub(replace_note, text)
    text, counts["reading"] = _READING.subn("", text.replace("｜", ""))
    for reason, count in counts.items():
        tally.drop_lines(reason, count)
    return text


def _character(note: str) -> str:
    """Return the character that a note describes: by Unicode, or by plane, row and cell of JIS."""
    code = _CODE.search(note)
    try:
        if code and code[1]:
            return chr(int(code[1], 16))
        if code:
            cell = bytes(0xA0 + int(number) for number in code.group(3, 4))
            return (b"\x8f" * (code[2] == "2") + cell).decode("euc_jis_2004")
    except ValueError:
        pass  # no such character
    return _MISSING
