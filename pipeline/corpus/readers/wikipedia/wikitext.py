"""Wikitext to paragraphs of plain text.

A page is read in three passes, all of them linear in its length: elements with content of their own (references, tables in HTML,
formulas, galleries) go (pipeline/corpus/readers/wikipedia/elements.py); one scan over the brackets resolves templates, links and
tables from the inside out; then headings, lists and paragraphs are told apart by line, and put together by what belongs to what
(pipeline/corpus/readers/wikipedia/blocks.py). "We extract only the text passages and ignore lists, tables, and headers" (Devlin et
al. 2019, section 3.1): headings and tables go, and the lists that are no running text.

mwparserfromhell knows more of the grammar, but parses some 2 MB/s where this does more than 10, and gives broken markup
back as text: real dumps are full of it, and here none of it may stay.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from pipeline.corpus.document import HOLE_TEMPLATE
from pipeline.corpus.readers.slots import SLOT
from pipeline.corpus.readers.wikipedia import infobox, tables, templates
from pipeline.corpus.readers.wikipedia.apostrophes import without_quotes
from pipeline.corpus.readers.wikipedia.blocks import Blocks, Extracted, settle
from pipeline.corpus.readers.wikipedia.elements import BEFORE_SLOT, Formulas, drop_elements, power
from pipeline.corpus.readers.wikipedia.hidden import hide
from pipeline.corpus.readers.wikipedia.mediawiki_names import CATEGORY_ALIASES, FILE_ALIASES
from pipeline.corpus.readers.wikipedia.sections import Sections

_FILE_KEYS = (-2, 6, 14)  # media, files, categories: links into them show no text

_NAMESPACES = frozenset("user wikipedia mediawiki template help portal talk module draft special".split())


_NOWIKI = re.compile(r"<nowiki>(.*?)</nowiki>", re.DOTALL | re.IGNORECASE)
_PARAMETER = re.compile(r"\{\{\{[^{}]*\}\}\}")
_BRACKET = re.compile(r"\{[{|]|\}\}|\[\[|\]\]|\}(?<=\|\})(?!\})")  # of `|}` the second alone, for bars are many
# A link without brackets inside: the label behind its bar, or its target where that stands for itself, or all of it, to be looked at.
_SIMPLE_LINK = re.compile(r"\[\[(?:[^\[\]{}|:]*\|(?=\s*[^\s\[\]])([^\[\]{}]*)|(?=\S)([^\[\]{}|:#]+)(?<=\S)|([^\[\]{}]*))\]\]")
_TABLE_INDENT = 40  # characters of blanks and marks of lists before a table's bracket
_TABLE_LINE = re.compile(r"^[ \t]*[|!][^\n]*\n?|^[ \t]*\|?[\w -]+=[^\n]*\n", re.MULTILINE)
_LANGUAGE = re.compile(r"(?:[a-z]{2,3}|simple|zh-[a-z-]+|be-tarask|be-x-old|roa-[a-z]+|bat-smg|map-bms|fiu-vro|nds-nl)")
_INTERWIKI = frozenset("w wikt wiktionary s wikisource q wikiquote b commons c d m meta species voy".split())

_EXTERNAL = re.compile(r"\[(?:(?:https?|ftp|irc|news):)?//([^\]\n]{0,2000})\]|\[mailto:([^\]\n]{0,2000})\]")
_URL = re.compile(r"(?:https?|ftp)://[^\s<>\]|]*")
_POWER = re.compile(r"<sup>(?<=[\w)]<sup>)([−–+-]?\d{1,3})</sup>")
_BLOCK_TAG = re.compile(
    r"</?(?:p|div|blockquote|center|poem|ul|ol|li|dl|dd|dt|h[1-6]|hr|onlyinclude|noinclude)\b[^<>]*>", re.IGNORECASE
)
_BREAK = re.compile(r"<br\b[^<>]*>", re.IGNORECASE)
_TAG = re.compile(r"</?[a-zA-Z][a-zA-Z0-9:-]*(?:\s[^<>]*)?/?>")
_SWITCH = re.compile(r"__[^\W\d_]{3,}__")
_VARIANTS = re.compile(r"-\{([^{}]*)\}-")  # of a word in several scripts: -{zh-hans:软件; zh-hant:軟體}-
_HEADING = re.compile(r"(={1,6})\s*(.+?)\s*\1\s*")
_OPENS = {"}}": "{{", "]]": "[[", "}": "{|"}
_DEEPEST = 60  # brackets inside each other; MediaWiki itself stops at 40 templates
_LONGEST_HEADING = 300  # characters
_HAS_CODE = re.compile(r"<(?:code|tt|kbd|samp)")  # four times as quick as to look for one after the other
_CODE = re.compile(r"<(code|tt|kbd|samp)\b[^<>]*>(.*?)</\1\s*>", re.IGNORECASE | re.DOTALL)
_TAG_NAME = re.compile(r"</?([a-zA-Z][\w:-]*)[^<>]*>")
_HTML = frozenset(
    """
    abbr b bdi bdo big blockquote br caption center cite code data dd del dfn div dl dt em font h1 h2 h3 h4 h5 h6 hr i ins kbd li link mark
    meta nowiki ol p pre q rb rp rt rtc ruby s samp small span strike strong sub sup table td th time tr tt u ul var wbr
    """.split()
)  # what MediaWiki takes for a tag; others are text to a reader
_MARK = re.compile(r"[*#;:]+")
_TERM = re.compile(r"\s:\s")


@dataclass(slots=True)
class _Frame:
    """An open bracket: what opened it, and what has come since."""

    kind: str
    pieces: list[str] = field(default_factory=list)


class Markup:
    """The grammar of one wiki.

    Args:
        namespaces: the names of each namespace by key, in lower case, as `<siteinfo>` has them.
        dropped_sections: headings in lower case whose sections are no text.
        kept_sections: headings in lower case; where any are given, only their sections are text. "" is the text before the first.
        language: of the wiki (ISO 639).
        formulas: what becomes of those that do not read as they stand.
        kept_tables: what becomes of tables.
        infoboxes: whether their fields are wanted.
    """

    def __init__(
        self,
        namespaces: Mapping[int, Iterable[str]],
        dropped_sections: Iterable[str] = (),
        kept_sections: Iterable[str] = (),
        *,
        language: str = "en",
        formulas: Formulas = "drop",
        kept_tables: tables.Form = "drop",
        infoboxes: bool = False,
    ) -> None:
        files = {name for key in _FILE_KEYS for name in namespaces.get(key, ())}
        self._files = files | FILE_ALIASES | CATEGORY_ALIASES
        self._namespaces = {name for key, names in namespaces.items() if key != 0 for name in names if name}
        self._namespaces |= FILE_ALIASES | CATEGORY_ALIASES | _NAMESPACES
        self._dropped_sections = frozenset(dropped_sections)
        self._kept_sections = frozenset(kept_sections)
        self.language, self._formulas, self._tables, self._infoboxes = language, formulas, kept_tables, infoboxes

    def is_namespaced(self, title: str) -> bool:
        """Whether the title begins with the name of a namespace other than the articles'."""
        name, colon, _ = title.partition(":")
        return bool(colon) and name.strip().lower().removesuffix(" talk") in self._namespaces

    def extract(self, text: str) -> Extracted:
        """The text passages of a page."""
        text = _without_comments(text)
        closed, close, rest = text.rpartition("</nowiki>")
        if close:
            text = _NOWIKI.sub(lambda match: hide(match[1]), closed + close) + rest
        text = drop_elements(text, self._formulas)
        text = _PARAMETER.sub("", text) if "{{{" in text else text
        found = self._paragraphs(self._inline(text))
        if self._infoboxes:
            infobox.collect(text, self.shown, found)
        return found

    def shown(self, text: str) -> str:
        """What the page shows of a piece of it, without elements that are no text; templates, links and tables are what they say."""
        return "\n".join(map(without_quotes, self._inline(text).split("\n")))

    def _inline(self, text: str) -> str:
        """The same, with the apostrophes of bold and italics."""
        text = self._resolve(self._simple_links(text))
        text = _EXTERNAL.sub(lambda match: (match[1] or match[2] or "").partition(" ")[2], text)
        text = _BREAK.sub(" ", text)
        text = _URL.sub("", text) if "://" in text else text
        if "<" in text:
            if _HAS_CODE.search(text):
                text = _CODE.sub(lambda match: _TAG_NAME.sub(_unknown_tag, match[2]), text)
            text = _POWER.sub(_raised, text)
            text = _TAG.sub("", _BLOCK_TAG.sub("\n\n", text))
        if "-{" in text:
            text = _VARIANTS.sub(_variant, text)
        return _SWITCH.sub("", text)

    def _simple_links(self, text: str) -> str:
        pieces = _SIMPLE_LINK.split(text)
        if len(pieces) == 1:
            return text
        for place in range(3, len(pieces), 4):
            content = pieces[place]
            if content is not None:
                pieces[place] = self._link(content)
        return "".join(filter(None, pieces))

    def _resolve(self, text: str) -> str:
        """Templates, links and tables replaced by their text; brackets without a partner are dropped."""
        root = _Frame("")
        stack = [root]
        open_frames = dict.fromkeys(("{{", "[[", "{|"), 0)
        position = 0
        for match in _BRACKET.finditer(text):
            token, begin = match[0], match.start()
            if token == "}":
                begin -= 1
                if begin < position:  # the bar is that of `{|`
                    continue
            if (token == "{|" or token == "}") and not _begins_line(text, begin):
                continue
            if begin > position:
                stack[-1].pieces.append(text[position:begin])
            position = match.end()
            if token in open_frames:
                if len(stack) <= _DEEPEST:
                    stack.append(_Frame(token))
                    open_frames[token] += 1
                continue
            opening = _OPENS[token]
            if opening == "[[":  # a link does not reach out of the template or table around it
                if stack[-1].kind == "[[":
                    open_frames["[["] -= 1
                    _close(stack, self._link, "")
                continue
            if not open_frames[opening]:
                continue
            while stack[-1].kind != opening:
                open_frames[stack[-1].kind] -= 1
                _abandon(stack)
            open_frames[opening] -= 1
            _close(stack, self._template if opening == "{{" else self._table, text[position : position + 1])
        stack[-1].pieces.append(text[position:])
        while len(stack) > 1:
            _abandon(stack)
        return "".join(root.pieces)

    def _link(self, content: str) -> str:
        target, bar, label = content.partition("|")
        target = target.strip()
        shown = target.startswith(":")
        prefix, colon, rest = target.lstrip(":").partition(":")
        prefix = prefix.strip().lower()
        if colon and not shown and prefix in self._files:
            return ""
        if bar:
            if label.strip():
                return label
            return re.sub(r"\s*\(.*\)$|,.*$", "", rest if colon else target)  # the "pipe trick"
        if colon and prefix in _INTERWIKI:
            return rest.rpartition(":")[2]
        if colon and not shown and target[: len(prefix)].islower() and _LANGUAGE.fullmatch(prefix):
            return ""
        return target.lstrip(":").partition("#")[0] or target.lstrip("#")

    def _template(self, content: str) -> str:
        return templates.render(content, self.language)

    def _table(self, content: str) -> str:
        rows = tables.rows(content, self._tables) if self._tables != "drop" else []
        return "".join(f"\n{tables.MARK}{row}" for row in rows or [""]) + "\n"

    def _paragraphs(self, text: str) -> Extracted:
        found = Extracted()
        blocks = Blocks(found, self.language == "en")
        lines: list[str] = []  # of the paragraph that is open
        term = ""  # of a definition that has not come yet
        sections = Sections(self._dropped_sections, self._kept_sections)

        def flush() -> None:
            nonlocal term
            if lines:
                blocks.paragraph(" ".join(lines))
                lines.clear()
            if term:  # bold text that heads what follows
                found.dropped["heading"] += 1
                blocks.heading()
                term = ""

        for raw in text.split("\n"):
            if "''" in raw:
                raw = without_quotes(raw)
            line = settle(raw.strip()) if HOLE_TEMPLATE in raw else raw.strip()
            if not line:
                if raw:  # only templates, or what was one of them
                    flush()
                    blocks.dropped()
                elif lines:
                    flush()
                continue
            first = line[0]
            heading = _HEADING.fullmatch(line) if first == "=" and len(line) <= _LONGEST_HEADING else None
            if heading:
                flush()
                blocks.heading()
                found.dropped["heading"] += 1
                sections.heading(len(heading[1]), html.unescape(heading[2]))
            elif not sections.is_read:
                found.dropped["section"] += 1
            elif first in "*#;:":
                if lines:
                    flush()
                marks = _MARK.match(line)[0]  # type: ignore[index]
                item = line[len(marks) :].strip()
                if marks[-1] == ";":
                    flush()
                    term, _, definition = _TERM.split(item + " : ", maxsplit=1)[0], "", item
                    inline = _TERM.search(definition)
                    if inline:
                        blocks.item(f"{term}: {definition[inline.end() :]}", indented=False)
                        term = ""
                elif term:
                    blocks.item(f"{term.rstrip(': ')}: {item}" if marks[-1] == ":" else item, indented=False)
                    term = ""
                else:
                    blocks.item(item, indented=marks.strip(":") == "")
            elif first == tables.MARK:
                flush()
                if len(line) > 1:
                    blocks.kept(line[1:])
                else:
                    blocks.dropped()
            elif first in "|!" or line.startswith("----"):
                flush()
                blocks.dropped()
                found.dropped["table_row"] += 1
            else:
                lines.append(line)
        flush()
        return blocks.finish()


def _without_comments(text: str) -> str:
    """The text without what stands between `<!--` and `-->`, or the end of the page."""
    pieces: list[str] = []
    position = 0
    while (begin := text.find("<!--", position)) >= 0:
        pieces.append(text[position:begin])
        position = text.find("-->", begin + 4) + 3
        if position < 3:
            position = len(text)
    return "".join((*pieces, text[position:])) if pieces else text


def _begins_line(text: str, position: int) -> bool:
    """Whether nothing but blanks and marks of lists stands before `position` on its line."""
    begin = max(0, position - _TABLE_INDENT)
    line = text.rfind("\n", begin, position) + 1
    return (line > 0 or begin == 0) and not text[line:position].strip(" \t:*")


def _close(stack: list[_Frame], resolve: Callable[[str], str], following: str) -> None:
    """Resolve the innermost bracket; `following` is the character behind it."""
    found = resolve("".join(stack.pop().pieces))
    pieces = stack[-1].pieces
    before = pieces[-1][-1:] if pieces else ""
    if found != SLOT or not before or before in BEFORE_SLOT or (before.isalpha() and following.isalpha()):
        pieces.append(found)  # and behind a word nothing is left over


def _abandon(stack: list[_Frame]) -> None:
    """An opening bracket that never closes: keep what reads as text."""
    frame = stack.pop()
    content = "".join(frame.pieces)
    if frame.kind != "[[":
        content = "\n" + _TABLE_LINE.sub("", content.partition("\n")[2] if frame.kind == "{|" else content)
    else:
        content = content.rpartition("|")[2] if "\n" not in content else content
    stack[-1].pieces.append(content)


def _raised(match: re.Match[str]) -> str:
    return power(match.string[match.start() - 1], match[1])[1:]


def _unknown_tag(match: re.Match[str]) -> str:
    return match[0] if match[1].lower() in _HTML else hide(match[0])


def _variant(match: re.Match[str]) -> str:
    """The first script's word: readers of one wiki write in all of them."""
    content = match[1].partition("|")[2] if "|" in match[1] else match[1]
    return content.split(";")[0].rpartition(":")[2].strip()
