"""Elements of wikitext whose content is no running text: references, galleries, programs, formulas."""

from __future__ import annotations

import functools
import re
from typing import Literal

from pipeline.corpus.document import HOLE, HOLE_TEMPLATE
from pipeline.corpus.readers.slots import SLOT
from pipeline.corpus.readers.wikipedia.hidden import hide

Formulas = Literal["drop", "latex"]

_DROPPED = (
    "ref|references|gallery|timeline|score|syntaxhighlight|source|pre|imagemap|hiero|graph|templatestyles|inputbox|mapframe|"
    "maplink|templatedata|categorytree|math|chem|ce|s|strike|del|table|style|script|includeonly|indicator"
)
_NAMES = frozenset(_DROPPED.split("|"))
_NAME = re.compile(_DROPPED, re.IGNORECASE)
# A reference with nothing but text in it, which nearly all elements are, is found whole; of others the tag that opens them.
# ſ, K, İ, ı stand for Latin letters where case is ignored.
_TAG = re.compile(r"<(?:ref\b[^<>]*>(?:(?<=/>)|[^<]*</ref>)|([a-zA-Z\u017f\u212a\u0130\u0131]+)\b[^<>]*>)")
_SIMPLE_FORMULA = re.compile(r"(?:[^\W_]|[\s+\-−=<>.,()/*']){1,24}")
_FORMULAS = frozenset({"math", "chem", "ce"})
_SHOWN = frozenset({"score", "syntaxhighlight", "source", "hiero", "pre"})  # inside a sentence, words of it
BEFORE_SLOT = " \n\t([{"
"""After anything else than these characters nothing is left over when something goes."""


def drop_elements(text: str, formulas: Formulas = "drop") -> str:
    """Take away elements whose content is no running text; short formulas stay as they read, others leave a hole.

    Args:
        formulas: `latex` keeps the others, too, as `$…$`.
    """
    pieces: list[str] = []
    position = end = 0
    hopeless: set[str] = set()  # names of which no closing tag is left
    odd = "İ" in text  # which is two letters in lower case
    while match := _TAG.search(text, end):
        begin, end = match.span()
        tag = match[1]
        if tag is None:
            if "ref" not in hopeless:
                pieces += (text[position:begin], left_over(text[begin - 1 : begin], text[end : end + 1]))
                position = end
            continue
        name = tag.lower()
        if (name not in _NAMES and (name.isascii() or not _NAME.fullmatch(tag))) or name in hopeless:
            continue
        content = ""
        if text[end - 2] != "/":
            close = _closing(tag if odd else name, odd).search(text, end)
            if close is None:
                hopeless.add(name)
                continue
            content = text[end : close.start()]
            end = text.find(">", close.end()) + 1 or len(text)
        pieces.append(text[position:begin])
        if name in _FORMULAS and content:
            pieces.append(formula(content.strip(), formulas))
        elif name in _SHOWN and content:
            pieces.append(HOLE_TEMPLATE)
        else:
            pieces.append(left_over(text[begin - 1 : begin], text[end : end + 1]))
        position = end
    pieces.append(text[position:])
    return "".join(pieces)


@functools.lru_cache(maxsize=256)
def _closing(name: str, exactly: bool) -> re.Pattern[str]:
    """The beginning of the tag that closes an element of this name (in lower case), in any case or as it stands."""
    same = {"k": "[kK\N{KELVIN SIGN}]"}
    letters = (
        re.escape(letter) if exactly or not letter.isascii() else same.get(letter, f"[{letter}{letter.upper()}]")
        for letter in name
    )
    return re.compile(f"</{''.join(letters)}")


def left_over(before: str, after: str) -> str:
    """What is left where something went inside a sentence, between these two characters (empty: none)."""
    if before and before in BEFORE_SLOT:
        return SLOT
    if after.isupper() and before and before in '.!?"':
        return " "  # a reference was all that stood between two sentences
    return ""


def formula(content: str, formulas: Formulas) -> str:
    """A formula in TeX as the text has it: as it stands if it reads so, else as `formulas` says, or a hole."""
    if _SIMPLE_FORMULA.fullmatch(content):
        return content
    return hide(f"${' '.join(content.split())}$") if formulas == "latex" else HOLE


def power(base: str, exponent: str) -> str:
    """A raised number behind a character: `10` and `−7` are 10^−7, `km` and `2` km²; elsewhere (isotopes, ions, notes) figures stay."""
    if base.isdigit() or base == ")":
        return f"{base}^{exponent}"
    return base + {"2": "²", "3": "³"}.get(exponent, exponent)
