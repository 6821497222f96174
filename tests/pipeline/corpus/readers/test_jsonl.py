"""JSON Lines and arrays of JSON: fields by name, and what bad lines cost."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma

import pytest
from backports import zstd

from cloze.core.errors import DataError
from tests.pipeline.corpus.readers.test_tables import EXPECTED, ROWS, lines, read, short


@pytest.mark.parametrize(
    ("ending", "pack"),
    [
        ("", bytes),
        (".gz", gzip.compress),
        (".bz2", bz2.compress),
        (".xz", lzma.compress),
        (".zst", zstd.compress),
    ],
)
def test_jsonl(tmp_path, ending, pack):
    (tmp_path / f"b.jsonl{ending}").write_bytes(pack(lines(ROWS)))
    documents, tally = read("jsonl", tmp_path)
    assert short(documents) == EXPECTED
    assert documents[0].id == f"jsonl/b.jsonl{ending}/a"
    assert tally.counters["read/documents"] == 3
    assert not tally.unreadable


def test_jsonl_in_utf_16_and_without_a_last_newline(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(lines(ROWS).decode().rstrip().encode("utf-16"))
    assert short(read("jsonl", tmp_path)[0]) == EXPECTED


def test_fields_by_name(tmp_path):
    rows = [
        {"meta": {"url": "u1", "t": "T"}, "content": "It is one."},
        {"meta.url": "u2", "meta": {}, "content": ["It is two.", "And more\nof it."]},
    ]
    (tmp_path / "a.jsonl").write_bytes(lines(rows))
    documents, _ = read(
        "jsonl", tmp_path, [("text", "content"), ("id", "meta.url"), ("title", "meta.t")]
    )
    assert short(documents) == [
        ("u1", "T", ("It is one.",)),
        ("u2", "", ("It is two.", "And more", "of it.")),
    ]


BAD = [
    (b"{broken", "bad_json"),
    (b'{"id": 1, "text": "\xff\xfe"}', "bad_utf8"),
    (b'{"id": 1, "text": "a\0b"}', "bad_json"),
    (b'["a", "list"]', "bad_json"),
    (b"17", "bad_json"),
    (b'{"id": 1, "body": "no text"}', "no_text"),
    (b'{"id": 1, "text": 17}', "no_text"),
    (b'{"id": 1, "text": {"a": "b"}}', "no_text"),
    (b'{"text": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "bad_json"),
    (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "bad_json"),
]


def test_bad_lines_cost_themselves_alone(tmp_path):
    data, offsets = b"", []
    for bad, _ in BAD:
        data += b'{"text": "It is good."}\n'
        offsets.append(len(data))
        data += bad + b"\n"
    (tmp_path / "a.jsonl").write_bytes(data + b'\n  \n{"text": "It is good."}')
    documents, tally = read("jsonl", tmp_path)  # never a reason to stop
    assert len(documents) == len(BAD) + 1
    assert [(entry.offset, entry.reason) for entry in tally.unreadable] == [
        (offset, reason) for offset, (_, reason) in zip(offsets, BAD, strict=True)
    ]
    assert {entry.file for entry in tally.unreadable} == {"jsonl/a.jsonl"}
    assert [d.id.rsplit("/", 1)[1] for d in documents[:2]] == ["#1", "#3"]  # numbers of lines


def test_an_id_that_was_asked_for_must_be_there(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(
        lines([{"text": "It is one."}, {"key": "k", "text": "It is two."}])
    )
    documents, tally = read("jsonl", tmp_path, [("id", "key")])
    assert [d.id for d in documents] == ["jsonl/a.jsonl/k"]
    assert tally.counters["quarantined/no_id"] == 1


def test_lines_after_a_damaged_stream(tmp_path):
    packed = [gzip.compress(lines([{"id": n, "text": f"It is {n}. " * 50}])) for n in range(9)]
    packed[4] = packed[4][:20] + b"\xa5" * 10 + packed[4][30:]
    (tmp_path / "a.jsonl.gz").write_bytes(b"".join(packed))
    with pytest.raises(DataError, match="compressed stream"):
        read("jsonl", tmp_path)
    documents, tally = read("jsonl", tmp_path, stop=False)
    assert [d.id.rsplit("/", 1)[1] for d in documents if d.id.rsplit("/", 1)[1] != "4"] == [
        "0",
        "1",
        "2",
        "3",
        "5",
        "6",
        "7",
        "8",
    ]
    assert tally.unreadable[0].offset == sum(map(len, packed[:4]))


@pytest.mark.parametrize("indent", [None, 2])
def test_a_json_array_is_read_like_lines(tmp_path, indent):
    (tmp_path / "a.json").write_text(json.dumps([*ROWS, 5, {"body": "x"}], indent=indent))
    documents, tally = read("jsonl", tmp_path)
    assert short(documents) == [
        (name if name != "7" else "7", title, found) for name, title, found in EXPECTED
    ]
    assert [one.sentence for one in tally.unreadable] == [
        "element 4 of the array is no JSON object but a int",
        "element 5 of the array has no text in its field 'text' (its fields: body; name the one "
        "with --column text=NAME)",
    ]


def test_an_array_longer_than_a_document_may_be(tmp_path):
    (tmp_path / "a.json").write_bytes(json.dumps(ROWS).encode())
    assert short(read("jsonl", tmp_path, maximum_document_bytes=40)[0]) == EXPECTED


def test_a_cut_json_array_is_damaged(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(ROWS, indent=1)[:-20])
    with pytest.raises(DataError, match="begins as a JSON array, but"):
        read("jsonl", tmp_path)


def test_a_line_that_is_a_list_does_not_hide_the_others(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'[{"text": "no"}]\n' + lines(ROWS))
    documents, tally = read("jsonl", tmp_path)
    assert short(documents) == EXPECTED
    assert [one.reason for one in tally.unreadable] == ["bad_json"]
