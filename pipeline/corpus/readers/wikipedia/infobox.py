"""Infoboxes: what stands beside an article's text as names and values, such as a town's population or a writer's birth date.

Of a template's arguments those are taken that say something of the subject: neither pictures, their captions and sizes, nor switches of the
layout. A value is what the text would say in its place; one with a hole in it (an unknown template, a formula) is dropped and counted.
A box in a box gives its fields where it stands.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from pipeline.corpus.document import A_HOLE, Field
from pipeline.corpus.readers.wikipedia.blocks import Extracted, plain
from pipeline.corpus.readers.wikipedia.hidden import show
from pipeline.corpus.readers.wikipedia.tables import MARK

REASON = "infobox_field"
"""Under which fields with a hole in them are counted."""

LINES = "; "
"""Stands between the lines of a value and the items of a list in it."""

_BEGIN = re.compile(r"\{\{[\s_]*([^{}|<>\[\]]{3,80}?)[\s_]*(?=[|}\n<])")
# What the wikis call such templates: `Infobox settlement`, `Ficha de …`, `Info/…`, `Карточка …`, `Miasto infobox`.
_KINDS = re.compile(
    r"(?:infobo(?:x|ks)|geobox|infocaixa|infotaula|infokutija|faktamall|карточка|картка|基礎情報|صندوق معلومات|جعبه اطلاعات)[\s_/:-]*(?P<kind>.*)"
    r"|info/(?P<info>.+)|ficha (?:de )?(?P<ficha>.+)|(?P<before>.+?)[\s_/-]+(?:infobox|bilgi kutusu|정보)"
    r"|(?P<whole>(?:automatic )?taxobox|(?:sub|infra|hybrid)?speciesbox|chembox|drugbox|virusbox)",
    re.IGNORECASE,
)
_TOKEN = re.compile(r"\{\{|\}\}|\[\[|\]\]|\|")
_NAME = re.compile(r"[^\n=<>\[\]{}]{1,60}")
# Names of arguments that lay out the box: words of the name, its end, or all of it.
_LAYOUT = re.compile(
    r"(?:.*[ -])?(?:images?|img|pictures?|photos?|pic|captions?|alt|maps?|imagesize|mapsize|pushpin|legend|colou?r[12]?|bgcolou?r|fgcolou?r|style|"
    r"class|align|label position|footnotes?|refs?|references?|embed|child|module|nocat|autocat|collapsed?|demo|bodystyle)(?:[ -].*)?|"
    r".*(?:colou?r|caption)\d?|(?:.* )?(?:image|map|img|flag|seal|logo|coat|sign|signature|cover)[ -]?(?:size|width|height|upright|type|link)|"
    r"legenda|bild|bildgröße|imagem|imagen|изображение|подпись|ширина|légende|taille image",
    re.IGNORECASE,
)
# Values that lay out the box: files, sizes, colours, switches (but `N` is the north).
_SETTING = re.compile(
    r"(?i:[^\n]*\.(?:jpe?g|png|svg|gif|tiff?|webp|xcf|djvu|pdf|og[gva]|webm|mid|wav|flac)|(?:\d+ ?x? ?)?\d* ?px|#[0-9a-f]{3,8}|"
    r"yes|no|on|off|true|false|auto|default|inline|title|none|left|right|center|collapsed|oui|non|sí|sim|ja|nein|да|нет)|y|n"
)
_BREAK = re.compile(r"<br\b[^<>]*>|</?(?:li|div|p|ul|ol)\b[^<>]*>", re.IGNORECASE)
_LINE = re.compile(rf"\n\s*\n|\n(?=[ \t]*[*#:;{MARK}])")
_ITEM = re.compile(r"^(?!#[0-9a-fA-F]{3,8}$)[*#:;]+\s*")  # and not a colour
_MARKED = re.compile(r"^[•·]\s*")
_SIGNED = re.compile(r"[-–]\d")
_SAYS = re.compile(rf"\w|{A_HOLE.pattern}")
_OPENS, _GOES_ON = ("(", "[", ",", ";"), ("(", "[", ",", ";", ":")
_DEEPEST = 3  # boxes inside each other


def collect(text: str, inline: Callable[[str], str], found: Extracted) -> None:
    """Add the fields of a page's infoboxes to what was found in it.

    Args:
        text: of the page, without comments, references and other elements that are no text.
        inline: what the page shows of a piece of wikitext.
    """
    for box, name, value in _arguments(text, 0):
        add(box, name, _lines(inline(_BREAK.sub("\n\n", value))), found)


def add(box: str, name: str, lines: list[str], found: Extracted) -> None:
    """Add a field, if it says something of the subject.

    Args:
        box: its kind; may be empty.
        name: as the source has it.
        lines: of the value.
    """
    name = " ".join(plain(name.replace("_", " ")).split()).strip(" :•·")
    value = ""
    for line in filter(_SAYS.search, lines):
        value += ("" if not value else " " if line.startswith(_OPENS) or value.endswith(_GOES_ON) else LINES) + line
    if not name or not value or _LAYOUT.fullmatch(name) or _SETTING.fullmatch(value):
        return
    if A_HOLE.search(value):
        found.dropped[REASON] += 1
    else:
        found.infobox.append(Field(box, name, value))


def kind_of(template: str) -> str | None:
    """The kind of infobox that a template of this name is; None if it is none."""
    found = _KINDS.fullmatch(" ".join(template.replace("_", " ").split()))
    if found is None:
        return None
    return next((kind for kind in found.groups() if kind), "").strip().lower()


def _arguments(text: str, depth: int) -> Iterator[tuple[str, str, str]]:
    """(kind of the box, name, value as wikitext) of the named arguments of all infoboxes, in order."""
    position = 0
    while match := _BEGIN.search(text, position):
        position = match.end()
        kind = kind_of(match[1])
        if kind is None:
            continue
        parts, end = _split(text, match.end())
        if not end:
            continue
        position = end
        for part in parts:
            name, equals, value = part.partition("=")
            if not equals or not _NAME.fullmatch(name.strip()):
                continue
            if depth < _DEEPEST and any(kind_of(inner[1]) is not None for inner in _BEGIN.finditer(value)):
                yield from _arguments(value, depth + 1)
            elif value.strip():
                yield kind, name.strip(), value


def _split(text: str, begin: int) -> tuple[list[str], int]:
    """What stands between the bars of a template whose name ends at `begin`, and where it ends; 0: nowhere."""
    parts: list[str] = []
    start, opened = -1, list[str]()
    for match in _TOKEN.finditer(text, begin):
        token = match[0]
        if token in ("{{", "[["):
            opened.append(token)
        elif token == "|":
            if not opened:
                if start >= 0:
                    parts.append(text[start : match.start()])
                start = match.end()
        elif token == "]]":
            if opened[-1:] == ["[["]:
                opened.pop()
        elif "{{" in opened:
            while opened.pop() != "{{":  # or a link that was never closed
                pass
        else:
            return ([*parts, text[start : match.start()]] if start >= 0 else parts), match.end()
    return [], 0


def _lines(text: str) -> list[str]:
    """The lines of a value, without the tables in it."""
    lines = (" ".join(line.split()) for line in _LINE.split(text))
    return [line_of(_ITEM.sub("", line)) for line in lines if line[:1] not in ("", MARK)]


def line_of(text: str) -> str:
    """A line of a value as it reads; a paragraph would lose the sign of a number that it begins with."""
    text = _MARKED.sub("", text)
    shown = show(text)
    return (shown[0] if _SIGNED.match(shown) else "") + plain(text)
