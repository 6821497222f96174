"""Hostile text takes time linear in its bytes, whatever repeats in it; and a slice of the fuzzer,
whose long run is by hand.

Where the time grew with the square of the size, a case took from 4 to 70 s of CPU.
"""

from __future__ import annotations

import json
from pathlib import Path
from xml.sax.saxutils import escape

import pytest

from tests.faults import fuzz
from tests.growth import is_linear
from tests.pipeline.corpus.readers.made import HEAD, page, response

SIZE = 48 << 10
LARGE = {
    "links in an infobox",
    "a bracket that is never closed",
    "articles beside each other",
}  # four times that
SECONDS = 60.0  # of a case that will never end


def _wiki(text: str) -> bytes:
    return (HEAD + page("A", escape(text)) + "</mediawiki>").encode()


def _extracted(text: str) -> bytes:
    return f'<doc id="1" url="" title="T">\n{text}\n</doc>\n'.encode()


# name: (kind of source, file, how the text becomes the file, beginning, what repeats)
CASES = {
    "code that is never closed": ("wikipedia", "a.xml", _wiki, "", "<code>"),
    "code of two names": ("wikipedia", "a.xml", _wiki, "</code>", "<tt><code>x</tt>"),
    "nowiki that is never closed": ("wikipedia", "a.xml", _wiki, "", "<nowiki>"),
    "references that are never closed": ("wikipedia", "a.xml", _wiki, "", "<ref name=a>"),
    "comments that are never closed": ("wikipedia", "a.xml", _wiki, "", "<!--"),
    "infoboxes that are never closed": ("wikipedia", "a.xml", _wiki, "", "{{Infobox a|"),
    "infoboxes in each other": ("wikipedia", "a.xml", _wiki, "", "{{Infobox a|b="),
    "templates that are never closed": ("wikipedia", "a.xml", _wiki, "", "{{a|"),
    "links in an infobox": ("wikipedia", "a.xml", _wiki, "{{Infobox a|b=", "[[{{x}}"),
    "blanks in a template": ("wikipedia", "a.xml", _wiki, "", "{{ "),
    "tables in each other": ("wikipedia", "a.xml", _wiki, "", "{|\n|-\n|"),
    "a wide and tall table": ("wikipedia", "a.xml", _wiki, "{|\n",
    "|-\n! colspan=40 rowspan=1000 | a\n"),
    "cells with attributes": ("wikipedia", "a.xml", _wiki, "{|\n|", "a='b' "),
    "a bracket that is never closed": ("wikipedia", "a.xml", _wiki, "(", "x {{foo}} "),
    "brackets in each other": ("wikipedia", "a.xml", _wiki, "", "([(["),
    "bold and italics": ("wikipedia", "a.xml", _wiki, "", "'''''a'' "),
    "lists in each other": ("wikipedia", "a.xml", _wiki, "", "*"),
    "definitions": ("wikipedia", "a.xml", _wiki, "", ";a : "),
    "headings": ("wikipedia", "a.xml", _wiki, "", "\n=="),
    "empty brackets": ("wikiextractor", "wiki_00", _extracted, "", "(](]"),
    "links that are never closed": ("wikiextractor", "wiki_00", _extracted, "", "[[a|"),
    "articles beside each other": ("html", "a.html", str.encode, "", "<article>a</article>"),
    "articles in each other": ("html", "a.html", str.encode, "", "<article>"),
    "spans of tables": ("html", "a.html", str.encode, "<table>",
    "<tr><th rowspan=1000 colspan=40>a"),
    "lists of lists": ("html", "a.html", str.encode, "", "<ul><li>a"),
    "a page that never closes": ("warc", "a.warc", lambda text: response(1, text), "",
    "<p><b><i>a"),
    "comments in a page": ("warc", "a.warc", lambda text: response(1, text), "", "<!-- a"),
    "one quotation mark after another": ("text", "a.txt", str.encode, "a", "`"),
    "quotation marks and letters": ("text", "a.txt", str.encode, "", "``é"),
    "a quotation that never ends": ("text", "a.txt", str.encode, "", "“a. "),
    "addresses": ("text", "a.txt", str.encode, "", "a@b.org "),
    "halves of addresses": ("text", "a.txt", str.encode, "", "a."),
    "numbers": ("text", "a.txt", str.encode, "", "+49 30 901820 "),
    "no blank": ("text", "a.txt", str.encode, "", "x"),
    "blanks": ("text", "a.txt", str.encode, "a", " "),
    "front matter": ("books", "a.md", lambda text: f"{text}\n---\n# a\n\n# b\n".encode(),
    "---\ntitle: ", "\ta"),
    "footnotes": ("books", "a.md", str.encode, "# a\n\n# b\n\n", "[^a"),
    "emphasis": ("books", "a.md", str.encode, "# a\n\n# b\n\n", "**a_"),
    "links": ("books", "a.md", str.encode, "# a\n\n# b\n\n", "[a]("),
    "block quotes": ("books", "a.md", str.encode, "# a\n\n# b\n\n", ">"),
    "underscores": ("books", "a.txt", str.encode, "", "_a "),
    "names of Gutenberg in one line": ("books", "a.txt", str.encode, "", "Project Gutenberg "),
    "starts of books in one line": ("books", "a.txt", str.encode, "",
    "*** START OF THE PROJECT GUTENBERG EBOOK "),
    "pictures that are never closed": ("books", "a.txt", str.encode, "", "[Illustration "),
    "leaders of a list of contents": ("books", "a.txt", str.encode, "CONTENTS\n", " ."),
    "numbers of chapters": ("books", "a.txt", str.encode, "", "I.\n"),
    "prices": ("books", "a.txt", str.encode, "", "Price $1 "),
    "ideographs, each a line": ("books", "a.txt", str.encode, "", "中\n"),
    "readings": ("books", "a.txt", str.encode, "［＃", "｜中《あ"),
    "notes in notes": ("books", "a.txt", str.encode, "", "※［＃"),
    "shifts of Japanese": ("text", "a.txt", str.encode, "", "\x1b$B~{"),
    "letters of an unknown encoding": ("text", "a.txt", lambda text: text.encode("latin-1"), "",
    "¤a "),
    "lines of nothing": ("books", "a.txt", str.encode, "a", "\n"),
    "lists of JSON": ("jsonl", "a.jsonl", str.encode, "", "["),
    "escapes": ("jsonl", "a.jsonl", lambda text: json.dumps({"text": text}).encode(), "", "\\\"\n"),
    "quotation marks of CSV": ("task", "a.csv", str.encode, "", '"",'),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_time_is_linear_in_the_bytes(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, name, make, begin, unit = CASES[case]
    monkeypatch.setattr(fuzz, "BASE_SECONDS", SECONDS)
    monkeypatch.setattr(fuzz, "SECONDS_PER_MB", 0.0)
    size = SIZE * 4 if case in LARGE else SIZE
    options = {"infobox": "metadata", "tables": "markdown"}

    def work(size: int) -> None:
        data = make(begin + unit * (size // len(unit.encode())))
        assert fuzz.judge(tmp_path, kind, name, data, options) == ""

    assert is_linear(work, size)


def test_a_square_is_seen() -> None:
    """What the tests of linear time are worth."""
    assert is_linear(lambda size: sum(range(500 * size)), 4000)
    assert not is_linear(lambda size: sum(range(size * size)), 5000)


def test_a_slice_of_the_fuzzer() -> None:
    """Each kind of file three times, damaged and not."""
    count = 3 * len(fuzz.CASES)
    assert list(fuzz.failures(7, iter(range(count)), float("inf"))) == [(-1, f"{count:,} cases")]
