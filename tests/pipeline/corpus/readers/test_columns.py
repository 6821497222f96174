"""Columns of every Arrow type that a text, title, address, id or licence can hide in."""

from __future__ import annotations

import bz2
import datetime
import gzip
import io
import pickle
import sqlite3
import uuid
import zipfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cloze.core.errors import DataError
from tests.pipeline.corpus.readers.test_tables import read, write_table

TEXT = "It is a text."
STRING = pa.array(["x1"])
TEXTS = {
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "string_view": pa.string_view(),
    "binary_view": pa.binary_view(),
    "large_string": pa.large_string(),
    "fixed": pa.binary(2),
    "list": pa.list_(pa.string()),
    "large_list": pa.large_list(pa.binary()),
    "list_view": pa.list_view(pa.string()),
    "fixed_list": pa.list_(pa.string(), 1),
}
COLUMNS = {
    **{
        name: pa.array([["x1"] if "list" in name else b"x1"], kind)
        if "binary" in name or "list" in name or name == "fixed"
        else STRING.cast(kind)
        for name, kind in TEXTS.items()
    },
    "dictionary": pa.array([b"x1"]).dictionary_encode(),
    "dictionary of strings": STRING.dictionary_encode(),
    "list of dictionary": pa.array([["x1"]], pa.list_(pa.dictionary(pa.int32(), pa.string()))),
    "padded": pa.array([b"x1\0\0"], pa.binary(4)),
    "json": pa.array(["x1"], pa.json_()),
    "extension": pa.ExtensionArray.from_storage(pa.opaque(pa.string(), "t", "v"), STRING),
    "run ends": pa.RunEndEncodedArray.from_arrays(pa.array([1], pa.int32()), STRING),
}
OTHERS = [
    (pa.array([2**64 - 1], pa.uint64()), "18446744073709551615"),
    (pa.array([-5], pa.int8()), "-5"),
    (pa.array([Decimal("12345678901234567890123456789.10")]), "12345678901234567890123456789.10"),
    (pa.array([1_700_000_000_123_456_789], pa.timestamp("ns")), "2023-11-14 22:13:20.123456789"),
    (pa.array([1], pa.timestamp("ms", "UTC")), "1970-01-01 00:00:00.001Z"),
    (pa.array([datetime.date(2020, 1, 2)]), "2020-01-02"),
    (pa.array([1_234_567_891], pa.time64("ns")), "00:00:01.234567891"),
    (pa.array([uuid.UUID(int=5).bytes], pa.uuid()), str(uuid.UUID(int=5))),
    (pa.array([uuid.UUID(int=2**127 + 5).bytes], pa.binary(16)), "8" + "0" * 30 + "5"),
    (pa.array([True]), "true"),
    (pa.array([1.5]), "1.5"),
    (pa.array([float("nan")]), "#1"),
    (pa.array([None], pa.string()), "#1"),
    (pa.nulls(1), "#1"),
    (pa.array([""]), "#1"),
    (pa.array([["a", "b"]]), '["a","b"]'),
    (pa.array([{"a": 1}]), '{"a":1}'),
]


def record_of(path: Path, table: pa.Table, fields: Any = ()) -> Any:
    write_table(path, table)
    (document,), tally = read("arrow" if path.suffix == ".arrow" else "parquet", path, fields)
    assert not tally.unreadable
    return document


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("ending", ["arrow", "parquet"])
def test_every_field_is_read_from_every_type(tmp_path: Path, name: str, ending: str) -> None:
    if ending == "parquet" and name in ("list_view", "run ends", "extension"):
        pytest.skip("Parquet has no such type")
    column = COLUMNS[name]
    names = ["text", "id", "title", "url", "license"]
    document = record_of(tmp_path / f"a.{ending}", pa.table([column] * 5, names=names))
    assert document.id.rsplit("/", 1)[1] == document.title == document.url == "x1"
    assert document.licence == "x1"
    assert "".join(document.paragraphs).rstrip("\0") == "x1"


@pytest.mark.parametrize(("column", "text"), OTHERS, ids=[str(c.type) for c, _ in OTHERS])
@pytest.mark.parametrize("ending", ["arrow", "parquet"])
def test_what_is_no_string_keeps_its_text(
    tmp_path: Path, column: pa.Array, text: str, ending: str
) -> None:
    table = pa.table({"text": [TEXT], "id": column, "title": column})
    document = record_of(tmp_path / f"a.{ending}", table)
    assert document.id.removeprefix(f"{document.source}/a.{ending}/") == text
    assert document.title == ("" if text == "#1" else text)


@pytest.mark.parametrize("ending", ["arrow", "parquet"])
def test_a_column_with_a_dot_comes_before_a_path(tmp_path: Path, ending: str) -> None:
    path, fields = tmp_path / f"a.{ending}", [("text", "m.text"), ("id", "m.n.id")]
    nested = pa.array([{"text": "No.", "n": {"id": 7}}])
    table = pa.table({"m": nested, "m.text": [TEXT]})
    document = record_of(path, table, fields)
    assert (document.paragraphs, document.id.rsplit("/", 1)[1]) == ((TEXT,), "7")
    document = record_of(path, table.select(["m"]), fields)
    assert document.paragraphs == ("No.",)


@pytest.mark.parametrize("ending", ["arrow", "parquet"])
def test_a_wrong_path_is_named_with_the_right_ones(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.{ending}"
    write_table(path, pa.table({"m": [{"body": TEXT}], "n": [1]}))
    with pytest.raises(DataError, match=r"no column 'm\.text' but m, n, m\.body; name the column"):
        read(path.suffix[1:], path, [("text", "m.text")])
    write_table(path, pa.table({f"c{number}": [1] for number in range(200)}))
    with pytest.raises(DataError, match="c11 and 188 more"):
        read(path.suffix[1:], path)


def packed(*names: str) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        for name in names:
            archive.writestr(
                name, "x" if name != "mimetype" else "application/vnd.oasis.opendocument"
            )
    return sink.getvalue()


def database() -> bytes:
    with sqlite3.connect(":memory:") as connection:
        connection.execute("create table a (b)")
        return connection.serialize()


TYPES = {
    "7-zip archive": b"7z\xbc\xaf\x27\x1c\0\4" + bytes(30),
    "RAR archive": b"Rar!\x1a\x07\x01\x00" + bytes(30),
    "packed by lz4": b"\x04\x22\x4d\x18" + bytes(30),
    "zip archive": packed("a.csv"),
    "Excel workbook": packed("[Content_Types].xml", "_rels/.rels", "xl/workbook.xml"),
    "Word document": packed("[Content_Types].xml", "word/document.xml"),
    "OpenDocument file": packed("mimetype", "content.xml"),
    "old Office document": b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600),
    "SQLite database": database(),
    "pickle": pickle.dumps([TEXT]),
    "PDF": b"%PDF-1.7\n1 0 obj",
    "HTML page": b"<!doctype html><html><body>Text</body></html>",
    "packed by gzip": gzip.compress(TEXT.encode()),
}


@pytest.mark.parametrize("kind", ["text", "books", "jsonl", "parquet", "arrow", "babylm"])
@pytest.mark.parametrize("name", TYPES)
def test_a_file_of_another_type_is_named(tmp_path: Path, name: str, kind: str) -> None:
    (tmp_path / "a.dat").write_bytes(TYPES[name])
    with pytest.raises(DataError, match=f"the file is (an? )?{name}, no.* for source {kind}"):
        read(kind, tmp_path / "a.dat")
    _, tally = read(kind, tmp_path / "a.dat", stop=False)
    assert len(tally.unreadable) == 1


@pytest.mark.parametrize(
    ("ending", "data"),
    [
        *((ending, b'{"text": "It is."}\n' * 9) for ending in (".gz", ".bz2", ".xz", ".zst")),
        (".bz2", gzip.compress(data=b'{"text": "It is."}\n', mtime=0)),
        (".gz", bz2.compress(b'{"text": "It is."}\n')),
    ],
)
def test_a_name_that_promises_another_packing_is_named(
    tmp_path: Path, ending: str, data: bytes
) -> None:
    (tmp_path / f"a.jsonl{ending}").write_bytes(data)
    with pytest.raises(DataError, match="begins otherwise than its ending says: rename it"):
        read("jsonl", tmp_path / f"a.jsonl{ending}")


def test_a_damaged_stream_is_no_other_format(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(b'{"text": "It is."}\n' * 999))
    data[12:30] = b"\xff" * 18
    (tmp_path / "a.jsonl.gz").write_bytes(data)
    with pytest.raises(DataError, match="cannot be unpacked .*get the file again"):
        read("jsonl", tmp_path / "a.jsonl.gz")


def test_a_time_that_no_calendar_has_is_damage(tmp_path: Path) -> None:
    times = pa.StructArray.from_arrays([pa.array([2**62], pa.timestamp("us"))], ["at"])
    write_table(tmp_path / "a.arrow", pa.table({"text": [TEXT], "id": times}))
    with pytest.raises(DataError, match="cannot be read after row 0"):
        read("arrow", tmp_path / "a.arrow")


def test_parquet_written_by_rows_of_bytes(tmp_path: Path) -> None:
    """As Impala, Hive and Spark write strings: binary, without the annotation of text."""
    schema = pa.schema([(name, pa.binary()) for name in ("id", "title", "url", "license", "text")])
    rows = [{name: f"{name} {n}".encode() for name in schema.names} for n in range(3)]
    pq.write_table(pa.Table.from_pylist(rows, schema), tmp_path / "a.parquet")
    documents, _ = read("parquet", tmp_path)
    assert [document.id for document in documents] == [
        f"parquet/a.parquet/id {n}" for n in range(3)
    ]
    assert [(d.title, d.url, d.licence) for d in documents][2] == ("title 2", "url 2", "license 2")
