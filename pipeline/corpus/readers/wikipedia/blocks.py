"""Blocks of a page to paragraphs: what stands before and behind a list, a formula or a table decides what becomes of it.

A list is kept whole or dropped whole. It is kept where it is running text: items that are sentences, or the parts of one that their
lead-in begins (`The causes were:` + `the fall of the dollar;` …), which are then joined to it. What is dropped takes its lead-in
with it, and no other sentence: a hole stands for it, which the splitter of sentences looks after.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from pipeline.corpus.document import A_HOLE, HOLE, HOLE_LIST, HOLE_TEMPLATE, Field, has_hole, is_plain
from pipeline.corpus.readers.english_verbs import has_finite_verb
from pipeline.corpus.readers.prose import ends_as_sentence, reads_as_prose, reads_as_statement
from pipeline.corpus.readers.slots import SLOT, mend, without_padding
from pipeline.corpus.readers.wikipedia.hidden import show

_RESIDUE = re.compile(r"\{\{+|\}\}+|\[\[+|\]\]+|\{\||^\|[-}]?|~~~+|\[\d{1,3}\]")
_ARGUMENTS = re.compile(r"\|\s*[\w -]{1,20}\s?=(?!=)[^|]*")  # of a template that was never opened
_AGE = re.compile(r" ?\((?:age[ds]? *|(?:\d+ )?(?:years?|days?|months?) ago)\)")  # by the day on which the page is shown
_LETTER = re.compile(r"[^\W\d_]")
# In an item of a list: a book, not a sentence. ISBN, ISSN, ASIN, OCLC or doi: at a word's beginning, looked for by one letter.
_CITATION = re.compile(r"[AIOd](?<!\w.)(?:(?<=I)S[BS]N|(?<=A)SIN|(?<=O)CLC|(?<=d)oi:)")
_CLAUSE = re.compile(r"[;,](?:\s*(?:and|or|und|et|y|e|och|og|en|i|и))?\Z")
_LEADS = re.compile(r"[:：—–]\Z")
_GOES_ON = re.compile(r"[a-z]+[\s,]")

# A template that nobody knows stands behind a sentence like a note, or before one like a heading's: nothing is missing there.
_BEHIND = re.compile(rf"([.!?。][\"'”’)\]]*)(\s*)(?:{HOLE_TEMPLATE}\s*)+")
_AHEAD = re.compile(rf"^[\s{SLOT}]*(?:{HOLE_TEMPLATE}\s*)+")
_SENTENCES_SHARE, _CHARACTERS_SHARE = 2 / 3, 0.8  # of a list's items, and of their text, that must be sentences
_VERBS_SHARE = 0.5  # of the items


@dataclass(slots=True)
class Extracted:
    """A page's paragraphs, the fields of its infoboxes where they are wanted, and what was left out of it by reason."""

    paragraphs: list[str] = field(default_factory=list)
    infobox: list[Field] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)


def settle(line: str) -> str:
    """The line without the unknown templates that stand beside its sentences; those inside are holes."""
    line = _BEHIND.sub(_behind, line)
    ahead = _AHEAD.match(line)
    if (
        ahead
        and not line[ahead.end() : ahead.end() + 1].islower()
        and line[ahead.end() : ahead.end() + 1] not in tuple(",;:.)")
    ):
        line = line[ahead.end() :]
    return line


def _behind(match: re.Match[str]) -> str:
    following = match.string[match.end() : match.end() + 1]
    return match[0] if following.islower() or following in tuple(",;:") else f"{match[1]} "


class Blocks:
    """A page's blocks, given in order.

    Args:
        found: what the paragraphs are added to.
        english: whether rules that know English words apply.
    """

    def __init__(self, found: Extracted, english: bool) -> None:
        self._found, self._english = found, english
        self._open = ""  # the last paragraph, for what follows may belong to it
        self._items: list[str] = []
        self._indented = True  # whether the items are indented text alone

    def paragraph(self, text: str) -> None:
        """A paragraph; its lines are joined."""
        self._close_list()
        text = plain(text)
        if not _LETTER.search(text) and not A_HOLE.search(text):
            return
        if self._open and A_HOLE.search(self._open[-1]) and _GOES_ON.match(text):  # a formula on a line of its own
            text = f"{self._open} {text}"
        else:
            self._emit()
        self._open = text

    def item(self, text: str, indented: bool) -> None:
        """An item of a list.

        Args:
            indented: whether it is text moved to the right (`:`), with no mark before it.
        """
        text = plain(text)
        if _LETTER.search(text) or A_HOLE.search(text):
            self._items.append(text)
            self._indented &= indented

    def heading(self) -> None:
        """What follows does not belong to what came before."""
        self._close_list()
        if _LEADS.search(self._open):
            self._open += f" {HOLE_LIST}"
        self._emit()

    def dropped(self, hole: str = HOLE_LIST) -> None:
        """A table, a program or a chart stood here."""
        self._close_list()
        if _LEADS.search(self._open):
            self._open += f" {hole}"

    def kept(self, text: str) -> None:
        """A line that is no prose and stays all the same, such as a row of a table."""
        self._close_list()
        self._emit()
        text = plain(text)
        if text:
            self._found.paragraphs.append(text)

    def finish(self) -> Extracted:
        """The end of the page."""
        self.heading()
        return self._found

    def _close_list(self) -> None:
        if not self._items:
            return
        items, indented = self._items, self._indented
        self._items, self._indented = [], True
        lead = self._open if self._open and (_LEADS.search(self._open) or not ends_as_sentence(self._open)) else ""
        if indented and not any(_LETTER.search(item) for item in items):  # formulas
            self._take_away(lead, HOLE)
        elif not _is_running_text(items, led=bool(lead), indented=indented, english=self._english):
            self._found.dropped["list_item"] += len(items)
            self._take_away(lead, HOLE_LIST)
        elif lead and all(ends_as_sentence(item) or _CLAUSE.search(item) for item in items[:-1]):
            self._open = " ".join([lead, *items])
            self._emit()
        else:
            if lead:
                self._found.paragraphs.append(lead)
                self._open = ""
            self._emit()
            self._found.paragraphs += items

    def _take_away(self, lead: str, hole: str) -> None:
        """Leave a hole for what followed the open paragraph; the sentence before it goes if it leads there."""
        if not lead:
            self._emit()
        self._open = f"{self._open} {hole}" if self._open else hole

    def _emit(self) -> None:
        text, self._open = self._open, ""
        if not _LETTER.search(text):
            return
        if (
            reads_as_prose(text)
            or A_HOLE.search(text[-1:])
            or (len(text.split(maxsplit=3)) > 3 and _LEADS.search(text))
            or (self._english and reads_as_statement(text))
        ):
            self._found.paragraphs.append(text)
        else:
            self._found.dropped["fragment"] += 1


def _is_running_text(items: Sequence[str], *, led: bool, indented: bool, english: bool) -> bool:
    """Whether a list is to be read on, item by item.

    In English a list without a lead-in that hardly has a verb is a bibliography or an inventory, whatever its items end in.
    """
    if any(has_hole(item) or _CITATION.search(item) for item in items):
        return False
    if led and len(items) > 1 and all(_CLAUSE.search(item) for item in items[:-1]) and not _CLAUSE.search(items[-1]):
        return True
    sentences = [item for item in items if reads_as_prose(item) or (english and reads_as_statement(item))]
    if indented and led:
        return len(sentences) == len(items)
    if len(sentences) < _SENTENCES_SHARE * len(items) or sum(map(len, sentences)) < _CHARACTERS_SHARE * sum(map(len, items)):
        return False
    return led or not english or sum(map(has_finite_verb, items)) >= _VERBS_SHARE * len(items)


def plain(text: str) -> str:
    """Text on one line with nothing left of its markup."""
    if "&" in text:
        text = html.unescape(text)
    if "|" in text:
        text = _ARGUMENTS.sub(HOLE_TEMPLATE, text)
    if "[" in text or "]" in text or "{" in text or "}" in text or "~" in text or text[:1] == "|":
        text = _RESIDUE.sub("", text)
    mended = without_padding(text) if is_plain(text) else mend(show(" ".join(text.split())))
    text = (text if mended == text else " ".join(mended.split())).lstrip(",;: –—-")
    if ")" in text and (" ago)" in text or "(age" in text):
        text = _AGE.sub("", text)
    return text
