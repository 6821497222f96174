"""Rules of reading articles, and the assembly of paragraphs from the blocks of a page."""

from __future__ import annotations

import functools
import html
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from html.entities import html5
from typing import TYPE_CHECKING

from cloze.core.words import UNSPACED_LETTER
from cloze.pipeline.corpus.document import (
    HOLE_LIST,
    HOLE_TEMPLATE,
    LATIN,
    OTHER_SCRIPTS,
    PLACEHOLDER,
    PLACEHOLDER_PATTERN,
    UNMARKED,
    InfoboxField,
    has_hole,
    is_plain,
)
from cloze.pipeline.corpus.readers.encyclopedia.elements import (
    GAP,
    close_gaps,
    unescape_literals,
    without_padding,
)
from cloze.pipeline.corpus.readers.encyclopedia.lists import (
    CLAUSE,
    LETTER,
    is_bad,
    is_reference,
    running_items,
)
from cloze.pipeline.corpus.readers.prose import (
    ends_as_sentence,
    reads_as_prose,
    reads_as_statement,
)

if TYPE_CHECKING:
    from cloze.pipeline.corpus.readers.encyclopedia.elements import Formulas

_NONE = 7  # below all heading levels


@dataclass(kw_only=True)
class ArticleRules:
    """Rules for pages of one language, from wikitext or HTML."""

    dropped_sections: frozenset[str] = frozenset()  # lower-case headings of sections to drop
    # lower-case headings of sections that are dropped unless they are prose
    judged_sections: frozenset[str] = frozenset()
    # lower-case headings; if any, only these sections are read. "" is the lead
    kept_sections: frozenset[str] = frozenset()
    language: str = "en"  # language of the pages (ISO 639)
    formulas: Formulas = "drop"  # treatment of formulas that do not read as text
    infoboxes: bool = False  # if True, the fields of infoboxes are collected
    project: str = "wikipedia"  # Wikimedia project of the pages, such as `wikivoyage`


class SectionFilter:
    """Tracker of the sections of a page, given its headings in order.

    Args:
        dropped: lower-case headings of sections to drop, including subsections.
        retained: lower-case headings; if any, only these sections are read. "" is the lead.
    """

    def __init__(self, dropped: frozenset[str], retained: frozenset[str]) -> None:
        self._dropped, self._retained = dropped, retained
        self._skipped = _NONE  # level of the heading whose section is dropped
        # level of the heading whose section is kept
        self._open = 0 if not retained or "" in retained else _NONE
        self.is_read = self._open != _NONE  # the current section is read

    def heading(self, level: int, name: str) -> None:
        """Enter the section of a heading of this level (1 to 6)."""
        name = name.strip(" :").lower()
        if level <= self._skipped:
            self._skipped = level if name in self._dropped else _NONE
        if self._retained and (level <= self._open or self._open in (0, _NONE)):
            self._open = level if name in self._retained else _NONE
        self.is_read = self._skipped == _NONE and self._open != _NONE


def lowered(names: Iterable[str]) -> frozenset[str]:
    """Return names in lower case and stripped, for comparison."""
    return frozenset(name.strip().lower() for name in names)


# Assembly of paragraphs. The neighbours of a list, formula or table determine whether it is kept.

_ENTITY = re.compile(r"&#?\w{1,32};")
_RESIDUE = re.compile(r"\{\{+|\}\}+|\[\[+|\]\]+|\{\||^\|[-}]?|~~~+|\[\d{1,3}\]")
_ARGUMENTS = re.compile(r"\|\s*[\w -]{1,20}\s?=(?!=)[^|]*")  # of a template without opening braces
# Relative to the day on which the page is shown.
_AGE = re.compile(r" ?\((?:age[ds]? *|(?:\d+ )?(?:years?|days?|months?) ago)\)")
_LEADS = tuple(":：—–")
_CONTINUES = re.compile(r"[a-z]+[\s,]")

# An unknown template after a sentence is usually a note, and before one a heading: no words are
# missing.
_BEHIND = re.compile(rf"([{LATIN}{OTHER_SCRIPTS}][\"'”’)\]]*)(\s*)(?:{HOLE_TEMPLATE}\s*)+")
# Where no mark ends a sentence.
_AT_END = re.compile(rf"(?<=[{UNMARKED}])\s*(?:{HOLE_TEMPLATE}\s*)+\Z")
_AHEAD = re.compile(rf"^[\s{GAP}]*(?:{HOLE_TEMPLATE}\s*)+")
# Minimum of prose in a section whose heading promises a bibliography, at the top and below another.
_PROSE_SHARE, _PROSE_SHARE_BELOW = 0.5, 0.25
_TOP = 2  # level of the sections of a page


@dataclass(slots=True)
class ExtractedPage:
    """Result of reading a page."""

    paragraphs: list[str] = field(default_factory=list)
    # fields of the infoboxes, if collected
    infobox: list[InfoboxField] = field(default_factory=list)
    # (reason, text) of each omitted line or item; the text may be unknown
    removed: list[tuple[str, str]] = field(default_factory=list)

    @property
    def dropped(self) -> Counter[str]:
        """Return the counts of omitted text by reason."""
        return Counter(reason for reason, _ in self.removed)

    def omit(self, reason: str, *texts: str) -> None:
        """Record omitted texts."""
        self.removed += [(reason, text) for text in texts]

    def readable_texts(self) -> tuple[tuple[str, str], ...]:
        """Return `removed` as plain text."""
        return tuple(
            (reason, PLACEHOLDER_PATTERN.sub("[…]", plain(text.replace("''", ""))))
            for reason, text in self.removed
        )


def drop_marginal_templates(line: str) -> str:
    """Remove unknown templates before and after sentences; those inside remain placeholders."""
    line = _AT_END.sub("", _BEHIND.sub(_behind, line))
    if match := _AHEAD.match(line):
        next_character = line[match.end() : match.end() + 1]
        if not next_character.islower() and next_character not in tuple(",;:.)"):
            line = line[match.end() :]
    return line


def _behind(match: re.Match[str]) -> str:
    next_character = match.string[match.end() : match.end() + 1]
    goes_on = next_character.islower() or next_character in tuple(",;:")
    # Where words have no blanks between them, the template may be the next sentence's first word.
    goes_on |= UNSPACED_LETTER.match(next_character) is not None and not match[0][-1].isspace()
    return match[0] if goes_on else f"{match[1]} "


@dataclass(slots=True)
class _Trial:
    """A section that is kept if it is prose: its level and first paragraph, and characters."""

    level: int = 0  # none
    begin: int = 0
    prose: int = 0
    listed: int = 0


class Blocks:
    """Assembler of paragraphs from the blocks of a page, added in order.

    Args:
        page: page to add the paragraphs to.
        rules: rules of the pages.
    """

    def __init__(self, page: ExtractedPage, rules: ArticleRules) -> None:
        self._page, self._rules, self._english = page, rules, rules.language == "en"
        self._open = ""  # the last paragraph; the next block may continue it
        self._items: list[str] = []
        self._indented = True  # all items are indented text
        self._term = ""  # of a definition that has not followed yet
        self.sections = SectionFilter(rules.dropped_sections, rules.kept_sections)
        self._trial = _Trial()  # a judged section

    def section(self, level: int, name: str) -> None:
        """Enter the section of a heading of this level (1 to 6)."""
        self.heading()
        self._page.omit("heading", name)
        if level <= self._trial.level:
            self._judge()
        self.sections.heading(level, name)
        is_judged = name.strip(" :").lower() in self._rules.judged_sections
        if is_judged and not self._trial.level and self.sections.is_read:
            self._trial = _Trial(level, len(self._page.paragraphs))

    def _judge(self) -> None:
        """Drop the section on trial unless enough of it is prose outside of lists."""
        trial, self._trial = self._trial, _Trial()
        share = _PROSE_SHARE_BELOW if trial.level > _TOP else _PROSE_SHARE
        if not trial.prose or trial.prose < share * (trial.prose + trial.listed):
            self._page.omit("section", *self._page.paragraphs[trial.begin :])
            del self._page.paragraphs[trial.begin :]

    def paragraph(self, text: str) -> None:
        """Add a paragraph."""
        self._close_list()
        text = plain(text)
        if not LETTER.search(text) and not PLACEHOLDER_PATTERN.search(text):
            return
        if self._open and PLACEHOLDER_PATTERN.search(self._open[-1]) and _CONTINUES.match(text):
            # a formula on a separate line
            text = f"{self._open} {text}"
        else:
            self._emit()
        self._open = text

    def term(self, text: str) -> None:
        """Add a term whose definition may follow."""
        self.close_term()
        self._term = text

    def close_term(self) -> None:
        """Treat a term without a definition as a heading: bold text above what follows."""
        if self._term:
            self._page.omit("heading", self._term)
            self._term = ""
            self.heading()

    def item(self, text: str, *, indented: bool, defines: bool = False) -> None:
        """Add a list item.

        Args:
            text: text of the item.
            indented: bool, True if the item is indented text (`:`) without a bullet.
            defines: bool, True if the item defines the open term.
        """
        if self._term:
            text = f"{self._term.rstrip(': ')}: {text}" if defines else text
            self._term, indented = "", False
        text = plain(text)
        if LETTER.search(text) or PLACEHOLDER_PATTERN.search(text):
            self._items.append(text)
            self._indented &= indented
        elif text:
            self._page.omit("list_item", text)

    def heading(self) -> None:
        """End the current block: what follows is separate."""
        self.omit()
        self._emit()

    def omit(self) -> None:
        """Leave a placeholder for a table, program or chart, if a sentence leads to it."""
        self._close_list()
        if self._open.endswith(_LEADS):
            self._open += f" {HOLE_LIST}"

    def finish(self) -> ExtractedPage:
        """Finish the page and return it."""
        self.heading()
        if self._trial.level:
            self._judge()
        return self._page

    def _close_list(self) -> None:
        """Add the items of the open list as text, or replace the list by a placeholder."""
        if not self._items:
            return
        items, indented = self._items, self._indented
        self._items, self._indented = [], True
        introduces_list = self._open.endswith(_LEADS) or not ends_as_sentence(self._open)
        introduction = self._open if self._open and introduces_list else ""
        if indented and not any(LETTER.search(item) for item in items):  # formulas
            self._omit_list(introduction, PLACEHOLDER)
            return
        language, project = self._rules.language, self._rules.project
        kept = running_items(
            items, language=language, project=project, led=bool(introduction), indented=indented
        )
        if len(kept) < len(items):
            self._page.omit("list_item", *(item for item in items if item not in kept))
        self._trial.listed += sum(map(len, items))
        if not kept:
            self._omit_list(introduction, HOLE_LIST)
        elif introduction and all(
            ends_as_sentence(item) or CLAUSE.search(item) for item in kept[:-1]
        ):
            self._open = " ".join([introduction, *kept])
            self._emit()
        else:
            if introduction:
                self._page.paragraphs.append(introduction)
                self._open = ""
            self._emit()
            self._page.paragraphs += kept

    def _omit_list(self, lead: str, hole: str) -> None:
        """Leave a placeholder for the omitted list; it marks a sentence that leads to it."""
        if not lead:
            self._emit()
        self._open = f"{self._open} {hole}" if self._open else hole

    def _emit(self) -> None:
        """Add the open paragraph to the page if it reads as running text."""
        text, self._open = self._open, ""
        if not LETTER.search(text):
            return
        if (
            reads_as_prose(text)
            or PLACEHOLDER_PATTERN.search(text[-1:])
            or (len(text.split(maxsplit=3)) > 3 and text.endswith(_LEADS))
            or (self._english and reads_as_statement(text))
        ):
            self._page.paragraphs.append(text)
            if not self._trial.level:
                return
            if is_bad(text) or is_reference(text):
                self._trial.listed += len(text)
            elif not has_hole(text[-1:]):
                self._trial.prose += len(text)
        else:
            self._page.omit("fragment", text)


@functools.lru_cache(maxsize=1 << 12)  # most are `&nbsp;` and `&ndash;`
def _unescaped(reference: str) -> str:
    # html.unescape would also take the beginning of `&notit;`, and references without a semicolon
    is_known = reference[1] == "#" or reference[1:] in html5
    return html.unescape(reference) if is_known else reference


def plain(text: str) -> str:
    """Return text on one line without remnants of markup."""
    if "&" in text:
        text = _ENTITY.sub(lambda match: _unescaped(match[0]), text)
    if "|" in text:
        text = _ARGUMENTS.sub(HOLE_TEMPLATE, text)
    if "[" in text or "]" in text or "{" in text or "}" in text or "~" in text or text[:1] == "|":
        text = _RESIDUE.sub("", text)
    if is_plain(text):
        cleaned = without_padding(text)
    else:
        cleaned = close_gaps(unescape_literals(" ".join(text.split())))
    text = (" ".join(cleaned.split()) if "  " in cleaned else cleaned).strip(" ")
    text = text.lstrip(",;: –—-")
    if ")" in text and (" ago)" in text or "(age" in text):
        text = _AGE.sub("", text)
    return text
