"""Pairs of sentences come in any table; a bad one is told with file and line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cloze.core.errors import DataError
from cloze.model.tasks.formats.contrasts import read_contrasts
from tests.model.use.test_score import FIELDS, ROWS, jsonl, scored
from tests.model.use.test_score import directory as directory


def table(separator: str, end: str) -> Callable[[Path], str]:
    def write(path: Path) -> str:
        lines = [separator.join(FIELDS), *(separator.join(row) for row in ROWS)]
        path.write_bytes(end.join([*lines, ""]).encode())
        return str(path)

    return write


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("pairs.jsonl", jsonl),
        ("pairs.tsv", table("\t", "\n")),
        ("windows.tsv", table("\t", "\r\n")),
        ("pairs.csv", table(",", "\r\n")),
    ],
)
def test_pairs_come_in_any_table(name: str, write: Callable[[Path], str], tmp_path: Path) -> None:
    found = read_contrasts(write(tmp_path / name))
    assert [(*pair.sentences, pair.phenomenon, pair.id) for pair in found] == [
        row[:4] for row in ROWS
    ]
    assert found[2].groups == {"term": "extraction", "field": "syntax"}
    assert [pair.id for pair in read_contrasts(str(tmp_path), limit=1)] == ["0", "0"]


def test_columns_of_other_names_and_files_that_name_no_phenomenon(tmp_path: Path) -> None:
    (tmp_path / "gaps.tsv").write_text("right\twrong\na cat\ta cats\nthe dog\tdog the\n")
    found = read_contrasts(str(tmp_path), {"good": "right", "bad": "wrong"})
    assert [(*pair.sentences, pair.phenomenon, pair.id) for pair in found] == [
        ("a cat", "a cats", "gaps", "2"),
        ("the dog", "dog the", "gaps", "3"),
    ]


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", r"pairs.jsonl is empty"),
        (b'{"sentence_good": "a", "sentence_bad"', r"pairs.jsonl, line 1"),
        (b'{"sentence_good": "a", "bad": "b"}\n', r"no column 'sentence_bad'"),
        (b'{"sentence_good": "a", "sentence_bad": " "}\n', r"line 1: the sentence_bad is empty"),
        (b'{"sentence_good": "a\\u0000", "sentence_bad": "b"}\n', r"line 1: .*NUL"),
        (b'{"sentence_good": "a", "sentence_bad": ["b"]}\n', r"line 1: the sentence_bad is a list"),
        (b'{"sentence_good": "a\xff", "sentence_bad": "b"}\n', r"line 1.*UTF-8"),
        (
            b'{"sentence_good": ' + b"[" * 100_000,
            r"line 1, column 1: not valid JSON \(nested too deeply\)",
        ),
        (
            b'{"sentence_good": ' + b"7" * 5000 + b"}",
            r"line 1, column 1: not valid JSON \(.*value has 5000 digits\)",
        ),
        (
            b'{"sentence_good": "a \\uD83D cat", "sentence_bad": "b"}\n',
            r"line 1, column 22: not valid JSON \(.ud83d is half a character\)",
        ),
        (
            2 * b'{"sentence_good": "a", "sentence_bad": "b", "UID": "x", "pairID": "7"}\n',
            r"line 2: x has a pair '7' already .*line 1",
        ),
        (
            b'{"sentence_good": "a", "sentence_bad": "%s"}\n' % (b"cat " * 40),
            r"line 1: the text 'cat cat .* has 42 pieces, the model reads 32",
        ),
    ],
)
def test_bad_pairs_are_told_with_file_and_line(
    content: bytes, fault: str, directory: str, tmp_path: Path
) -> None:
    (tmp_path / "pairs.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=fault):
        scored(directory, tmp_path / "out", data=str(tmp_path / "pairs.jsonl"))
