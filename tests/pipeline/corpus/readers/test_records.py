"""JSON lines as Python, pandas, jq, Spark, R and JavaScript write them; ids keep their exact text."""

from __future__ import annotations

import json
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.core.errors import DataError
from cloze.pipeline.corpus.readers.records import get_nested, parse, plain
from tests.pipeline.corpus.readers.test_tables import read

TEXT = "The mill stands by the river."


def names(path: Path, data: bytes, fields: Any = ()) -> list[str]:
    """Return the ids that the documents of a file get."""
    path.write_bytes(data)
    documents, tally = read("jsonl", path, fields)
    assert not tally.unreadable
    return [document.id.removeprefix(f"jsonl/{path.name}/") for document in documents]


WRITTEN = {
    "Python's NaN": b'{"id": "a", "text": "T", "loss": NaN}',
    "Infinity": b'{"id": "a", "text": "T", "loss": Infinity, "gain": -Infinity}',
    "a NaN beside": b'{"id": "a", "text": "T", "scores": [1.5, NaN, {"x": NaN}]}',
    "a mark at the line": b'\xef\xbb\xbf{"id": "a", "text": "T"}',
    "jq --seq": b'\x1e{"id": "a", "text": "T"}',
    "carriage return": b'{"id": "a", "text": "T"}\r',
    "a tab in a string": b'{"id": "a", "title": "x\ty\x01", "text": "T"}',
    "an escaped lone surrogate": b'{"id": "a", "title": "\\ud800", "text": "T"}',
    "surrogates in UTF-8": b'{"id": "a", "title": "\xed\xa0\xbd\xed\xb8\x80", "text": "T"}',
    "a large number": b'{"id": "a", "text": "T", "hash": 123456789012345678901234567890}',
    "an integer of 5,000 digits": b'{"id": "a", "text": "T", "x": ' + b"9" * 5000 + b"}",
    "a number beyond floats": b'{"id": "a", "text": "T", "x": 1e999}',
    "a repeated key": b'{"id": "b", "text": "U", "text": "T", "id": "a"}',
    "R boxes": b'{"id": ["a"], "text": ["T"], "title": ["t"]}',
    "nulls in a list": b'{"id": "a", "text": [null, "T"]}',
}


@pytest.mark.parametrize("name", WRITTEN)
def test_what_programs_write_is_read(tmp_path: Path, name: str) -> None:
    data = WRITTEN[name].replace(b'"T"', json.dumps(TEXT).encode())
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "First."}\n' + data + b'\n{"text": "Last."}\n')
    documents, tally = read("jsonl", tmp_path / "a.jsonl")
    assert not tally.unreadable
    assert [document.paragraphs[0] for document in documents] == ["First.", TEXT, "Last."]
    assert documents[1].id == "jsonl/a.jsonl/a"


def test_an_array_of_such_objects_is_read(tmp_path: Path) -> None:
    data = b'[{"id": 1.0, "text": "One.", "x": NaN},\n {"id": 2.0, "text": "Two."}]'
    assert names(tmp_path / "a.json", data) == ["1.0", "2.0"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("12345678901234567890123400", "12345678901234567890123400"),
        ("-12345678901234567890123400", "-12345678901234567890123400"),
        ("18446744073709551616", "18446744073709551616"),
        ("9007199254740993", "9007199254740993"),
        ("-7", "-7"),
        ("0", "0"),
        ("1.10", "1.10"),
        ("1.0", "1.0"),
        ("1E5", "1E5"),
        ("0.12345678901234567890123", "0.12345678901234567890123"),
        ("true", "true"),
        ("false", "false"),
        ("null", "#1"),
        ('""', "#1"),
        ("NaN", "#1"),
        ('"#1"', "##1"),
        ('{"$oid": "507f1f77"}', '{"$oid":"507f1f77"}'),
        ('{"n": 12345678901234567890123401}', '{"n":12345678901234567890123401}'),
        ("[1, 2]", "[1,2]"),
    ],
)
def test_an_id_keeps_its_exact_text(tmp_path: Path, value: str, text: str) -> None:
    assert names(tmp_path / "a.jsonl", f'{{"id": {value}, "text": "{TEXT}"}}'.encode()) == [text]


def test_long_ids_stay_apart(tmp_path: Path) -> None:
    ids = [str(12345678901234567890123400 + n) for n in range(3)]
    data = "".join(f'{{"id": {name}, "text": "It is {name}."}}\n' for name in ids)
    assert names(tmp_path / "a.jsonl", data.encode()) == ids
    assert names(tmp_path / "b.jsonl", data.encode(), [("id", "id")]) == ids


@given(
    st.lists(
        st.one_of(
            st.integers(-(10**40), 10**40),
            st.decimals(allow_nan=False, allow_infinity=False, places=20).map(str),
            st.text(min_size=1).filter(lambda text: "\0" not in text),
            st.floats(allow_nan=False),
        ),
        unique_by=lambda value: json.dumps(str(value)),
        max_size=20,
    )
)
@settings(max_examples=60, deadline=None)
def test_different_ids_stay_different(ids: list[Any]) -> None:
    """Whatever else the record holds, and whichever parser is needed."""
    found = []
    for number, value in enumerate(ids):
        record = {"id": value, "other": float("nan") if number % 2 else 1}
        (parsed,) = parse(json.dumps(record).encode(), "id")
        found.append(plain(parsed["id"]))
    assert found == [str(value) for value in ids]


def test_values_of_every_kind_are_text() -> None:
    values = [b"\xff\x00", uuid.UUID(int=1), Decimal("1.20"), True, [b"x"], {"a": [b"x", None]}]
    assert [plain(value) for value in values] == [
        "ff00",
        "00000000-0000-0000-0000-000000000001",
        "1.20",
        "true",
        "x",
        '{"a":["x",null]}',
    ]
    assert [plain(None), plain(float("nan")), plain([None])] == ["", "", ""]


@pytest.mark.parametrize("between", ["", " ", "\r", "\ufeff", "\x1e"])
def test_objects_that_follow_each_other_on_a_line(tmp_path: Path, between: str) -> None:
    rows = [json.dumps({"text": f"It is {number}."}) for number in range(3)]
    data = f'{between.join(rows)}\n{{"text": "Next."}}\n'
    assert names(tmp_path / "a.jsonl", data.encode()) == ["#1", "#1.2", "#1.3", "#2"]


PRETTY = json.dumps({"id": 1, "text": TEXT}, indent=2)


@pytest.mark.parametrize(
    "data",
    [
        PRETTY,
        f"{PRETTY}\n{PRETTY}",
        f'{{ "id": 1,\n"text": "{TEXT}" }}\n',
        f'{{"title": "Größe 東京", "id": 1\n,"text": "{TEXT}"}}\n',
        f'{{"text":\n"{TEXT}"}}\n',
    ],
)
def test_json_over_several_lines_is_named(tmp_path: Path, data: str) -> None:
    (tmp_path / "a.jsonl").write_text(data)
    with pytest.raises(DataError, match=r"JSON over several lines.*jq -c"):
        read("jsonl", tmp_path)


@pytest.mark.parametrize(
    "bad",
    [
        '{"id": 3, "text": "It is.",}',
        '{"id": 3, "text": "It is."},',
        "{'text': 'It is.'}",
        "INFO x",
    ],
)
def test_a_bad_line_is_named_by_its_number(tmp_path: Path, bad: str) -> None:
    (tmp_path / "a.jsonl").write_text(f'{{"text": "One."}}\n\n{bad}\n{{"text": "Two."}}\n')
    documents, tally = read("jsonl", tmp_path)
    assert len(documents) == 2
    (entry,) = tally.unreadable
    assert "(line 3)" in entry.sentence
    assert entry.reason == "bad_json"


@pytest.mark.parametrize(
    ("record", "found"),
    [
        ({"meta.text": 1, "meta": {"text": 2}}, 1),
        ({"meta": {"text": 2}}, 2),
        ({"meta": {"text": None}}, None),
        ({"meta": [1]}, None),
        ({"meta": None}, None),
        (5, None),
    ],
)
def test_a_key_with_a_dot_comes_before_a_path(record: Any, found: Any) -> None:
    assert get_nested(record, "meta.text") == found


def test_keys_with_dots_inside_a_path() -> None:
    record = {"a.b": {"c": {"d.e": 1}}, "a": {"x": 2}}
    assert get_nested(record, "a.b.c.d.e") == 1
    assert get_nested(record, "a.x") == 2


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_other_encodings_of_unicode(tmp_path: Path, encoding: str) -> None:
    data = f'{{"id": 1.50, "text": "{TEXT}"}}\r\n' * 2
    assert names(tmp_path / "a.jsonl", data.encode(encoding)) == ["1.50", "1.50"]
