"""The dump reader: which pages are articles, and what damage does."""

from __future__ import annotations

import bz2
import gzip

import pytest

from cloze.core.errors import DataError
from cloze.pipeline.corpus.readers.base import ReadCounters
from cloze.pipeline.corpus.readers.encyclopedia.dump import reader
from tests.pipeline.corpus.readers.made import HEAD, page
from tests.pipeline.corpus.reading import options_of


def read(tmp_path, content, name="a.xml", stop=True):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    file_slice = reader.slices(str(path))[0]
    tally = ReadCounters(slice=file_slice, stop=stop)
    return list(reader.read(file_slice, options_of(reader, stop=stop), tally)), tally


def test_what_is_an_article(tmp_path):
    dump = HEAD + "".join(
        [
            page("A", number=7),
            page("B", extra='<redirect title="A" />'),
            page("C", text="#REDIRECT [[A]]"),
            page("Talk:A", ns="<ns>1</ns>"),
            page("Our Wiki:About", ns=""),  # an old dump without <ns>
            page("D (disambiguation)"),
            page("E", text="E may be:\n{{disambiguation|geo}}"),
            page("F", text="It is still here.{{disambiguation needed|date=x}}"),
            page("G", model="css"),
        ]
    )
    documents, tally = read(tmp_path, dump + "</mediawiki>")
    assert [(d.id, d.title, d.paragraphs) for d in documents] == [
        ("wikipedia/a.xml/7", "A", ("It is an article.",)),
        ("wikipedia/a.xml/1", "F", ("It is still here.",)),
    ]
    dropped = {name: n for name, n in tally.counters.items() if name.startswith("dropped/")}
    assert dropped == {
        "dropped/redirect": 2,
        "dropped/namespace": 2,
        "dropped/disambiguation": 2,
        "dropped/not_wikitext": 1,
    }
    assert tally.counters["read/documents"] == 9 == len(documents) + sum(dropped.values())


def test_the_last_of_several_revisions_counts(tmp_path):
    text = HEAD + page("A", text="It is the first one.").replace(
        "</page>", "<revision><id>5</id><text>It is the last one.</text></revision></page>"
    )
    documents, _ = read(tmp_path, text + "</mediawiki>")
    assert documents[0].paragraphs == ("It is the last one.",)
    assert documents[0].id.endswith("/1")


def test_compressed_and_multistream(tmp_path):
    parts = [HEAD, page("A"), page("B", number=2), "</mediawiki>"]
    plain, _ = read(tmp_path, "".join(parts))
    multistream, _ = read(
        tmp_path, b"".join(bz2.compress(part.encode()) for part in parts), name="a.xml.bz2"
    )
    zipped, _ = read(tmp_path, gzip.compress("".join(parts).encode()), name="a.xml.gz")
    texts = [[(d.title, d.paragraphs) for d in found] for found in (plain, multistream, zipped)]
    assert texts[0] == texts[1] == texts[2]
    assert len(texts[0]) == 2


DUMP = (
    HEAD
    + "".join(
        page(f"P{n}", number=n, text=f"It is article number {n} of them. " * 50) for n in range(400)
    )
    + "</mediawiki>"
)
BOMB = (
    '<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;">]>'
    + HEAD
    + page("A", text="&b;")
    + "</mediawiki>"
)


@pytest.mark.parametrize(
    ("content", "name", "words"),
    [
        (bz2.compress(DUMP.encode())[:-200], "a.xml.bz2", "truncated"),
        (gzip.compress(DUMP.encode())[:-200], "a.xml.gz", "truncated"),
        (DUMP[:-300], "a.xml", "truncated"),
        (b"this is no bzip2 file at all", "a.xml.bz2", "damaged"),
        (DUMP.encode().replace(b"number 200 ", b"number \xff\xfe "), "a.xml", "damaged"),
        (DUMP.replace("number 200 ", "number \0 "), "a.xml", "damaged"),
        (BOMB, "a.xml", "document type"),
        ("no XML, just words", "a.xml", "damaged"),
    ],
)
def test_damage_stops_or_is_quarantined(tmp_path, content, name, words):
    with pytest.raises(DataError, match=words) as error:
        read(tmp_path, content, name)
    assert str(tmp_path / name) in str(error.value)
    documents, tally = read(tmp_path, content, name, stop=False)
    assert len(tally.unreadable) == 1
    assert words in tally.unreadable[0].sentence
    assert len(documents) < 400
    assert tally.unreadable[0].file == f"wikipedia/{name}"  # no path of this machine


def test_what_came_before_the_damage_is_kept(tmp_path):
    documents, tally = read(tmp_path, DUMP[: len(DUMP) // 2], stop=False)
    assert 150 < len(documents) < 250
    assert len(DUMP) // 2 - 10 <= tally.unreadable[0].offset <= len(DUMP) // 2


@pytest.mark.parametrize("content", ["", HEAD + "</mediawiki>"])
def test_an_empty_dump_is_told(tmp_path, content):
    documents, tally = read(tmp_path, content)
    assert documents == []
    assert tally.counters["quarantined/empty_dump"] == 1


def test_missing(tmp_path):
    with pytest.raises(DataError, match=r"missing\.xml does not exist"):
        reader.slices(str(tmp_path / "missing.xml"))
    with pytest.raises(DataError, match="contains no file of source wikipedia"):
        reader.slices(str(tmp_path))


def test_markup_that_was_not_escaped_is_text(tmp_path):
    """A dump made by hand may hold `<ref>` as an element: its page is read, and so are
    the others.
    """
    broken = page(
        "One", "It is a tower by the sea.<ref>A book.</ref> It was built of stone by many people."
    )
    documents, tally = read(
        tmp_path,
        HEAD + broken + page("Two", "It is a tower by the sea.", number=2) + "</mediawiki>",
    )
    assert [document.title for document in documents] == ["One", "Two"]
    assert documents[0].paragraphs == (
        "It is a tower by the sea.A book. It was built of stone by many people.",
    )
    assert not tally.unreadable
