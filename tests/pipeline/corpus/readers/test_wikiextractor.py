"""WikiExtractor's files: titles, headings of the old format, leftovers of templates, damage."""

from __future__ import annotations

import json

import pytest

from cloze.core.errors import DataError
from cloze.pipeline.corpus.document import PLACEHOLDER
from cloze.pipeline.corpus.readers.base import ReadCounters
from cloze.pipeline.corpus.readers.encyclopedia.wikiextractor import is_heading, reader
from tests.pipeline.corpus.reading import options_of

OLD = """<doc id="12" url="http://x?curid=12" title="A "quoted" &amp; B">
A "quoted" & B

A (; , ""; born 1935) was a man of letters&lt;br&gt;.
Early life.
He was born in the town of C.
where formula_12 is the number of them.
Bibliography

</doc>
<doc id="13" url="http://x?curid=13" title="Mercury">
Mercury

Mercury may refer to:

</doc>
"""


def read(tmp_path, content, name="wiki_00", stop=True):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    file_slice = next(s for s in reader.slices(str(tmp_path)) if s.name == name)
    tally = ReadCounters(slice=file_slice, stop=stop)
    return list(reader.read(file_slice, options_of(reader, stop=stop), tally)), tally


def test_the_old_format(tmp_path):
    documents, tally = read(tmp_path, OLD, "AA/wiki_00")
    assert len(documents) == 1
    assert (documents[0].id, documents[0].title) == (
        "wikiextractor/AA/wiki_00/12",
        'A "quoted" & B',
    )
    assert documents[0].paragraphs == (
        "A (born 1935) was a man of letters.",
        "He was born in the town of C.",
        f"where {PLACEHOLDER} is the number of them.",
    )
    assert tally.counters["dropped_lines/heading"] == 1
    assert tally.counters["dropped_lines/fragment"] == 1
    assert tally.counters["dropped/disambiguation"] == 1
    assert tally.counters["read/documents"] == 2


def test_json_lines(tmp_path):
    lines = [
        json.dumps({"id": "5", "title": "T", "text": "T\n\nIt is a good text."}),
        "{broken",
        json.dumps({"id": "6"}),
    ]
    documents, tally = read(tmp_path, "\n".join(lines), "a.jsonl")
    assert [(d.id, d.paragraphs) for d in documents] == [
        ("wikiextractor/a.jsonl/5", ("It is a good text.",))
    ]
    assert tally.counters["quarantined/bad_json"] == 2


def test_bad_utf8_costs_one_document(tmp_path):
    data = OLD.encode().replace(b"letters", b"lett\xffers")
    documents, tally = read(tmp_path, data)
    assert documents == []
    assert tally.counters["quarantined/bad_utf8"] == 1
    assert data[tally.unreadable[0].offset] == 0xFF
    assert tally.counters["read/documents"] == 1


def test_a_file_that_breaks_off(tmp_path):
    with pytest.raises(DataError, match="ends inside document '13'"):
        read(tmp_path, OLD[:-8])
    documents, tally = read(tmp_path, OLD[:-8], stop=False)
    assert len(documents) == 1
    assert tally.counters["quarantined/truncated"] == 1


def test_a_file_of_something_else(tmp_path):
    documents, tally = read(tmp_path, "just some text\n" * 3)
    assert documents == []
    assert tally.counters["quarantined/no_documents"] == 1


@pytest.mark.parametrize(
    "line",
    [
        "Biography.",
        "Early life and education.",
        "Legal case (2012- ).",
        "## Heading",
        "Coke Zero 400.",
    ],
)
def test_headings(line):
    assert is_heading(line)


@pytest.mark.parametrize(
    "line",
    [
        "He died in 1950.",
        "The village has a population of 30.",
        "It was built by A. He lived there.",
        "A list of things",
    ],
)
def test_sentences_are_no_headings(line):
    assert not is_heading(line)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("It was founded in 1929 .", "It was founded in 1929."),
        ("It was sold in 1930 (“” ) .", "It was sold in 1930."),
        ('A ("Harbour" or haven) is there.', 'A ("Harbour" or haven) is there.'),
        (
            "The mound (or, more precisely, hill) lies here.",
            "The mound (or, more precisely, hill) lies here.",
        ),
        ("Bezd (; also known as Bezg) is a village.", "Bezd (also known as Bezg) is a village."),
        ("Obnora () is a river in the north.", "Obnora is a river in the north."),
        ('Said (; , ""; born 1935) was a man.', "Said (born 1935) was a man."),
    ],
)
def test_brackets_that_a_template_emptied_are_repaired(tmp_path, line, expected):
    documents, _ = read(tmp_path, f'<doc id="1" url="x" title="T">\nT\n\n{line}\n\n</doc>\n')
    assert documents[0].paragraphs == (expected,)


@pytest.mark.parametrize(
    "line",
    [
        "The village flourished.",
        "Rome fell in 476.",
        "It's the seat of a diocese.",
        "In 1998, he joined Lotus.",
    ],
)
def test_short_sentences_have_a_verb(line):
    assert not is_heading(line)


@pytest.mark.parametrize(
    ("host", "line", "stays"),
    [
        ("ko.wikipedia.org", "서울특별시는 대한민국의 수도이자 최대 도시이다.", True),
        ("de.wikipedia.org", "Berlin ist die Hauptstadt von Deutschland.", True),
        ("zh-min-nan.m.wikipedia.org", "Hà Nội là thủ đô của Việt Nam.", True),
        ("de.wikipedia.org", "# Die Geschichte der Stadt.", False),
        ("de.wikipedia.org", "Geschichte.", False),
        ("en.wikipedia.org", "Early life and later career.", False),
        ("simple.wikipedia.org", "Early life and later career.", False),
    ],
)
def test_short_sentences_of_other_languages_are_no_headings(tmp_path, host, line, stays):
    page = f'<doc id="1" url="https://{host}/wiki?curid=1" title="T">\nT\n\n{line}\n\n</doc>\n'
    documents, _ = read(tmp_path, page)
    assert documents[0].paragraphs == (line,) * stays


@pytest.mark.parametrize(
    "line", ["Works cited.", "Selected works.", "U.S. citizenship.", "Towns of the county."]
)
def test_headings_have_none(line):
    assert is_heading(line)
