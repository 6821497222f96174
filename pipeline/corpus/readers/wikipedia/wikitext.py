"""Wikitext to paragraphs of plain text.

A page is read in three passes, all of them linear in its length: elements with content of their own (references,
tables in HTML, formulas, galleries) go; one scan over the brackets resolves templates, links and tables from the
inside out; then headings, lists and paragraphs are told apart by line. "We extract only the text passages and
ignore lists, tables, and headers" (Devlin et al. 2019, section 3.1): headings go, and of the lists all but the
items that are sentences.

mwparserfromhell knows more of the grammar, but parses some 2 MB/s where this does more than 10, and gives broken markup
back as text: real dumps are full of it, and here none of it may stay.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from pipeline.corpus.document import HOLE
from pipeline.corpus.readers.prose import mend, reads_as_prose
from pipeline.corpus.readers.wikipedia import templates
from pipeline.corpus.readers.wikipedia.mediawiki_names import CATEGORY_ALIASES, FILE_ALIASES

_FILE_KEYS = (-2, 6, 14)  # media, files, categories: links into them show no text

_NAMESPACES = frozenset("user wikipedia mediawiki template help portal talk module draft special".split())

# <nowiki> text must not be read as markup: its characters move to the private-use area and come back at the end.
_MARKUP_CHARACTERS = "[]{}|'=*#:;!<>_~&"
_HIDE = {ord(character): 0xE100 + ord(character) for character in _MARKUP_CHARACTERS}
_UNHIDE = {hidden: plain for plain, hidden in _HIDE.items()}
_HIDDEN = re.compile("[\ue100-\ue1ff]")

_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_NOWIKI = re.compile(r"<nowiki>(.*?)</nowiki>", re.DOTALL | re.IGNORECASE)
_DROPPED = (
    "ref|references|gallery|timeline|score|syntaxhighlight|source|pre|imagemap|hiero|graph|templatestyles|inputbox|mapframe|"
    "maplink|templatedata|categorytree|math|chem|ce|s|strike|del|table|style|script|includeonly|indicator"
)
_ELEMENT = re.compile(rf"<(/?)({_DROPPED})\b[^<>]*?(/?)>", re.IGNORECASE)
_SIMPLE_FORMULA = re.compile(r"(?:[^\W_]|[\s+\-−=<>.,()/*']){1,24}")
_PARAMETER = re.compile(r"\{\{\{[^{}]*\}\}\}")
_BRACKET = re.compile(r"\{\{|\}\}|\[\[|\]\]|^[ :*]*\{\||^[ \t]*\|\}(?!\})", re.MULTILINE)
_TABLE_LINE = re.compile(r"^[ \t]*[|!][^\n]*\n?|^[ \t]*\|?[\w -]+=[^\n]*\n", re.MULTILINE)
_LANGUAGE = re.compile(r"(?:[a-z]{2,3}|simple|zh-[a-z-]+|be-tarask|be-x-old|roa-[a-z]+|bat-smg|map-bms|fiu-vro|nds-nl)")
_INTERWIKI = frozenset("w wikt wiktionary s wikisource q wikiquote b commons c d m meta species voy".split())

_EXTERNAL = re.compile(r"\[(?:(?:https?|ftp|irc|news):)?//([^\]\n]{0,2000})\]|\[mailto:([^\]\n]{0,2000})\]")
_URL = re.compile(r"(?:https?|ftp)://[^\s<>\]|]*")
_BLOCK_TAG = re.compile(
    r"</?(?:p|div|blockquote|center|poem|ul|ol|li|dl|dd|dt|h[1-6]|hr|onlyinclude|noinclude)\b[^<>]*>", re.IGNORECASE
)
_BREAK = re.compile(r"<br\b[^<>]*>", re.IGNORECASE)
_TAG = re.compile(r"</?[a-zA-Z][a-zA-Z0-9:-]*(?:\s[^<>]*)?/?>")
_POSSESSIVE = re.compile(r"(?<=\w)'''(?=s\b)")  # the end of italics, and an apostrophe: ''Eagle'''s
_QUOTES = re.compile("'{2,}")
_SWITCH = re.compile(r"__[^\W\d_]{3,}__")
_VARIANTS = re.compile(r"-\{([^{}]*)\}-")  # of a word in several scripts: -{zh-hans:软件; zh-hant:軟體}-
_HEADING = re.compile(r"(={1,6})\s*(.+?)\s*\1\s*")
_RESIDUE = re.compile(r"\{\{+|\}\}+|\[\[+|\]\]+|\{\||^\|[-}]?|~~~+|\[\d{1,3}\]")
_DEEPEST = 60  # brackets inside each other; MediaWiki itself stops at 40 templates
_LONGEST_HEADING = 300  # characters
_CITATION = re.compile(r"\b(?:ISBN|ISSN|ASIN|OCLC|doi:)")  # in an item of a list: a book, not a sentence
_AGE = re.compile(r" ?\((?:age[ds]? *|(?:\d+ )?(?:years?|days?|months?) ago)\)")  # by the day on which the page is shown
_LETTER = re.compile(r"[^\W\d_]")


@dataclass(slots=True)
class Extracted:
    """A page's paragraphs, and what was left out of it by reason."""

    paragraphs: list[str] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)


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
    """

    def __init__(
        self, namespaces: Mapping[int, Iterable[str]], dropped_sections: Iterable[str] = (), kept_sections: Iterable[str] = ()
    ) -> None:
        files = {name for key in _FILE_KEYS for name in namespaces.get(key, ())}
        self._files = files | FILE_ALIASES | CATEGORY_ALIASES
        self._namespaces = {name for key, names in namespaces.items() if key != 0 for name in names if name}
        self._namespaces |= FILE_ALIASES | CATEGORY_ALIASES | _NAMESPACES
        self._dropped_sections = frozenset(dropped_sections)
        self._kept_sections = frozenset(kept_sections)

    def is_namespaced(self, title: str) -> bool:
        """Whether the title begins with the name of a namespace other than the articles'."""
        name, colon, _ = title.partition(":")
        return bool(colon) and name.strip().lower().removesuffix(" talk") in self._namespaces

    def extract(self, text: str) -> Extracted:
        """The text passages of a page."""
        text = _COMMENT.sub("", text)
        closed, close, rest = text.rpartition("</nowiki>")
        if close:
            text = _NOWIKI.sub(lambda match: match[1].translate(_HIDE), closed + close) + rest
        text = _drop_elements(text)
        text = self._resolve(_PARAMETER.sub("", text))
        text = _EXTERNAL.sub(lambda match: (match[1] or match[2] or "").partition(" ")[2], text)
        text = _URL.sub("", _BREAK.sub(" ", text))
        text = _TAG.sub("", _BLOCK_TAG.sub("\n\n", text))
        if "-{" in text:
            text = _VARIANTS.sub(_variant, text)
        if "'''s" in text:
            text = _POSSESSIVE.sub("'", text)
        text = _QUOTES.sub(_apostrophes, _SWITCH.sub("", text))
        return self._paragraphs(text)

    def _resolve(self, text: str) -> str:
        """Templates, links and tables replaced by their text; brackets without a partner are dropped."""
        root = _Frame("")
        stack = [root]
        open_frames = dict.fromkeys(("{{", "[[", "{|"), 0)
        position = 0
        for match in _BRACKET.finditer(text):
            token = match[0].strip(" \t:*")
            if match.start() > position:
                stack[-1].pieces.append(text[position : match.start()])
            position = match.end()
            if token in open_frames:
                if len(stack) <= _DEEPEST:
                    stack.append(_Frame(token))
                    open_frames[token] += 1
                continue
            opening = {"}}": "{{", "]]": "[[", "|}": "{|"}[token]
            if opening == "[[":  # a link does not reach out of the template or table around it
                if stack[-1].kind == "[[":
                    open_frames["[["] -= 1
                    _close(stack, self._link)
                continue
            if not open_frames[opening]:
                continue
            while stack[-1].kind != opening:
                open_frames[stack[-1].kind] -= 1
                _abandon(stack)
            open_frames[opening] -= 1
            _close(stack, templates.render if opening == "{{" else lambda content: "\n")
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

    def _paragraphs(self, text: str) -> Extracted:
        found = Extracted()
        lines: list[str] = []  # of the paragraph that is open
        none = 7  # below all levels of headings
        skipped = none  # level of the heading whose section is being dropped
        kept = 0 if not self._kept_sections or "" in self._kept_sections else none  # level of the heading whose section is kept

        def flush() -> None:
            if lines:
                self._add(found, " ".join(lines))
                lines.clear()

        for raw in text.split("\n"):
            line = raw.strip()
            if not line:
                flush()
                continue
            heading = _HEADING.fullmatch(line) if line[0] == "=" and len(line) <= _LONGEST_HEADING else None
            if heading:
                flush()
                found.dropped["heading"] += 1
                level = len(heading[1])
                name = html.unescape(heading[2]).strip(" :").lower()
                if level <= skipped:
                    skipped = level if name in self._dropped_sections else none
                if self._kept_sections and (level <= kept or kept in (0, none)):
                    kept = level if name in self._kept_sections else none
            elif skipped < none or kept == none:
                found.dropped["section"] += 1
            elif line[0] in "*#;:":
                flush()
                item = line.lstrip("*#;: ")
                if line[0] == ":" or (reads_as_prose(item) and not _CITATION.search(item)):
                    self._add(found, item)
                elif item:
                    found.dropped["list_item"] += 1
            elif line[0] in "|!" or line.startswith("----"):
                flush()
                found.dropped["table_row"] += 1
            else:
                lines.append(line)
        flush()
        return found

    def _add(self, found: Extracted, paragraph: str) -> None:
        text = _RESIDUE.sub("", html.unescape(paragraph) if "&" in paragraph else paragraph)
        if _HIDDEN.search(text):
            text = text.translate(_UNHIDE)
        text = " ".join(mend(" ".join(text.split())).split()).lstrip(",;: –—-")
        if " ago)" in text or "(age" in text:
            text = _AGE.sub("", text)
        if not _LETTER.search(text):
            return
        if not reads_as_prose(text) and not (len(text) > 80 and text.endswith(":")):
            found.dropped["fragment"] += 1
            return
        found.paragraphs.append(text)


def _close(stack: list[_Frame], resolve: Callable[[str], str]) -> None:
    content = "".join(stack.pop().pieces)
    stack[-1].pieces.append(resolve(content))


def _abandon(stack: list[_Frame]) -> None:
    """An opening bracket that never closes: keep what reads as text."""
    frame = stack.pop()
    content = "".join(frame.pieces)
    if frame.kind != "[[":
        content = "\n" + _TABLE_LINE.sub("", content.partition("\n")[2] if frame.kind == "{|" else content)
    else:
        content = content.rpartition("|")[2] if "\n" not in content else content
    stack[-1].pieces.append(content)


def _drop_elements(text: str) -> str:
    """Take away elements whose content is no running text; short formulas stay as they read, others leave a hole."""
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
        if name in ("math", "chem", "ce") and content:
            simple = _SIMPLE_FORMULA.fullmatch(content.strip())
            pieces.append(content.strip() if simple else HOLE)
        position = end
    pieces.append(text[position:])
    return "".join(pieces)


def _variant(match: re.Match[str]) -> str:
    """The first script's word: readers of one wiki write in all of them."""
    content = match[1].partition("|")[2] if "|" in match[1] else match[1]
    return content.split(";")[0].rpartition(":")[2].strip()


def _apostrophes(match: re.Match[str]) -> str:
    """Two are italic, three bold, five both; of four, one is an apostrophe."""
    count = len(match[0])
    return "'" if count == 4 else "'" * max(0, count - 5)
