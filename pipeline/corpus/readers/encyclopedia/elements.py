"""Gaps left by removed markup, literals, quotes, and elements without running text.

A private-use character marks each gap, so that only text around gaps is repaired. For example,
`({{IPA|x}}; born 1935)` has a gap and becomes `(born 1935)`. `(or, more precisely, a hill)` has
none and is not changed.
"""

from __future__ import annotations

import functools
import re
from typing import Literal

from cloze.core.words import UNSPACED_LETTER, is_mark
from cloze.pipeline.corpus.document import HOLE_TEMPLATE, HOLES, PLACEHOLDER
from cloze.pipeline.corpus.readers.encyclopedia.mediawiki_names import alternatives, read_names

GAP = "\ue0fc"
"""Marks a removal that no sentence needs: a reference, a note, a flag."""

PHONES = "\ue0fb"
"""Marks a removed pronunciation: dispensable unless the sentence is about it."""

TABLE = "\ue0fa"
"""Stands on a line of its own for a dropped table."""

_REMOVED = f"{GAP}{PHONES}{''.join(HOLES)}"
_ANY = re.compile(f"[{_REMOVED}]")
_RUN = re.compile(rf"{GAP}(?:\s*{GAP})+")
_BRACKET = re.compile(r"([(\[])([^()\[\]]*)([)\]])")
_SEPARATOR = re.compile(r"([;,])")
# A part of a bracket that had only removed text, with words that lead to it or count it.
_EMPTY_PART = re.compile(rf"\W*(?:(?:{alternatives('words before gaps')})\b\W*)*", re.IGNORECASE)
_JOINS = re.compile(rf"\s*(?:{GAP}\s*)+(?:(?:or|and)\s+)?")  # at the beginning of a bracket
_QUOTED = re.compile(
    rf"[\"“«‘](?<![^\s(\[;,{GAP}].)"
    rf"(?:(?<=\")\s*{GAP}\s*\"|(?<=“)\s*{GAP}\s*”|(?<=«)\s*{GAP}\s*»|(?<=‘)\s*{GAP}\s*’)(?!\w)"
)
_PRONOUNCED = re.compile(
    rf"\b(?:{alternatives('words before pronunciations')})((?:\s|:|,)*[\"“/]?){PHONES}",
    re.IGNORECASE,
)
_BETWEEN = re.compile(rf"([,;:])\s*(?:{GAP}\s*)+([,;:.!?])")
_MARK_BEHIND = re.compile(rf"{GAP}[{GAP}\s]*[,;:.!?)\]]")
_BEFORE = re.compile(rf"\s*(?:{GAP}\s*)+(?=[,;:.!?)\]](?:[\s)\]\"”’»]|$))")
_ALONE = re.compile(rf"{GAP}+(\s*)")
# Begins with characters rarer than a blank.
_PADDING = re.compile(r"[,;:.!?()\[\]](?:(?<= [,;:.!?)\]])|(?<=[(\[]) )")
_PADDED = re.compile(r"([(\[])\s+|\s+([)\]])|\s+([,;:.!?])(?=[\s)\]\"”’]|$)")
_ROUNDS = 4


def close_gaps(text: str) -> str:
    """Close the gaps, and remove brackets that contain only gaps and placeholders.

    Other placeholders stay. Blanks inside brackets and before punctuation are removed everywhere.
    """
    if not text.isascii() and _ANY.search(text):
        text = _closed(text)
    return without_padding(text)


def without_padding(text: str) -> str:
    """Remove blanks inside brackets and before punctuation."""
    return _PADDED.sub(r"\1\2\3", text) if _PADDING.search(text) else text


def _closed(text: str) -> str:
    if "(" in text or "[" in text:
        for _ in range(_ROUNDS):  # nested brackets
            previous = text
            text = _BRACKET.sub(_bracket, text)
            if text == previous:
                break
    if PHONES in text:
        text = _PRONOUNCED.sub(lambda match: match[0][:-1] + HOLE_TEMPLATE, text)
        text = text.replace(PHONES, GAP)
    if GAP not in text:
        return text
    # Else the patterns below would rescan a long run from each gap.
    text = _RUN.sub(lambda match: f"{GAP} " if match[0].strip(GAP) else GAP, text)
    if '"' in text or "“" in text or "«" in text or "‘" in text:
        text = _QUOTED.sub(GAP, text)
    text = _BETWEEN.sub(lambda match: match[2] if match[2] in ".!?" else match[1], text)
    return _spaced(_BEFORE.sub("", text) if _MARK_BEHIND.search(text) else text)


def _bracket(match: re.Match[str]) -> str:
    if not _ANY.search(match[2]):
        return match[0]
    content = _JOINS.sub(GAP, match[2], count=1) if match[2].lstrip().startswith(GAP) else match[2]
    pieces = _SEPARATOR.split(content)
    segments = [
        (separator, segment)
        for separator, segment in zip(["", *pieces[1::2]], pieces[::2], strict=True)
        if segment.strip() and not (_ANY.search(segment) and _EMPTY_PART.fullmatch(segment))
    ]
    if not segments:
        return GAP
    first_separator, first_segment = segments[0]
    text = first_segment + "".join(separator + segment for separator, segment in segments[1:])
    if first_separator:  # the first part of the bracket is removed
        text = re.sub(r"^\s*(?:or|and)\s+", "", text)
    return f"{match[1]}{_spaced(text).replace(PHONES, '').strip()}{match[3]}"


def _spaced(text: str) -> str:
    """Remove the gaps, with a blank where one was next to a gap or words would touch."""
    pieces: list[str] = []
    position = 0
    for match in _ALONE.finditer(text):
        begin, end = match.span()
        preceding = text[position:begin]
        stripped = preceding.rstrip()
        words_touch = touch(text[begin - 1 : begin], text[end : end + 1])
        has_blank = match[1] or len(stripped) < len(preceding) or words_touch
        pieces += (stripped, " " if has_blank else "")
        position = end
    return "".join((*pieces, text[position:]))


def ends_word(character: str) -> bool:
    """Return True for a letter, or a vowel sign or accent, which `isalpha` does not count."""
    return character.isalpha() or (character != "" and is_mark(character))


def touch(left: str, right: str) -> bool:
    """Return True if two characters would read as one word or number."""
    if left.isdigit() or right.isdigit():
        return left.isdigit() and right.isdigit()
    return ends_word(left) and right.isalpha() and not UNSPACED_LETTER.match(left)


# Literal text, such as that of `<nowiki>`: its characters move to the private-use area until the
# end.

_CHARACTERS = "[]{}|'=*#:;!<>_~&$-/"
_HIDE = {ord(character): 0xE100 + ord(character) for character in _CHARACTERS}
_SHOW = {hidden: plain for plain, hidden in _HIDE.items()}
_HIDDEN = re.compile("[\ue100-\ue1ff]")
_NOWIKI = re.compile(r"</?NOWIKI")


def escape_literals(text: str) -> str:
    """Replace the characters that could be markup."""
    return text.translate(_HIDE)


def escape_nowiki(text: str) -> str:
    """Escape what stands in `<nowiki>`; one without an end stays."""
    if "<NOWIKI" in text:
        text = _NOWIKI.sub(lambda match: match[0].lower(), text)
    first, *others = text.split("<nowiki")
    pieces = [first]
    for other in others:
        blank, _, content = other.partition(">")
        inside, closing, after = content.partition("</nowiki")
        if blank.strip() or not closing:
            pieces += ("<nowiki", other)
        else:
            pieces += (escape_literals(inside), after.partition(">")[2])
    return "".join(pieces)


def unescape_literals(text: str) -> str:
    """Restore the characters that `escape_literals` replaced."""
    return text.translate(_SHOW) if not text.isascii() and _HIDDEN.search(text) else text


# Apostrophes of italics and bold, removed by MediaWiki's rules.

_QUOTES = re.compile("('''*)")  # not `'{2,}`: a search is faster for a prefix of two characters


def without_quotes(line: str) -> str:
    """Remove the marks of italics and bold, but keep apostrophes."""
    if "''" not in line:
        return line
    pieces = _QUOTES.split(line)
    marks = pieces[1::2]
    if (
        sum(len(mark) != 2 for mark in marks) % 2
        and sum(len(mark) in (2, 5) or len(mark) > 5 for mark in marks) % 2
    ):
        index = _meant_as_apostrophe(pieces)
        if index is not None:
            pieces[index] += "'"
    # one of four is an apostrophe; all but five of more than five
    pieces[1::2] = ["'" * max(0, len(mark) - (3 if len(mark) == 4 else 5)) for mark in marks]
    return "".join(pieces)


def _meant_as_apostrophe(pieces: list[str]) -> int | None:
    """Return the index of the text before the bold mark that contains an apostrophe.

    After a single letter, else after a word, else after a blank.
    """
    word_index: int | None = None
    blank_index: int | None = None
    for index in range(0, len(pieces) - 1, 2):
        if len(pieces[index + 1]) not in (3, 4):
            continue
        preceding = pieces[index]
        if preceding[-1:] == " ":
            blank_index = index if blank_index is None else blank_index
        elif preceding and preceding[-2:-1] in (" ", ""):
            return index
        elif word_index is None:
            word_index = index
    return blank_index if word_index is None else word_index


# Elements whose content is not running text: references, galleries, programs, formulas.

Formulas = Literal["drop", "latex"]

_NAMES = read_names("dropped elements")
# A reference with only text, as nearly all are, matches as a whole; of other elements only the
# opening tag.
_TAG = re.compile(r"<(?:ref\b[^<>]*>(?:(?<=/>)|[^<]*</ref>)|([a-zA-Z]+)\b[^<>]*>)")
_SIMPLE_FORMULA = re.compile(r"(?:[^\W_]|[\s+\-−=<>.,()/*']){1,24}")
_FORMULAS = frozenset({"math", "chem", "ce"})
# Elements whose content is shown: the sentence around them lacks words without it.
_SHOWN = frozenset({"score", "syntaxhighlight", "source", "hiero", "pre"})
BEFORE_GAP = " \n\t([{"
"""A removal leaves a gap only after one of these characters."""


def drop_elements(text: str, formulas: Formulas = "drop") -> str:
    """Remove elements whose content is not running text.

    Short formulas are kept as text; other formulas leave a placeholder.

    Args:
        formulas: `latex` to keep other formulas as `$…$`, else `drop`.
    """
    pieces: list[str] = []
    position = end = 0
    unclosed: set[str] = set()  # names without remaining closing tags
    while match := _TAG.search(text, end):
        begin, end = match.span()
        tag = match[1]
        if tag is None:
            if "ref" not in unclosed:
                replacement = left_over(text[begin - 1 : begin], text[end : end + 1])
                pieces += (text[position:begin], replacement)
                position = end
            continue
        name = tag.lower()
        if name in unclosed or name not in _NAMES:
            continue
        content = ""
        if text[end - 2] != "/":
            closing_tag = _closing(name).search(text, end)
            if closing_tag is None:
                unclosed.add(name)
                continue
            content = text[end : closing_tag.start()]
            end = text.find(">", closing_tag.end()) + 1 or len(text)
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


@functools.cache
def _closing(name: str) -> re.Pattern[str]:
    """Return the pattern of the closing tag of a name; a search is faster than with IGNORECASE."""
    return re.compile("</" + "".join(f"[{letter}{letter.upper()}]" for letter in name))


def left_over(before: str, after: str) -> str:
    """Return what replaces text removed between two characters, or ends: gap, blank or nothing."""
    if before and (before in BEFORE_GAP or before == after == "'"):
        return GAP
    if after.isupper() and before and before in '.!?"':
        return " "  # only a reference separated two sentences
    return ""


def formula(content: str, formulas: Formulas) -> str:
    """Return a TeX formula as text if simple; else TeX if `formulas` allows, or a placeholder."""
    if _SIMPLE_FORMULA.fullmatch(content):
        return content
    return escape_literals(f"${' '.join(content.split())}$") if formulas == "latex" else PLACEHOLDER


# Program code.

_HAS_CODE = re.compile(r"<(?:code|tt|kbd|samp)")  # four times as fast as separate searches
_CODE = re.compile(r"<(/?)(code|tt|kbd|samp)\b[^<>]*>", re.IGNORECASE | re.ASCII)
_CODE_TAG = re.compile(r"</?([a-zA-Z][\w:-]*)[^<>]*>")
_HTML_TAGS = read_names("html tags")


def without_code_tags(text: str) -> str:
    """Remove tags of program code; inside them, tags unknown to HTML are text."""
    if not _HAS_CODE.search(text):
        return text
    pieces: list[str] = []
    position = 0
    opening: re.Match[str] | None = None
    # last closing tag of each name
    last_closing = {match[2].lower(): match.start() for match in _CODE.finditer(text) if match[1]}
    for match in _CODE.finditer(text):
        if opening is None:
            if not match[1] and last_closing.get(match[2].lower(), -1) > match.start():
                opening = match
        elif match[1] and match[2].lower() == opening[2].lower():
            code = _CODE_TAG.sub(_unknown_tag, text[opening.end() : match.start()])
            pieces += (text[position : opening.start()], code)
            opening, position = None, match.end()
    return "".join((*pieces, text[position:]))


def _unknown_tag(match: re.Match[str]) -> str:
    return match[0] if match[1].lower() in _HTML_TAGS else escape_literals(match[0])
