"""Infoboxes: names and values next to an article's text, such as a town's population.

Only arguments about the subject are kept: no pictures, captions, sizes, or layout switches. A value
is what the page would show. Values with a placeholder (an unknown template, a formula) are dropped
and counted. Fields of nested boxes are included.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from cloze.pipeline.corpus.document import A_HOLE, InfoboxField
from cloze.pipeline.corpus.readers.encyclopedia.blocks import ExtractedPage, plain
from cloze.pipeline.corpus.readers.encyclopedia.elements import unescape_literals
from cloze.pipeline.corpus.readers.encyclopedia.tables import MARK

REASON = "infobox_field"
"""Reason under which fields with a placeholder are counted."""

LINES = "; "
"""Separator between the lines of a value and between list items in it."""

_BEGIN = re.compile(r"\{\{[\s_]*([^{}|<>\[\]]{3,80}?)[\s_]*(?=[|}\n<])")
# Names of such templates: `Infobox settlement`, `Ficha de …`, `Info/…`, `Карточка …`, `Miasto
# infobox`.
_KINDS = re.compile(
    r"(?:infobo(?:x|ks)|geobox|infocaixa|infotaula|infokutija|faktamall|карточка|картка|基礎情報|صندوق "
    r"معلومات|جعبه اطلاعات)[\s_/:-]*(?P<kind>.*)"
    r"|info/(?P<info>.+)|ficha (?:de )?(?P<ficha>.+)|(?P<before>.+?)[\s_/-]+(?:infobox|bilgi "
    r"kutusu|정보)"
    r"|(?P<whole>(?:automatic )?taxobox|(?:sub|infra|hybrid)?speciesbox|chembox|drugbox|virusbox)",
    re.IGNORECASE,
)
_TOKEN = re.compile(r"\{\{|\}\}|\[\[|\]\]|\|")
_NAME = re.compile(r"[^\n=<>\[\]{}]{1,60}")
# Names of layout arguments: words of the name, its end, or all of it.
_LAYOUT = re.compile(
    r"(?:.*[ -])?(?:images?|img|pictures?|photos?|pic|captions?|alt|maps?|imagesize|mapsize|"
    r"pushpin|legend|colou?r[12]?|bgcolou?r|fgcolou?r|style|"
    r"class|align|label position|footnotes?|refs?|references?|embed|child|module|nocat|autocat|"
    r"collapsed?|demo|bodystyle)(?:[ -].*)?|"
    r".*(?:colou?r|caption)\d?|(?:.* )?(?:image|map|img|flag|seal|logo|coat|sign|signature|cover)[ "
    r"-]?(?:size|width|height|upright|type|link)|"
    r"legenda|bild|bildgröße|imagem|imagen|изображение|подпись|ширина|légende|taille image",
    re.IGNORECASE,
)
# Layout values: files, sizes, colours, switches (but `N` is the north).
_SETTING = re.compile(
    r"(?i:[^\n]*\.(?:jpe?g|png|svg|gif|tiff?|webp|xcf|djvu|pdf|og[gva]|webm|mid|wav|flac)|(?:\d+ "
    r"?x? ?)?\d* ?px|#[0-9a-f]{3,8}|"
    r"yes|no|on|off|true|false|auto|default|inline|title|none|left|right|center|collapsed|oui|non|"
    r"sí|sim|ja|nein|да|нет)|y|n"
)
_BREAK = re.compile(r"<br\b[^<>]*>|</?(?:li|div|p|ul|ol)\b[^<>]*>", re.IGNORECASE)
_LINE = re.compile(rf"\n\s*\n|\n(?=[ \t]*[*#:;{MARK}])")
_ITEM = re.compile(r"^(?!#[0-9a-fA-F]{3,8}$)[*#:;]+\s*")  # but not a colour
_MARKED = re.compile(r"^[•·]\s*")
_SIGNED = re.compile(r"[-–]\d")
_SAYS = re.compile(rf"\w|{A_HOLE.pattern}")
_OPENS, _GOES_ON = ("(", "[", ",", ";"), ("(", "[", ",", ";", ":")
_DEEPEST = 3  # maximum nesting of boxes
_MOST_UNCLOSED = 8  # boxes without an end; each scans the rest of the page


def collect(text: str, inline: Callable[[str], str], found: ExtractedPage) -> None:
    """Add the fields of a page's infoboxes to `found`.

    Args:
        text: the page without comments, references and other non-text elements.
        inline: returns what the page shows for a piece of wikitext.
        found: result of the page.
    """
    for box, name, value in _arguments(text, 0):
        add(box, name, _lines(inline(_BREAK.sub("\n\n", value))), found)


def add(box: str, name: str, lines: list[str], found: ExtractedPage) -> None:
    """Add a field, if it is about the subject.

    Args:
        box: type of the box; may be empty.
        name: name in the source.
        lines: lines of the value.
        found: result of the page.
    """
    name = " ".join(plain(name.replace("_", " ")).split()).strip(" :•·")
    value = ""
    for line in filter(_SAYS.search, lines):
        value += (
            ""
            if not value
            else " "
            if line.startswith(_OPENS) or value.endswith(_GOES_ON)
            else LINES
        ) + line
    if not name or not value or _LAYOUT.fullmatch(name) or _SETTING.fullmatch(value):
        return
    if A_HOLE.search(value):
        found.dropped[REASON] += 1
    else:
        found.infobox.append(InfoboxField(box, name, value))


def kind_of(template: str) -> str | None:
    """Return the infobox type of a template name; None if it is not an infobox."""
    found = _KINDS.fullmatch(" ".join(template.replace("_", " ").split()))
    if found is None:
        return None
    return next((kind for kind in found.groups() if kind), "").strip().lower()


def _arguments(text: str, depth: int) -> Iterator[tuple[str, str, str]]:
    """Yield (box type, name, wikitext value) of the named arguments of all infoboxes, in order."""
    position = unclosed = 0
    while unclosed < _MOST_UNCLOSED and (match := _BEGIN.search(text, position)):
        position = match.end()
        kind = kind_of(match[1])
        if kind is None:
            continue
        parts, end = _split(text, match.end())
        if not end:
            unclosed += 1
            continue
        position = end
        for part in parts:
            name, equals, value = part.partition("=")
            if not equals or not _NAME.fullmatch(name.strip()):
                continue
            if depth < _DEEPEST and any(
                kind_of(inner[1]) is not None for inner in _BEGIN.finditer(value)
            ):
                yield from _arguments(value, depth + 1)
            elif value.strip():
                yield kind, name.strip(), value


def _split(text: str, begin: int) -> tuple[list[str], int]:
    """Return the arguments of a template whose name ends at `begin`, and its end; 0: no end."""
    parts: list[str] = []
    start, templates, opened = -1, 0, list[str]()  # `templates` counts the templates in `opened`
    for match in _TOKEN.finditer(text, begin):
        token = match[0]
        if token in ("{{", "[["):
            opened.append(token)
            templates += token == "{{"
        elif token == "|":
            if not opened:
                if start >= 0:
                    parts.append(text[start : match.start()])
                start = match.end()
        elif token == "]]":
            if opened[-1:] == ["[["]:
                opened.pop()
        elif templates:
            templates -= 1
            while opened.pop() != "{{":  # or a link without an end
                pass
        else:
            return ([*parts, text[start : match.start()]] if start >= 0 else parts), match.end()
    return [], 0


def _lines(text: str) -> list[str]:
    """Return the lines of a value, without tables."""
    lines = (" ".join(line.split()) for line in _LINE.split(text))
    return [line_of(_ITEM.sub("", line)) for line in lines if line[:1] not in ("", MARK)]


def line_of(text: str) -> str:
    """Return a line of a value as shown; keeps the sign of a leading number, unlike `plain`."""
    text = _MARKED.sub("", text)
    shown = unescape_literals(text)
    return (shown[0] if _SIGNED.match(shown) else "") + plain(text)
