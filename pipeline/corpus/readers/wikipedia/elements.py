"""Elements of wikitext whose content is no running text: references, galleries, programs, formulas."""

from __future__ import annotations

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
_ELEMENT = re.compile(rf"<(/?)({_DROPPED})\b[^<>]*?(/?)>", re.IGNORECASE)
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
    lower = ""
    pieces: list[str] = []
    position = 0
    hopeless: set[str] = set()  # names of which no closing tag is left
    for match in _ELEMENT.finditer(text):
        name = match[2].lower()
        if match.start() < position or match[1] or name in hopeless:
            continue
        end = match.end()
        content = ""
        if not match[3]:
            lower = lower or text.lower()
            close = lower.find(f"</{name}", end) if len(lower) == len(text) else text.find(f"</{match[2]}", end)
            if close < 0:
                hopeless.add(name)
                continue
            content = text[end:close]
            end = text.find(">", close) + 1 or len(text)
        pieces.append(text[position : match.start()])
        if name in _FORMULAS and content:
            pieces.append(formula(content.strip(), formulas))
        elif name in _SHOWN and content:
            pieces.append(HOLE_TEMPLATE)
        else:
            pieces.append(left_over(text[match.start() - 1 : match.start()], text[end : end + 1]))
        position = end
    pieces.append(text[position:])
    return "".join(pieces)


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
