"""Apostrophes that stand for italics and bold, taken away as MediaWiki reads them.

Two are italic, three bold, five both. Where a line has an odd number of both marks, one of the bold ones is an apostrophe before italics: in
French and Italian many a sentence has one (`l'''Encyclopédie''`), and English has it behind a title (`''Eagle'''s`).
"""

from __future__ import annotations

import re

_QUOTES = re.compile("('''*)")  # and not `'{2,}`, for a search can leap to what begins with two characters


def without_quotes(line: str) -> str:
    """A line with the marks gone and the apostrophes left."""
    if "''" not in line:
        return line
    pieces = _QUOTES.split(line)
    marks = pieces[1::2]
    if sum(len(mark) != 2 for mark in marks) % 2 and sum(len(mark) in (2, 5) or len(mark) > 5 for mark in marks) % 2:
        found = _meant_as_apostrophe(pieces)
        if found is not None:
            pieces[found] += "'"
    # of four, one is an apostrophe; of more than five, all but five
    pieces[1::2] = ["'" * max(0, len(mark) - (3 if len(mark) == 4 else 5)) for mark in marks]
    return "".join(pieces)


def _meant_as_apostrophe(pieces: list[str]) -> int | None:
    """The place of the text before the bold mark that is one: behind a single letter, else behind a word, else behind a blank."""
    found: dict[str, int] = {}
    for place in range(0, len(pieces) - 1, 2):
        if len(pieces[place + 1]) not in (3, 4):
            continue
        before = pieces[place]
        kind = "blank" if before[-1:] == " " else "letter" if before[-2:-1] in (" ", "") and before else "word"
        found.setdefault(kind, place)
        if kind == "letter":
            break
    return next((found[kind] for kind in ("letter", "word", "blank") if kind in found), None)
