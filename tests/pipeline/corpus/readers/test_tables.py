"""Sources of records and of plain text: jsonl, parquet, arrow, text; fields by name, bad lines,
parts; and where sources may lie.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from cloze.core.errors import DataError
from cloze.pipeline.corpus.readers import READERS, table_files
from cloze.pipeline.corpus.readers.base import ReadCounters
from cloze.pipeline.corpus.readers.plain_text import paragraphs
from tests.pipeline.corpus.reading import options_of
from tests.pipeline.corpus.script_texts import TEXTS

ROWS = [
    {"id": "a", "title": "One", "text": "It is one.\nIt goes on."},
    {"id": 7, "title": None, "text": "It is two."},
    {"id": "c", "title": "Three", "text": "Das ist größer, 東京."},
]
EXPECTED = [
    ("a", "One", ("It is one.", "It goes on.")),
    ("7", "", ("It is two.",)),
    ("c", "Three", ("Das ist größer, 東京.",)),
]


def read(kind: str, path: Any, fields: Any = (), **settings: Any) -> Any:
    """(documents, tally of all slices together)"""
    reader = READERS.find(kind)
    documents, whole = [], None
    for file_slice in reader.slices(str(path)):
        tally = ReadCounters(
            slice=replace(file_slice, fields=tuple(fields)), stop=settings.get("stop", True)
        )
        documents += reader.read(tally.slice, options_of(reader, **settings), tally)
        if whole is None:
            whole = tally
        else:
            whole.counters.update(tally.counters)
            whole.unreadable += tally.unreadable
    return documents, whole


def short(documents):
    return [(d.id.rsplit("/", 1)[1], d.title, d.paragraphs) for d in documents]


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


TABLE = pa.table(
    {
        "id": pa.array(["a", "7", "c"]),
        "title": pa.array(["One", None, "Three"]),
        "text": pa.array([row["text"] for row in ROWS]),
        "junk": pa.array([1, 2, 3]),
    }
)


def write_table(path, table):
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=2)
    elif path.name.startswith("stream"):
        with pa.ipc.new_stream(path, table.schema) as sink:
            sink.write_table(table, max_chunksize=2)
    elif path.name.startswith("old"):
        feather.write_feather(table, path, version=1)
    elif path.suffix == ".feather":
        feather.write_feather(table, path)
    else:
        with pa.ipc.new_file(path, table.schema) as sink:
            sink.write_table(table, max_chunksize=2)


@pytest.mark.filterwarnings(
    "ignore:Feather V1 files are deprecated"
)  # which old corpora still come in
@pytest.mark.parametrize(
    "name", ["a.parquet", "file.arrow", "stream.arrow", "a.feather", "old.feather"]
)
def test_tables(tmp_path, name):
    kind = "parquet" if name.endswith("parquet") else "arrow"
    write_table(tmp_path / name, TABLE)
    documents, _tally = read(kind, tmp_path)
    assert short(documents) == EXPECTED
    assert documents[0].id == f"{kind}/{name}/a"
    renamed = TABLE.rename_columns(["key", "headline", "body", "junk"])
    write_table(tmp_path / name, renamed)
    documents, _ = read(kind, tmp_path, [("text", "body"), ("id", "key"), ("title", "headline")])
    assert short(documents) == EXPECTED
    documents, _ = read(kind, tmp_path, [("text", "body")])
    assert [d.id.rsplit("/", 1)[1] for d in documents] == ["#1", "#2", "#3"]
    with pytest.raises(
        DataError,
        match=(
            r"no column 'text' but key, headline, body, junk; name the column by --column "
            r"text=COLUMN"
        ),
    ):
        read(kind, tmp_path)
    assert read(kind, tmp_path, stop=False)[1].counters["quarantined/no_text_field"] == 1


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_nested_columns_and_other_types(tmp_path, name):
    table = pa.table(
        {
            "meta": pa.array([{"url": "u1", "n": 1}, None]),
            "text": pa.array([b"It is one.", b"It is \xff bad."]),
        }
    )
    write_table(tmp_path / name, table)
    kind = "parquet" if name.endswith("parquet") else "arrow"
    documents, tally = read(kind, tmp_path, [("id", "meta.url")])
    assert short(documents) == [("u1", "", ("It is one.",))]
    assert tally.counters["quarantined/bad_utf8"] == 1
    write_table(
        tmp_path / name,
        pa.table(
            {"text": pa.array([["It is one.", "It is two."], None]), "id": pa.array([1.5, 2.5])}
        ),
    )
    documents, tally = read(kind, tmp_path)
    assert short(documents) == [("1.5", "", ("It is one.", "It is two."))]
    assert tally.counters["quarantined/no_text"] == 1


def test_a_large_parquet_file_is_read_in_parts(tmp_path, monkeypatch):
    rows = 1000
    table = pa.table(
        {"text": [f"It is row {n}. " * 20 for n in range(rows)], "n": list(range(rows))}
    )
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=64)
    whole, _ = read("parquet", tmp_path)
    monkeypatch.setattr(table_files, "SLICE_BYTES", 4000)
    slices = READERS.find("parquet").slices(str(tmp_path))
    assert len(slices) > 3
    assert [file_slice.span[0] for file_slice in slices[1:]] == [
        file_slice.span[1] for file_slice in slices[:-1]
    ]
    documents, _ = read("parquet", tmp_path)
    assert documents == whole
    assert len(documents) == rows
    assert len({d.id for d in documents}) == rows


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_a_broken_table(tmp_path, name):
    kind = "parquet" if name.endswith("parquet") else "arrow"
    write_table(tmp_path / name, TABLE)
    data = (tmp_path / name).read_bytes()
    for broken in (
        data[: len(data) // 2],
        b"",
        b"no table at all",
        data[:100] + b"\xa5" * 200 + data[300:],
    ):
        (tmp_path / name).write_bytes(broken)
        with pytest.raises(DataError):
            read(kind, tmp_path)
        _, tally = read(kind, tmp_path, stop=False)
        assert tally.counters["quarantined/damaged"] == 1


WRAPPED = """It is a text whose lines were wrapped at a width of sixty by
the program of its author, and so the ends of its lines mean
nothing at all.

It has a second paragraph, which is wrapped like the first,
and which ends here.
"""


def test_paragraphs():
    assert paragraphs(WRAPPED) == (
        "It is a text whose lines were wrapped at a width of sixty by the program of its author, "
        "and so the ends of its lines mean nothing at all.",
        "It has a second paragraph, which is wrapped like the first, and which ends here.",
    )
    assert paragraphs("A line.\n\nAnother line.\r\nA third one. \n") == (
        "A line.",
        "Another line.",
        "A third one.",
    )
    verse = "Roses are red,\nviolets are blue,\nsugar is sweet,\nand so are you.\n"
    assert paragraphs(verse) == tuple(verse.split("\n")[:-1])
    assert paragraphs("") == paragraphs("\n \n") == ()


@pytest.mark.parametrize("language", ["zh", "ja", "th"])
def test_paragraphs_of_scripts_without_spaces(language):
    text = TEXTS[language]
    lines = [text[start : start + 40] for start in range(0, len(text), 40)]
    if language == "th":
        lines = ["\u0e01" * 38 + "\u0e17\u0e35\u0e48"] * 3  # a letter with two marks at the end
    wrapped = "\n".join(lines)
    assert paragraphs(f"{wrapped}\n\n{wrapped}") == ("".join(lines),) * 2
    lengths = (66, 70, 63, 80, 45)
    separate = [text[:length].strip() + "。" * (language == "zh") for length in lengths]
    assert paragraphs("\n".join(separate)) == tuple(separate)
    titles = [f"“{text[:40]}", f"“{text[:43]}", f"“{text[:41]}", f"“{text[:45]}"]
    assert paragraphs("\n".join(titles)) == tuple(titles)


def test_text_one_document_a_file(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "some_file.txt").write_text(WRAPPED)
    (tmp_path / "in" / "b.txt.gz").write_bytes(gzip.compress("Größe ist gut.".encode("utf-16")))
    documents, tally = read("text", tmp_path)
    assert [(d.id, d.title) for d in documents] == [
        ("text/in/b.txt.gz", "b"),
        ("text/in/some_file.txt", "some file"),
    ]
    assert documents[0].paragraphs == ("Größe ist gut.",)
    assert len(documents[1].paragraphs) == 2
    assert not tally.unreadable


def test_text_blank_lines_between_documents(tmp_path):
    (tmp_path / "a.txt").write_bytes(
        b"\n\nOne sentence.\nAnother one.\n\n\nSecond document.\r\n \r\nBad \xc3\xa9\xff one "
        b"\xc3\xa9\xc3\xa9.\n\nLast."
    )
    documents, tally = read("text", tmp_path, blank_line_documents=True)
    assert short(documents) == [
        ("1", "", ("One sentence.", "Another one.")),
        ("2", "", ("Second document.",)),
        ("4", "", ("Last.",)),
    ]
    assert tally.counters["quarantined/bad_utf8"] == 1
    assert (tmp_path / "a.txt").read_bytes()[tally.unreadable[0].offset] == 0xFF


def test_the_sample_of_google_bert(shared_data):
    documents, _ = read(
        "text",
        shared_data / "reference" / "google-bert" / "sample_text.txt",
        blank_line_documents=True,
    )
    text = (shared_data / "reference" / "google-bert" / "sample_text.txt").read_text().strip()
    assert [list(d.paragraphs) for d in documents] == [
        [line.strip() for line in block.split("\n")] for block in text.split("\n\n")
    ]


def test_common_crawl_documents(shared_data):
    documents, tally = read("jsonl", shared_data / "web" / "*.jsonl.gz")
    assert len(documents) == 20
    assert all(d.paragraphs for d in documents)
    assert not tally.unreadable


@pytest.mark.parametrize("scheme", ["local", "memory"])
def test_directories_patterns_and_urls(tmp_path, scheme):
    if scheme == "memory":
        base = f"memory://{tmp_path.name}"
        filesystem = fsspec.filesystem("memory")
        prefix = f"/{tmp_path.name}"
    else:
        base, filesystem, prefix = str(tmp_path), fsspec.filesystem("file"), str(tmp_path)
    for name in ("x.txt", "a/y.txt", "a/b/z.txt", "a/b/z.md", "a/_hidden/h.txt", ".git/h.txt"):
        filesystem.makedirs(f"{prefix}/books/{name}".rpartition("/")[0], exist_ok=True)
        filesystem.pipe(f"{prefix}/books/{name}", b"It is some text.")

    def names(path):
        return [file_slice.name for file_slice in READERS.find("text").slices(path)]

    assert names(f"{base}/books") == ["a/b/z.txt", "a/y.txt", "x.txt"]
    assert names(f"{base}/books/**/*.txt") == ["a/b/z.txt", "a/y.txt", "x.txt"]
    assert names(f"{base}/books/a/*.txt") == ["y.txt"]
    assert names(f"{base}/books/[ax]*") == ["a/b/z.txt", "a/y.txt", "x.txt"]
    assert names(f"{base}/books/a/b/z.m?") == ["z.md"]
    assert names(f"{base}/books/x.txt") == ["x.txt"]
    assert [d.id for d in read("text", f"{base}/books/*/y.txt")[0]] == ["text/a/y.txt"]
    with pytest.raises(DataError, match=r"matches no file of source text; check the pattern"):
        names(f"{base}/books/*.epub")
    with pytest.raises(DataError, match="does not exist"):
        names(f"{base}/nothing.txt")


def test_a_name_with_a_wildcard_is_a_name_first(tmp_path):
    (tmp_path / "a[1].txt").write_text("It is one.")
    (tmp_path / "a1.txt").write_text("It is two.")
    assert [
        file_slice.name for file_slice in READERS.find("text").slices(str(tmp_path / "a[1].txt"))
    ] == ["a[1].txt"]


def test_breaks_of_html_in_text_are_breaks(tmp_path):
    text = "I loved it.<br /><br />The end<br/>was long. <BR><BR>In HTML, <br> breaks a line."
    (tmp_path / "a.jsonl").write_bytes(lines([{"id": "a", "text": text}]))
    ((_, _, found),) = short(read("jsonl", tmp_path)[0])
    assert found == ("I loved it.", "The end", "was long.", "In HTML, <br> breaks a line.")
