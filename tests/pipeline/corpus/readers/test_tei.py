"""TEI XML, P5 and P4: chapters, verse, notes and breaks out, words that a line divides."""

from __future__ import annotations

import gzip

import pytest

from cloze.core.errors import DataError
from cloze.pipeline.corpus.readers.base import ReadCounters
from cloze.pipeline.corpus.readers.books.reader import reader
from tests.pipeline.corpus.readers.made import BODY, LONG, P5
from tests.pipeline.corpus.reading import options_of

P4 = (
    f'<?xml version="1.0"?>\n<!DOCTYPE TEI.2 SYSTEM "teixlite.dtd">\n'
    f"<TEI.2><teiHeader><fileDesc><titleStmt><title>The Towers</title></titleStmt></fileDesc></"
    f"teiHeader><text>{BODY}</text></TEI.2>"
)


def read(tmp_path, text, name="a.xml", stop=True, encoding="utf-8"):
    path = tmp_path / name
    data = text.encode(encoding) if isinstance(text, str) else text
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    file_slice = reader.slices(str(path))[0]
    tally = ReadCounters(slice=file_slice, stop=stop)
    return list(reader.read(file_slice, options_of(reader, stop=stop), tally)), tally


@pytest.mark.parametrize(
    "text",
    [P5, P4, P5.replace("<div ", "<div1 ").replace("</div>", "</div1>").replace("<div>", "<div1>")],
)
@pytest.mark.parametrize("name", ["a.xml", "a.tei", "a.xml.gz"])
def test_a_book(tmp_path, text, name):
    documents, tally = read(tmp_path, text, name)
    long = LONG.strip()
    assert [d.title for d in documents] == [
        "The Towers: Preface",
        "The Towers: Chapter One",
        "The Towers: Part",
        "The Towers: Chapter Two",
        "The Towers: Epilogue",
    ]
    assert documents[0].paragraphs == (long,)
    assert documents[1].paragraphs == (
        long,
        "The captain and the captain and the oldfashioned one said: It is tower.",
        "A well-known word, New-York, and a line break; software and hyphen; Mr. Saint Paul.",
        "Sing, goddess, the anger, of one who was angry.",
        "First line second line",
        "Third line",
        "A quoted paragraph.",
        "Text with mots, ended.",
    )
    assert documents[2].paragraphs == (f"To be, or not to be. {long}",)
    assert documents[3].paragraphs == (f"After the part it goes on. {long}",)
    assert documents[0].id == f"books/{name}/1"
    assert not tally.unreadable


def test_entities_of_old_tei(tmp_path):
    text = P4.replace("quoted", "caf&eacute; &mdash; na&iuml;f &lt;b&gt; &unknown; quoted")
    documents, _ = read(tmp_path, text)
    assert "A café — naïf <b> quoted paragraph." in documents[1].paragraphs


def test_utf_16(tmp_path):
    documents, _ = read(
        tmp_path,
        P5.replace('encoding="UTF-8"', 'encoding="UTF-16"').replace("quoted", "größere"),
        encoding="utf-16",
    )
    assert "A größere paragraph." in documents[1].paragraphs


def test_entities_do_not_expand(tmp_path):
    bomb = (
        '<!DOCTYPE TEI [<!ENTITY a "ha ha ha ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;"><!ENTITY c '
        '"&b;&b;&b;&b;&b;&b;"><!ENTITY x SYSTEM "file:///etc/passwd">]>'
    )
    documents, _ = read(
        tmp_path, P5.replace("<TEI", bomb + "<TEI", 1).replace("quoted", "&c; &x; quoted")
    )
    assert "A quoted paragraph." in documents[1].paragraphs
    assert "root:" not in "\n".join(d.text for d in documents)
    assert "ha ha" not in "\n".join(d.text for d in documents)


@pytest.mark.parametrize(
    "text",
    [
        P5[:3000],
        P5.replace("</p>", "", 1),
        P5.replace("Chapter", "Chap\0ter"),
        "<TEI><a></b></TEI>",
    ],
)
def test_broken_xml(tmp_path, text):
    with pytest.raises(DataError, match="XML cannot be read"):
        read(tmp_path, text)
    assert read(tmp_path, text, stop=False)[1].counters["quarantined/damaged_tei"] == 1


def test_xml_of_another_kind(tmp_path):
    documents, tally = read(
        tmp_path, "<?xml version='1.0'?><book><para>It is a page.</para></book>"
    )
    assert documents == []
    assert tally.counters["quarantined/not_tei"] == 1


def test_marks_of_notes_go_and_other_references_stay(tmp_path):
    marks = (
        'a<ref target="#n1">1</ref> b<ref target="#n2">[*]</ref> <ref target="#ch2">the second '
        "chapter</ref> quoted"
    )
    documents, _ = read(tmp_path, P5.replace("quoted", marks))
    assert "A a b the second chapter quoted paragraph." in documents[1].paragraphs


def test_deep_nesting_ends(tmp_path):
    for text in (
        P5.replace("quoted", "<hi>" * 200 + "x" + "</hi>" * 200),
        P5.replace("<body>", "<body>" + "<div>" * 100).replace(
            "</body>", "</div>" * 100 + "</body>"
        ),
    ):
        assert read(tmp_path, text, stop=False)[0]
    deep = P5.replace("quoted", "<hi>" * 100_000 + "x" + "</hi>" * 100_000)
    assert read(tmp_path, deep, stop=False)[1].counters["quarantined/damaged_tei"] == 1
