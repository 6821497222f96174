"""Raised text (`<sup>`): footnote marks, which say nothing, and powers, whose numbers must stay."""

from __future__ import annotations

import html
import re

from cloze.pipeline.corpus.readers.encyclopedia.scripts import raised

_MARK = re.compile(r"\d{1,3}|[a-z]|[*†‡§¶#]{1,3}")
_BRACKETED = re.compile(r"\[[^\[\]]{1,24}\]|\((?:\d{1,3}|[a-z])\)")  # [1], [citation needed]
_EXPONENT = re.compile(r"[−–+-]?\d{1,3}|[a-z]")
# `farmer¹` has a mark, `km²` an exponent. Longer units are written out.
_NOTED = re.compile(r"[^\W\d_]{4}\Z|[.,;:!?”’»\"']\Z")
_UNIT = re.compile(r"(?:met(?:er|re)|mile|feet|foot|inch|yard|second|gram)e?s?\Z", re.IGNORECASE)


def raised_text(before: str, text: str, *, is_link: bool) -> str | None:
    """Return what stands for a raised text: nothing for a mark, `^7` or `²` for a power.

    Args:
        before: the text before it; a few characters suffice.
        is_link: whether it contains a link within the page.

    Returns:
        None if the text itself stays, as in `1st`.
    """
    text = text.strip()
    if _BRACKETED.fullmatch(text) or (is_link and _MARK.fullmatch(text)):
        return ""
    base = before[-1:]
    if (base.isdigit() or base == ")") and _EXPONENT.fullmatch(text):
        return raised(base, text, is_variable=True)
    if _MARK.fullmatch(text) and _NOTED.search(before) and not _UNIT.search(before):
        return ""
    return raised(base, text) if base.isalpha() and text in ("2", "3") else None


# In plain text: glued to a word or a full stop, and before a blank. `a[1] = 2` stays.
_PLAIN_MARK = re.compile(
    r"(?:(?<=[^\W\d_]{3})|(?<=[.,;:!?”’»)]))(?:\[\d{1,3}\])+(?=[.,;:!?)]?(?:\s+(?![=+*/<>-])|\Z))"
)


def without_plain_marks(line: str) -> str:
    """Return a line of text taken from a page without its footnote marks `[1]`."""
    return _PLAIN_MARK.sub("", line) if "[" in line else line


_RAISED = re.compile(r"<sup\b[^<>]{0,500}>((?:[^<]|<(?!/?sup\b)){0,500})</sup\s*>", re.IGNORECASE)
_LINKED_MARK = re.compile(
    r"<a\b(?=[^<>]{0,500}\bhref\s*=\s*[\"']?[^\"'<> ]{0,500}#)[^<>]{0,2000}>"
    r"\s*\[\s*(?:\d{1,3}|[a-z])\s*\]\s*</a\s*>",
    re.IGNORECASE,
)
_TAG = re.compile(r"<[^<>]*>")
_LINK = re.compile(r"href\s*=\s*[\"']?[^\"'<> ]{0,500}#|noteref|footnote", re.IGNORECASE)
_BEFORE = 200  # characters with tags


def without_marks(page: str) -> str:
    """Return an HTML page without footnote marks, and with its powers written as text."""

    def replaced(match: re.Match[str]) -> str:
        begin = match.start()
        before = html.unescape(_TAG.sub("", page[max(0, begin - _BEFORE) : begin]))
        text = html.unescape(_TAG.sub("", match[1]))
        shown = raised_text(before, text, is_link=_LINK.search(match[0]) is not None)
        return match[0] if shown is None else shown

    if "sup" in page or "SUP" in page:
        page = _RAISED.sub(replaced, page)
    return _LINKED_MARK.sub("", page) if "#" in page else page
