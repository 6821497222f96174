"""Infoboxes as fields: name and value.

Only arguments about the subject are kept: no pictures, captions, sizes, or layout switches. A value
is what the page would show. Values with a placeholder (an unknown template, a formula) are dropped
and counted. Fields of nested boxes are included.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from cloze.pipeline.corpus.document import PLACEHOLDER_PATTERN, InfoboxField
from cloze.pipeline.corpus.readers.encyclopedia.blocks import ExtractedPage, plain
from cloze.pipeline.corpus.readers.encyclopedia.elements import TABLE, unescape_literals
from cloze.pipeline.corpus.readers.encyclopedia.mediawiki_names import alternatives

REASON = "infobox_field"
"""Reason under which fields with a placeholder are counted."""

LINES = "; "
"""Separator between the lines of a value and between list items in it."""

_BEGIN = re.compile(r"\{\{[\s_]*([^{}|<>\[\]]{3,80}?)[\s_]*(?=[|}\n<])")
# `Infobox settlement`, `Ficha de …`, `Info/…`, `Карточка …`, `Miasto infobox`
_KINDS = re.compile(
    rf"(?:{alternatives('infobox names')})[\s_/:-]*(?P<kind>.*)"
    r"|info/(?P<info>.+)|ficha (?:de )?(?P<ficha>.+)|(?P<before>.+?)[\s_/-]+(?:infobox|bilgi "
    r"kutusu|정보)|(?P<whole>(?:automatic )?taxobox|(?:sub|infra|hybrid)?speciesbox|chembox|"
    r"drugbox|virusbox)",
    re.IGNORECASE,
)
_TOKEN = re.compile(r"\{\{|\}\}|\[\[|\]\]|\|")
_NAME = re.compile(r"[^\n=<>\[\]{}]{1,60}")
_LAYOUT = re.compile(alternatives("infobox layout"), re.IGNORECASE)
_SETTING = re.compile(rf"(?i:{alternatives('infobox settings')})|y|n")  # but `N` is the north
_LINE_BREAK = re.compile(r"<br\b[^<>]*>|</?(?:li|div|p|ul|ol)\b[^<>]*>", re.IGNORECASE)
_LINE = re.compile(rf"\n\s*\n|\n(?=[ \t]*[*#:;{TABLE}])")
_ITEM = re.compile(r"^(?!#[0-9a-fA-F]{3,8}$)[*#:;]+\s*")  # but not a colour
_MARKED = re.compile(r"^[•·]\s*")
_SIGNED = re.compile(r"[-–]\d")
_HAS_CONTENT = re.compile(rf"\w|{PLACEHOLDER_PATTERN.pattern}")
_OPENS, _CONTINUES = ("(", "[", ",", ";"), ("(", "[", ",", ";", ":")
_DEEPEST = 3  # maximum nesting of boxes
_MOST_UNCLOSED = 8  # boxes without an end; each scans the rest of the page


def collect(text: str, inline: Callable[[str], str], page: ExtractedPage) -> None:
    """Add the fields of a page's infoboxes to `page`.

    Args:
        text: the page without comments, references and other non-text elements.
        inline: function from wikitext to the text that the page shows.
    """
    for box, name, value in _arguments(text, 0):
        add_field(box, name, _lines(inline(_LINE_BREAK.sub("\n\n", value))), page)


def add_field(box: str, name: str, lines: list[str], page: ExtractedPage) -> None:
    """Add a field of a box of a type, which may be empty, if it is about the subject."""
    name = " ".join(plain(name.replace("_", " ")).split()).strip(" :•·")
    value = ""
    for line in filter(_HAS_CONTENT.search, lines):
        if value:
            value += " " if line.startswith(_OPENS) or value.endswith(_CONTINUES) else LINES
        value += line
    if not name or not value or _LAYOUT.fullmatch(name) or _SETTING.fullmatch(value):
        return
    if PLACEHOLDER_PATTERN.search(value):
        page.omit(REASON, f"{name}: {value}")
    else:
        page.infobox.append(InfoboxField(box, name, value))


def kind_of(template: str) -> str | None:
    """Return the infobox type of a template name; None if it is not an infobox."""
    match = _KINDS.fullmatch(" ".join(template.replace("_", " ").split()))
    if match is None:
        return None
    return next(filter(None, match.groups()), "").strip().lower()


def _arguments(text: str, depth: int) -> Iterator[tuple[str, str, str]]:
    """Yield (box type, name, wikitext value) of the named arguments of all infoboxes, in order."""
    position = unclosed = 0
    while unclosed < _MOST_UNCLOSED and (match := _BEGIN.search(text, position)):
        position = match.end()
        kind = kind_of(match[1])
        if kind is None:
            continue
        arguments, end = _split(text, match.end())
        if not end:
            unclosed += 1
            continue
        position = end
        for argument in arguments:
            name, equals, value = argument.partition("=")
            if not equals or not _NAME.fullmatch(name.strip()):
                continue
            nested_kinds = (kind_of(nested[1]) for nested in _BEGIN.finditer(value))
            if depth < _DEEPEST and any(nested is not None for nested in nested_kinds):
                yield from _arguments(value, depth + 1)
            elif value.strip():
                yield kind, name.strip(), value


def _split(text: str, begin: int) -> tuple[list[str], int]:
    """Return the arguments of a template whose name ends at `begin`, and its end; 0: no end."""
    arguments: list[str] = []
    # `template_depth` is the number of templates in `open_brackets`.
    start, template_depth, open_brackets = -1, 0, list[str]()
    for match in _TOKEN.finditer(text, begin):
        token = match[0]
        if token in ("{{", "[["):
            open_brackets.append(token)
            template_depth += token == "{{"
        elif token == "|":
            if not open_brackets:
                if start >= 0:
                    arguments.append(text[start : match.start()])
                start = match.end()
        elif token == "]]":
            if open_brackets[-1:] == ["[["]:
                open_brackets.pop()
        elif template_depth:
            template_depth -= 1
            while open_brackets.pop() != "{{":  # or a link without an end
                pass
        else:
            return (
                [*arguments, text[start : match.start()]] if start >= 0 else arguments
            ), match.end()
    return [], 0


def _lines(text: str) -> list[str]:
    """Return the lines of a value, without tables."""
    lines = (" ".join(line.split()) for line in _LINE.split(text))
    return [line_of(_ITEM.sub("", line)) for line in lines if line[:1] not in ("", TABLE)]


def line_of(text: str) -> str:
    """Return a line of a value as shown; keeps the sign of a leading number, unlike `plain`."""
    text = _MARKED.sub("", text)
    unescaped = unescape_literals(text)
    return (unescaped[0] if _SIGNED.match(unescaped) else "") + plain(text)
