"""MediaWiki's own parser tests as a report on the reader of wikitext. Run it from the repository's
root, on files of MediaWiki (`tests/parser/`) or Parsoid, which are under the GPL and stay outside:

    python -m benchmarks.parser_tests FILE … [--show KIND] [--words]

Each case has wikitext and the HTML that MediaWiki makes of it. The words of both are compared in
order: `agreed` if they are equal; else the first reason of REASONS that the wikitext has, which is
meant differently (a corpus has no tables, boxes or addresses); else `wrong`. Cases about saving,
messages and comments are not about pages, and templates of the tests are not known to a reader of
dumps: both are `skipped`.
"""

from __future__ import annotations

import argparse
import html
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from lxml import etree

from benchmarks.data.measure import table
from cloze.pipeline.corpus.document import PLACEHOLDER_PATTERN
from cloze.pipeline.corpus.readers.encyclopedia.elements import close_gaps, unescape_literals
from cloze.pipeline.corpus.readers.encyclopedia.wikitext import WikitextParser

AGREED, WRONG, SKIPPED = "agreed", "wrong", "skipped"
_FORMS = ("html/php", "html", "html/*")
_NO_PAGE = re.compile(r"\b(?:pst|msg|comment|preload|section=|replace=|disabled|styletag|subpage)")
# Why a case is meant differently, and how it is told by its wikitext; the first that fits counts.
REASONS: Mapping[str, str] = {
    "tables are left out": r"^\s*:*\{\||<t[dhr]\b|<table|<caption",
    "templates, variables and parser functions": r"\{\{|\}\}",
    "files and galleries": r"\[\[\s*:?(?:file|image|media|category|fichier|datei)\s*:|<gallery",
    "programs, notes and other elements": (
        r"<(?:pre|nowiki|source|syntaxhighlight|ref|references|math|score|hiero|poem|timeline|"
        r"style|script|del|s|strike|tag|statictag|indicator|includeonly|imagemap|spantag|divtag|"
        r"sealed|asidetag|langconvert|rt|rp|embeddedhtml|opaque|html)\b"
    ),
    "links to other languages": r"\[\[\s*:?(?:es|fr|de|ko|zh|ln|meatball|wikipedia|memoryalpha)\s*:",
    "addresses, ISBN and RFC": r"\w+://|\bmailto:|\[//|\b(?:ISBN|RFC|PMID)\b|\bnews:|\burn:",
    "variants of a language": r"-\{|\}-",
    "brackets and tags that do not close": r"\[\[(?!.*\]\])|\]\]|</?[a-z]",
    "tables of contents, switches": r"__[A-Z]+__|~~~",
    "marks of lists, headings and indented lines": r"^[*#:;= ]",
}
_OTHER_WORDS = ("templates, variables and parser functions", "variants of a language")
_REASONS = {name: re.compile(text, re.I | re.M) for name, text in REASONS.items()}
_MARKS = re.compile(r"^[ \t]*(?:[*#:;]+|={1,6}(?=.*=)|-{4,})|=+[ \t]*$", re.MULTILINE)
_ENTITY = re.compile(r"&#?\w{1,32};")
_WORD = re.compile(r"\w+|[^\w\s]")
_NOT_TEXT = "style script sup[@class='reference'] div[@id='toc'] span[@class='mw-editsection']"


class Case(NamedTuple):
    """A case: its name, options, wikitext and MediaWiki's HTML."""

    name: str
    options: str
    wikitext: str
    page: str


def cases_in(text: str) -> Iterator[Case]:
    """Yield the cases of a file that have wikitext and HTML of the parser in PHP."""
    sections: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        if not line.startswith("!!"):
            if name:
                sections[name] += f"{line}\n"
            continue
        name = line[2:].strip().lower()
        if name == "test":
            sections = {}
        elif name in ("end", "endarticle"):
            page = next((sections[form] for form in _FORMS if form in sections), None)
            if "test" in sections and "wikitext" in sections and page is not None:
                title, options = sections["test"].strip(), sections.get("options", "")
                yield Case(title, options, sections["wikitext"], page)
            sections, name = {}, ""
        sections[name] = ""


def shown_words(page: str) -> list[str]:
    """Return the words that MediaWiki shows."""
    root = etree.fromstring(f"<div>{page}</div>", etree.HTMLParser())
    for path in _NOT_TEXT.split():
        for element in root.xpath(f"//{path}"):
            element.text = None
            for child in list(element):
                element.remove(child)
    for element in root.iter():
        if isinstance(element.tag, str) and element.tag not in ("div", "p", "br"):
            continue
        element.tail = f" {element.tail or ''}"
    return _WORD.findall("".join(root.itertext()))


def read_words(wikitext: str, parser: WikitextParser) -> list[str]:
    """Return the words that the reader has, before it judges lines."""
    text = _MARKS.sub(" ", parser.shown(parser.without_elements(wikitext)))
    text = unescape_literals(close_gaps(text))
    text = _ENTITY.sub(lambda match: html.unescape(match[0]), text)
    return _WORD.findall(PLACEHOLDER_PATTERN.sub(" ", text))


def judge(case: Case, parser: WikitextParser) -> tuple[str, list[str], list[str]]:
    """Return (kind, MediaWiki's words, the reader's words) of a case."""
    if _NO_PAGE.search(case.options):
        return SKIPPED, [], []
    theirs, ours = shown_words(case.page), read_words(case.wikitext, parser)
    if theirs == ours:
        return AGREED, theirs, ours
    reason = next((name for name, mark in _REASONS.items() if mark.search(case.wikitext)), WRONG)
    return reason if reason in _OTHER_WORDS or not own(theirs, ours) else WRONG, theirs, ours


def own(theirs: list[str], ours: list[str]) -> Counter[str]:
    """Return the words of the reader that MediaWiki does not show."""
    return Counter(filter(str.isalnum, ours)) - Counter(filter(str.isalnum, theirs))


def main() -> None:
    """Print the number of cases by kind; with `--show` those of one kind."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--show", default="", metavar="KIND", help="print the cases of a kind")
    parser.add_argument("--words", action="store_true", help="only those with words of their own")
    given = parser.parse_args()
    markup = WikitextParser({-2: ["media"], 6: ["file", "image"], 14: ["category"]})
    counts: Counter[str] = Counter()
    with_own: Counter[str] = Counter()
    for path in given.files:
        for case in cases_in(path.read_text(encoding="utf-8", errors="replace")):
            kind, theirs, ours = judge(case, markup)
            more = own(theirs, ours)
            counts[kind] += 1
            with_own[kind] += bool(more)
            if given.show and kind.startswith(given.show) and (more or not given.words):
                print(f"--- {path.name}: {case.name}\n{case.wikitext}")
                print(f"  MediaWiki: {' '.join(theirs)}\n  reader:    {' '.join(ours)}")
    if not counts:
        sys.exit("the files hold no cases; take MediaWiki's tests/parser/parserTests.txt")
    rows = [(kind, f"{count:,}", f"{with_own[kind]:,}") for kind, count in counts.most_common()]
    print(table(("", "cases", "with words that MediaWiki does not show"), rows))


if __name__ == "__main__":
    main()
