"""Wikitext to paragraphs of plain text.

A page is read in three passes, linear in its length. First, elements with their own content
(references, HTML tables, formulas, galleries) are removed (encyclopedia/elements.py). Then one scan
over the brackets resolves templates, links and tables from the inside out. Last, headings, lists
and paragraphs are recognized by line and assembled (encyclopedia/blocks.py). "We extract only the
text passages and ignore lists, tables, and headers" (Devlin et al. 2019, section 3.1): headings,
tables, and lists that are not running text are dropped.

mwparserfromhell knows more of the grammar, but parses about 2 MB/s, this module more than 10. It
also returns broken markup, which is frequent in dumps, as text; this module removes it.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cloze.pipeline.corpus.document import HOLE_TEMPLATE
from cloze.pipeline.corpus.readers.encyclopedia import infoboxes, mediawiki_names, templates
from cloze.pipeline.corpus.readers.encyclopedia.blocks import (
    ArticleRules,
    Blocks,
    ExtractedPage,
    drop_marginal_templates,
)
from cloze.pipeline.corpus.readers.encyclopedia.elements import (
    GAP,
    TABLE,
    drop_elements,
    escape_literals,
    escape_nowiki,
    left_over,
    touch,
    without_code_tags,
    without_quotes,
)
from cloze.pipeline.corpus.readers.encyclopedia.mediawiki_names import (
    CATEGORY_ALIASES,
    FILE_ALIASES,
    MEDIA_ALIASES,
    read_names,
)
from cloze.pipeline.corpus.readers.encyclopedia.scripts import resolve_scripts, resolve_variants
from cloze.pipeline.corpus.readers.encyclopedia.template_functions import audio

_FILE_KEYS = (6, 14)  # files, categories: links into them show no text

# Where `-{…}-` may stand inside of a template's argument, and its bar is none of the template's.
_VARIANT_LANGUAGES = frozenset("ban crh gan iu kk ku mni sh shi sr tg tly uz wuu zh".split())
_NAMESPACES = FILE_ALIASES | CATEGORY_ALIASES | read_names("namespaces")


_PARAMETER = re.compile(r"\{\{\{[^{}]*\}\}\}")
# Of `|}` only the second character, for bars are frequent.
_BRACKET = re.compile(r"\{[{|]|\}\}|\[\[|\]\]|\}(?<=\|\})(?!\})")
# A link without inner brackets: its label, or a target that is shown, or content to examine.
_SIMPLE_LINK = re.compile(
    r"\[\[(?:[^\[\]{}|:]*\|(?=\s*[^\s\[\]])([^\[\]{}]*)|(?=\S)([^\[\]{}|:']+)(?<=\S)|"
    r"([^\[\]{}]*))\]\]"
)
_TABLE_INDENT = 40  # characters of blanks and list marks before a table
_TABLE_LINE = re.compile(r"^[ \t]*[|!][^\n]*\n?|^[\w \t-]+=[^\n]*\n", re.MULTILINE)
_LANGUAGE = re.compile(
    r"(?:[a-z]{2,3}|simple|zh-[a-z-]+|be-tarask|be-x-old|roa-[a-z]+|bat-smg|map-bms|fiu-vro|nds-nl)"
)
_INTERWIKI = read_names("interwiki prefixes")

# Typical of files in a namespace of any name: a file ending, or display options.
_FILE = re.compile(
    r"\A[^|\n]*\.(?:jpe?g|png|gif|svg|tiff?|webp|xcf|og[gav]|opus|flac|wav|mp[34]|mid|webm|mpe?g|"
    r"stl|pdf|djvu)\s*(?:\||\Z)|"
    r"\|\s*(?:thumb(?:nail)?|(?:\d+x?|x)\d* ?px|frameless)\s*(?:\||\Z)",
    re.IGNORECASE,
)

_EXTERNAL = re.compile(
    r"\[(?:[a-zA-Z][a-zA-Z+.-]{1,9}:)?//((?:\[[\d:.A-Fa-f]+\])?[^\]\n]{0,2000})\]|"
    r"\[(?:mailto|news|tel|urn|geo):([^\]\n]{0,2000})\]"
)
_URL = re.compile(r"(?:https?|ftp)://[^\s<>\]|]*")
_BLOCK_TAG = re.compile(
    r"</?(?:p|div|blockquote|center|poem|ul|ol|li|dl|dd|dt|h[1-6]|hr)\b[^<>]*>", re.IGNORECASE
)
# Of pages that others include or translate; a page itself shows what stands in them.
_TRANSPARENT = re.compile(
    r"<(?:/?(?i:onlyinclude|noinclude|includeonly|translate|tvar|languages|section)\b[^<>]*|/)>"
)
_NOT_INCLUDED = re.compile(r"<noinclude\b[^<>]*>.*?</noinclude\s*>", re.IGNORECASE | re.DOTALL)
_BREAK = re.compile(r"<br\b[^<>]*>", re.IGNORECASE)
# Of one letter only HTML's: `x<y and a>b` is no tag.
_TAG = re.compile(
    r"</?(?:[bipqsuBIPQSU]|[aA](?=\s[^<>]*=|>)|[a-zA-Z][a-zA-Z0-9:-]+)(?:\s[^<>]*)?/?>"
)
_SWITCH = re.compile(r"__[^\W\d_]{3,}__")
_HEADING = re.compile(r"(={1,6})\s*(.+?)\s*\1\s*")
_OPENS = {"}}": "{{", "]]": "[[", "}": "{|"}
_DEEPEST = 60  # maximum nesting of brackets; MediaWiki stops at 40 templates
_LONGEST_HEADING = 300  # characters
_MARK = re.compile(r"[*#;:]+")
_TERM = re.compile(r"\s:\s")
# A template is what the sentence is about, even where letters have no case: in bold, or before a
# bracket, dash, sign or ending.
_SUBJECT = re.compile(
    rf"[\s{GAP}]*(?:''+\s*{HOLE_TEMPLATE}(?!['\s]*\Z)|{HOLE_TEMPLATE}[\s']*[(–—°%&/=×+’-])"
)


@dataclass(slots=True)
class _Frame:
    """An open bracket: its kind, and the text since."""

    kind: str
    pieces: list[str] = field(default_factory=list)


class WikitextParser(ArticleRules):
    """Parser for the pages of one wiki.

    Args:
        namespaces: lower-case namespace names by key, from `<siteinfo>`.
        rules: fields of `ArticleRules`.
    """

    def __init__(self, namespaces: Mapping[int, Iterable[str]], **rules: Any) -> None:
        super().__init__(**rules)
        file_namespaces = {name for key in _FILE_KEYS for name in namespaces.get(key, ())}
        self._files = file_namespaces | FILE_ALIASES | CATEGORY_ALIASES
        self._media = set(namespaces.get(-2, ())) | MEDIA_ALIASES
        self._namespaces = {
            name for key, names in namespaces.items() if key != 0 for name in names if name
        }
        self._namespaces |= _NAMESPACES

    def is_namespaced(self, title: str) -> bool:
        """Return True if the title has the prefix of a namespace other than the articles'."""
        name, colon, _ = title.partition(":")
        return bool(colon) and name.strip().lower().removesuffix(" talk") in self._namespaces

    def extract(self, text: str) -> ExtractedPage:
        """Return the text passages of a page."""
        text = self.without_elements(text)
        page = self._paragraphs(self._inline(text))
        if self.infoboxes:
            infoboxes.collect(text, self.shown, page)
        return page

    def without_elements(self, text: str) -> str:
        """Return wikitext without comments, parameters and elements that are not running text."""
        text = _without_comments(text)
        if self.project == "wikisource":  # headers and footers of scanned pages
            text = _NOT_INCLUDED.sub("", text)
        text = escape_nowiki(text) if "</nowiki" in text or "</NOWIKI" in text else text
        if self.language in _VARIANT_LANGUAGES:
            text = resolve_variants(text, before_links=True)
        text = drop_elements(text, self.formulas)
        return _PARAMETER.sub("", text) if "{{{" in text else text

    def shown(self, text: str) -> str:
        """Return what the page shows for a piece of wikitext without non-text elements."""
        return "\n".join(map(without_quotes, self._inline(text).split("\n")))

    def _inline(self, text: str) -> str:
        """Resolve templates, links, tables and tags; keep the apostrophes of bold and italics."""
        text = self._resolve(self._simple_links(text))
        text = _EXTERNAL.sub(lambda match: (match[1] or match[2] or "").partition(" ")[2], text)
        text = _BREAK.sub(" ", text)
        text = _URL.sub("", text) if "://" in text else text
        if "<" in text:
            text = _TRANSPARENT.sub("", without_code_tags(text))
            if "<su" in text or "<SU" in text:
                text = resolve_scripts(text)
            text = _TAG.sub("", _BLOCK_TAG.sub("\n\n", text))
        text = resolve_variants(text) if "-{" in text else text
        return _SWITCH.sub("", text)

    def _simple_links(self, text: str) -> str:
        pieces = _SIMPLE_LINK.split(text)
        if len(pieces) == 1:
            return text
        for index in range(3, len(pieces), 4):
            content = pieces[index]
            if content is not None:
                in_marks = pieces[index - 3].endswith(("(", "[", "'"))  # `(GAP)` is removed whole
                pieces[index] = self._link(content) or (GAP if in_marks else "")
        return "".join(filter(None, pieces))

    def _resolve(self, text: str) -> str:
        """Replace templates, links and tables by their text; drop unmatched brackets."""
        root = _Frame("")
        stack = [root]
        open_frames = dict.fromkeys(("{{", "[[", "{|"), 0)
        position = 0
        for match in _BRACKET.finditer(text):
            token, begin = match[0], match.start()
            if token == "}":
                begin -= 1
                if begin < position:  # the bar belongs to `{|`
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
            if opening == "[[":  # a link does not extend beyond its template or table
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
            resolve = self._template if opening == "{{" else self._table
            _close(stack, resolve, text[position : position + 1])
        stack[-1].pieces.append(text[position:])
        while len(stack) > 1:
            _abandon(stack)
        return "".join(root.pieces)

    def _link(self, content: str, line: str = "", after: str = "") -> str:
        """Return the text that a link shows; empty for files, categories and languages."""
        target, bar, label = content.partition("|")
        target = target.strip()
        is_shown = target.startswith(":")
        prefix, colon, title = target.lstrip(":").partition(":")
        prefix = prefix.strip().lower().replace("_", " ")
        if colon and prefix in self._media:  # the file itself is linked
            return audio([target, label], {})
        if colon and not is_shown and (prefix in self._files or _FILE.search(content)):
            return ""
        if bar:
            if label:
                return label if label.strip() else " "
            return re.sub(r"\s*\(.*\)$|,.*$", "", title if colon else target)  # the "pipe trick"
        if colon and prefix in _INTERWIKI:
            return title.rpartition(":")[2]
        if (
            colon
            and not is_shown
            and target[: len(prefix)].islower()
            and _LANGUAGE.fullmatch(prefix)
        ):
            return ""
        return target.lstrip(":").replace("''", escape_literals("''"))

    def _template(self, content: str, line: str, after: str) -> str:
        if self.project == "wikivoyage" and (listing := mediawiki_names.listing(content)):
            return listing
        if self.project == "wiktionary" and not mediawiki_names.is_word(content):
            return HOLE_TEMPLATE  # a code of a language, or what only a server knows
        return templates.render(content, self.language, line, after)

    def _table(self, content: str, line: str, after: str) -> str:
        return f"\n{TABLE}\n"

    def _paragraphs(self, text: str) -> ExtractedPage:
        """Assemble the paragraphs from text without brackets and tags, line by line."""
        page = ExtractedPage()
        blocks = Blocks(page, self)
        lines: list[str] = []  # of the open paragraph
        sections = blocks.sections

        def flush() -> None:
            if lines:
                blocks.paragraph(" ".join(lines))
                lines.clear()
            blocks.close_term()

        for raw_line in text.split("\n"):
            is_marginal = HOLE_TEMPLATE in raw_line and not _SUBJECT.match(raw_line)
            if "''" in raw_line:
                raw_line = without_quotes(raw_line)
            line = raw_line.strip()
            if is_marginal:
                line = drop_marginal_templates(line)
            if not line:
                if raw_line:  # only templates or their remnants
                    flush()
                    blocks.omit()
                elif lines:
                    flush()
                continue
            first_character = line[0]
            heading = (
                _HEADING.fullmatch(line)
                if first_character == "=" and len(line) <= _LONGEST_HEADING
                else None
            )
            if heading:
                flush()
                blocks.section(len(heading[1]), html.unescape(heading[2]))
            elif not sections.is_read:
                page.omit("section", line)
            elif first_character in "*#;:":
                if lines:
                    flush()
                marks = _MARK.match(line)[0]  # type: ignore[index]
                item = line[len(marks) :].strip()
                if is_marginal and item.startswith(f"{HOLE_TEMPLATE} "):  # an icon
                    item = drop_marginal_templates(item)
                if marks[-1] != ";":
                    blocks.item(item, indented=not marks.strip(":"), defines=marks[-1] == ":")
                    continue
                flush()
                term, *definition = _TERM.split(item, maxsplit=1)
                if definition:
                    blocks.item(f"{term}: {definition[0]}", indented=False)
                else:
                    blocks.term(term)
            elif first_character == TABLE:
                flush()
                blocks.omit()
            elif first_character in "|!" or line.startswith("----"):
                flush()
                blocks.omit()
                page.omit("table_row", line)
            else:
                lines.append(line)
        flush()
        return blocks.finish()


def _without_comments(text: str) -> str:
    """Remove comments; one without an end extends to the end of the page."""
    pieces: list[str] = []
    position = 0
    while (begin := text.find("<!--", position)) >= 0:
        pieces.append(text[position:begin])
        position = text.find("-->", begin + 4) + 3
        if position < 3:
            position = len(text)
    return "".join((*pieces, text[position:])) if pieces else text


def _begins_line(text: str, position: int) -> bool:
    """Return True if only blanks and list marks precede `position` on its line."""
    begin = max(0, position - _TABLE_INDENT)
    line_start = text.rfind("\n", begin, position) + 1
    return (line_start > 0 or begin == 0) and not text[line_start:position].strip(" \t:*")


def _close(stack: list[_Frame], resolve: Callable[[str, str, str], str], following: str) -> None:
    """Resolve the innermost bracket; `following` is the next character."""
    content = "".join(stack.pop().pieces)
    pieces = stack[-1].pieces
    previous = pieces[-1][-1:] if pieces else ""
    text = resolve(content, templates.open_line(pieces, stack[-1].kind), following)
    if text == GAP and previous and not touch(previous, following):
        text = left_over(previous, following)  # after a word no gap is left
    if text:  # `previous` of the next bracket is a character
        pieces.append(text)


def _abandon(stack: list[_Frame]) -> None:
    """Close a bracket without an end, and keep its content that reads as text."""
    frame = stack.pop()
    content = "".join(frame.pieces)
    if frame.kind == "[[":
        content = content if "\n" in content else content.rpartition("|")[2]
    else:
        lines = content.partition("\n")[2] if frame.kind == "{|" else content
        content = "\n" + _TABLE_LINE.sub("", lines)
    stack[-1].pieces.append(content)
