"""Raised and lowered text, and words in several scripts, on one line."""

from __future__ import annotations

import html
import re
from collections.abc import Callable

from cloze.pipeline.corpus.document import HOLE_TEMPLATE
from cloze.pipeline.corpus.readers.encyclopedia.elements import GAP

# Raised and lowered text on one line: a bare removal of the tags would make other numbers.

_SCRIPTS = re.compile(
    r"<([sS][uU][bBpP])\b[^<>]*>((?:[^<\n]|<(?!/?[sS][uU][bBpP]\b)){0,200})</[sS][uU][bBpP]\s*>"
)
_BASE = re.compile(r"([^\W²³]|[)>])('')?'{0,3}\Z")  # maybe in italics
_TAGS = re.compile(r"<[^<>]*>")
_NUMBER = re.compile(r"[−–+-]?\d+(?:[.,]\d+)?")
_CHARGE = re.compile(r"\d{1,2}[−–+-]")
_ORDINAL = re.compile(r"[^\W\d_]{2,4}|[aeoros]\.?|º")
_NESTED = 3  # passes


def resolve_scripts(text: str) -> str:
    """Replace `<sup>` and `<sub>` after a character by text on one line, from the inside out."""
    return _repeated(_SCRIPTS, _script, text)


def _repeated(pattern: re.Pattern[str], replace: Callable[[re.Match[str]], str], text: str) -> str:
    for _ in range(_NESTED):
        previous = text
        text = pattern.sub(replace, text)
        if text == previous:
            break
    return text


def _script(match: re.Match[str]) -> str:
    before = _BASE.search(match.string, max(0, match.start() - 6), match.start())
    if before is None:
        return match[2]
    if before[1] == ">":  # other raised or lowered text comes first
        return match[0]
    content = html.unescape(_TAGS.sub("", match[2])).strip()
    text = content.replace("''", "")
    after = match.string[match.end() : match.end() + 1]
    if match[1].lower() == "sub":
        return lowered_text(before[1], text, after)
    return raised(before[1], text, after, is_variable=text != content)


def lowered_text(base: str, text: str, after: str) -> str:
    """Return lowered text as written between two characters: `H2O`, but `10_2`, not 102."""
    if text[:1].isdigit() and after.isdigit():
        return f"_({text})"
    return f"_{text}" if text[:1].isdigit() and base.isdigit() else text


def raised(base: str, text: str, after: str = "", *, is_variable: bool = False) -> str:
    """Return raised text as written after its base: `10^−7`, `km²`, `10^n`, but `10th`, `Ca2+`.

    Args:
        base, after: characters before and behind.
        text: raised text without markup.
        is_variable: it is in italics, as variables are.
    """
    if _NUMBER.fullmatch(text):
        number = f"^({text})" if after.isdigit() else f"^{text}"
        return {"2": "²", "3": "³"}.get(text, number) if base.isalpha() else number
    if _CHARGE.fullmatch(text):
        return text if base.isalpha() else f"^{text}"
    is_word = base.isalpha() or _ORDINAL.fullmatch(text) is not None
    if not any(map(str.isalnum, text)) or (text.isalpha() and is_word and not is_variable):
        return text
    if text[0] in "[(" or HOLE_TEMPLATE in text or text.startswith(GAP):
        return text
    return f"^({text})" if re.search(r"[\s/^*·+−–-]", text[1:]) else f"^{text}"


# Words in several scripts, `-{zh-hans:软件; zh-hant:軟體}-`, by the rules of MediaWiki's
# LanguageConverter: flags, a bar, and the word of each variant.

_VARIANTS = re.compile(r"-\{([^{}]*)\}-")
_UNBRACKETED = re.compile(r"-\{([^{}\[\]]*)\}-")
_CODE = r"(?:zh|sr|sh|gan|wuu|kk|ku|iu|tg|uz|crh|shi|tly|ban|mni)(?:-[a-z]{2,10})*"
_RULE = re.compile(rf"\s*(?:[^;]*=>\s*)?{_CODE}\s*:", re.IGNORECASE)
_NEXT_RULE = re.compile(rf";\s*(?=(?:[^;]*=>\s*)?{_CODE}\s*:|[\s;]*\Z)", re.IGNORECASE)
_HIDDEN_FLAGS = frozenset("HT-")


def resolve_variants(text: str, *, before_links: bool = False) -> str:
    """Replace words in several scripts by that of the first; `before_links`, if without links."""
    return _repeated(_UNBRACKETED if before_links else _VARIANTS, _variant, text)


def _variant(match: re.Match[str]) -> str:
    flag_text, bar, words = match[1].partition("|")
    flags = {flag.strip().upper() for flag in flag_text.split(";")} if bar else set()
    words = words if bar else match[1]
    if flags & {"D", "N"}:  # a description of the rule, or the name of a variant
        return HOLE_TEMPLATE
    if flags & _HIDDEN_FLAGS:
        return ""
    first_rule = _RULE.match(words)
    if first_rule is None or "R" in flags:
        return words
    return _NEXT_RULE.split(words[first_rule.end() :], maxsplit=1)[0].strip()
