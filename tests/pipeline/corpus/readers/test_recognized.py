"""A file that is no text is told as what it is, and the source that reads it is named; what is text
passes.
"""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from dataclasses import replace

import pytest

from cloze.core.errors import DataError
from cloze.pipeline.corpus.readers import READERS
from cloze.pipeline.corpus.readers.base import ReadCounters
from tests.pipeline.corpus.reading import options_of

DUMP = '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/" xml:lang="en">\n  <siteinfo>\n'
OTHERS = {
    "MediaWiki dump": (DUMP.encode(), "source wikipedia"),
    "MediaWiki dump, declared": (
        b'<?xml version="1.0" encoding="utf-8"?>\n' + DUMP.encode(),
        "source wikipedia",
    ),
    "MediaWiki dump, cut": (
        b"  <page>\n    <title>Anarchism</title>\n    <ns>0</ns>\n",
        "back between <mediawiki>",
    ),
    "WikiExtractor": (
        b'<doc id="12" url="https://en.wikipedia.org/?curid=12" title="Anarchism">\nAnarchism\n',
        "source wikiextractor",
    ),
    "WARC": (b"WARC/1.0\r\nWARC-Type: warcinfo\r\n", "source warc"),
    "HTML": (
        b"\n<!DOCTYPE html>\n<html><body><p>Text.</p></body></html>",
        "name it as source html",
    ),
    "Enterprise": (
        b'{"name":"Mill","identifier":12,"abstract":"A mill.","version":{"identifier":3},',
        "name it as source html",
    ),
    "JSON": (b'{"title": "One", "text": "It is one."}\n', "source jsonl"),
    "JSON array": (b'[\n  {"text": "It is one."}\n]', "source jsonl"),
    "XML": (
        b'<?xml version="1.0"?>\n<TEI xmlns="http://www.tei-c.org/ns/1.0">',
        "take its text out",
    ),
    "PDF": (b"%PDF-1.7\n%\xe2\xe3", "take its text out"),
    "gzip": (gzip.compress(b"It is text."), ".gz"),
}


def read(tmp_path, kind, data, **settings):
    (tmp_path / "a.txt").write_bytes(data)
    reader = READERS.find(kind)
    (found,) = reader.slices(str(tmp_path / "a.txt"))
    tally = ReadCounters(slice=found, stop=settings.pop("stop", True))
    return list(reader.read(found, options_of(reader, stop=tally.stop, **settings), tally)), tally


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize(
    ("kind", "settings"), [("books", {}), ("text", {}), ("text", {"blank_line_documents": True})]
)
def test_refused_with_its_name(tmp_path, kind, settings, name):
    data, advice = OTHERS[name]
    with pytest.raises(DataError) as told:
        read(tmp_path, kind, data, **settings)
    sentence = str(told.value)
    assert advice in sentence
    assert str(tmp_path / "a.txt") in sentence
    assert name.split()[0] in sentence
    documents, tally = read(tmp_path, kind, data, stop=False, **settings)
    assert (documents, [one.reason for one in tally.unreadable]) == ([], ["not_text"])


def test_archives_of_pages_are_named(tmp_path):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("a.ndjson"), io.BytesIO())
    for kind in ("text", "jsonl", "wikipedia"):
        with pytest.raises(DataError, match="tar archive, .* name it as source html"):
            read(tmp_path, kind, packed.getvalue())


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("jsonl", "Enterprise"),
        ("jsonl", "HTML"),
        ("wikipedia", "Enterprise"),
        ("wikipedia", "JSON"),
        ("html", "JSON"),
        ("html", "WARC"),
    ],
)
def test_sources_that_read_something_else_tell_it_too(tmp_path, kind, name):
    data, advice = OTHERS[name]
    with pytest.raises(DataError) as told:
        read(tmp_path, kind, data)
    assert advice in str(told.value)
    assert f"nothing for source {kind}" in str(told.value)


def test_a_field_of_an_article_can_be_read_as_json(tmp_path):
    record = (
        b'{"name":"Mill","identifier":12,"version":{},"abstract":"It is a mill of the town."}\n'
    )
    (tmp_path / "a.txt").write_bytes(record)
    (found,) = READERS.find("jsonl").slices(str(tmp_path / "a.txt"))
    found = replace(found, fields=(("text", "abstract"),))
    (document,) = READERS.find("jsonl").read(
        found, options_of(READERS.find("jsonl")), ReadCounters(slice=found)
    )
    assert document.paragraphs == ("It is a mill of the town.",)


def test_zip_archive(tmp_path):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("a.txt", "It is text.")
    with pytest.raises(DataError, match="zip archive"):
        read(tmp_path, "text", packed.getvalue())


@pytest.mark.parametrize(
    "text",
    [
        "In HTML a page begins with <!DOCTYPE html>, and so does this sentence not.",
        "[1] {A note} opens this text, and it is text.",
        "<i>Stet</i>, he wrote; the page was kept.",
        "PARIS, June 1. It rained.",
    ],
)
@pytest.mark.parametrize("blank_lines", [False, True])
def test_text_that_speaks_of_such_things_is_text(tmp_path, text, blank_lines):
    documents, _ = read(tmp_path, "text", text.encode(), blank_line_documents=blank_lines)
    assert [document.paragraphs for document in documents] == [(text,)]
