"""For readers that take markup away: the slots that a removal emptied, and the punctuation around them that lost its words.

A slot is marked where something went, so that nothing else is mended: `({{IPA|x}}; born 1935)` has one and becomes `(born 1935)`,
`(or, more precisely, a hill)` has none and stays as its author wrote it.
"""

from __future__ import annotations

import re

from pipeline.corpus.document import HOLE_TEMPLATE, HOLES

SLOT = "\ue0fc"
"""Stands where something went that showed nothing, or nothing that a sentence needs: a reference, a note, a flag."""

PHONES = "\ue0fb"
"""Stands where a pronunciation went: a sentence does without it, unless it speaks of it."""

_TAKEN = f"{SLOT}{PHONES}{''.join(HOLES)}"
_ANY = re.compile(f"[{_TAKEN}]")
_BRACKET = re.compile(rf"([(\[])([^()\[\]]*[{_TAKEN}][^()\[\]]*)([)\]])")
_SEPARATOR = re.compile(r"([;,])")
# A part of a bracket that was nothing but what went, with the words that lead to it or count it.
_LEADS = (
    "or|and|also|from|in|at|of|on|to|by|as|is|see|near|around|about|approximately|approx|circa|ca?|born|lit|literally|pron|pronounced|pronunciation|local|"
    "locally|IPA|UK|US|English|equivalent|usually|sometimes|often|formerly|the|a|an|with|for|years?|months?|days?|old|ago|aged?|dollars?|pounds?|euros?|"
    "current|currently|present|today|adjusted|inflation|terms|money|worth"
)
_EMPTY_PART = re.compile(rf"\W*(?:(?:{_LEADS})\b\W*)*", re.IGNORECASE)
_JOINS = re.compile(rf"\s*(?:{SLOT}\s*)+(?:(?:or|and)\s+)?")  # at the beginning of a bracket
_QUOTED = re.compile(
    rf"[\"“«‘](?<![^\s(\[;,{SLOT}].)"
    rf"(?:(?<=\")\s*{SLOT}\s*\"|(?<=“)\s*{SLOT}\s*”|(?<=«)\s*{SLOT}\s*»|(?<=‘)\s*{SLOT}\s*’)(?!\w)"
)
_SPOKEN_OF = re.compile(
    rf"\b(?:pronounced|pronunciations?|spoken|sounds?|phonemes?|vowels?|consonants?|written|as|is|are|of|by|the|an?|to|between|like|with|than|for)"
    rf"((?:\s|:|,)*[\"“/]?){PHONES}",
    re.IGNORECASE,
)
_BETWEEN = re.compile(rf"([,;:])\s*(?:{SLOT}\s*)+([,;:.!?])")
_MARK_BEHIND = re.compile(rf"{SLOT}[{SLOT}\s]*[,;:.!?)\]]")
_BEFORE = re.compile(rf"\s*(?:{SLOT}\s*)+(?=[,;:.!?)\]](?:[\s)\]\"”’»]|$))")
_ALONE = re.compile(rf"{SLOT}+(\s*)")
_PADDING = re.compile(r"[,;:.!?()\[\]](?:(?<= [,;:.!?)\]])|(?<=[(\[]) )")  # begins with what is rarer than a blank
_PADDED = re.compile(r"([(\[])\s+|\s+([)\]])|\s+([,;:.!?])(?=[\s)\]\"”’]|$)")
_ROUNDS = 4


def mend(text: str) -> str:
    """The text with its slots closed, and what stood in brackets with nothing but slots and holes gone; other holes stay.

    Blanks inside of brackets and before punctuation go everywhere: they lose no word.
    """
    if not text.isascii() and _ANY.search(text):
        text = _closed(text)
    return without_padding(text)


def without_padding(text: str) -> str:
    """The text without blanks inside of brackets and before punctuation."""
    return _PADDED.sub(r"\1\2\3", text) if _PADDING.search(text) else text


def _closed(text: str) -> str:
    if "(" in text or "[" in text:
        for _ in range(_ROUNDS):  # brackets in brackets
            before = text
            text = _BRACKET.sub(_bracket, text)
            if text == before:
                break
    if PHONES in text:
        text = _SPOKEN_OF.sub(lambda match: match[0][:-1] + HOLE_TEMPLATE, text).replace(PHONES, SLOT)
    if SLOT not in text:
        return text
    if '"' in text or "“" in text or "«" in text or "‘" in text:
        text = _QUOTED.sub(SLOT, text)
    text = _BETWEEN.sub(lambda match: match[2] if match[2] in ".!?" else match[1], text)
    return _spaced(_BEFORE.sub("", text) if _MARK_BEHIND.search(text) else text)


def _bracket(match: re.Match[str]) -> str:
    content = _JOINS.sub(SLOT, match[2], count=1) if match[2].lstrip().startswith(SLOT) else match[2]
    pieces = _SEPARATOR.split(content)
    parts, marks = pieces[::2], ["", *pieces[1::2]]
    kept = [
        place for place, part in enumerate(parts) if part.strip() and not (_ANY.search(part) and _EMPTY_PART.fullmatch(part))
    ]
    if not kept:
        return SLOT
    text = "".join((marks[place] if number else "") + parts[place] for number, place in enumerate(kept))
    if kept[0]:
        text = re.sub(r"^\s*(?:or|and)\s+", "", text)
    return f"{match[1]}{_spaced(text).replace(PHONES, '').strip()}{match[3]}"


def _spaced(text: str) -> str:
    """The text without its slots: a blank where there were some around a slot, or where two words would touch."""
    pieces: list[str] = []
    position = 0
    for match in _ALONE.finditer(text):
        before = text[position : match.start()]
        kept = before.rstrip()
        touching = text[match.start() - 1 : match.start()].isalpha() and text[match.end() : match.end() + 1].isalpha()
        pieces += (kept, " " if match[1] or len(kept) < len(before) or touching else "")
        position = match.end()
    return "".join((*pieces, text[position:]))
