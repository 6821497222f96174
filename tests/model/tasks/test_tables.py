"""Tables of one's own: every format gives the same examples, and every fault is reported with its
place.
"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from cloze.core.errors import DataError, UsageError
from cloze.core.storage import read_tsv
from cloze.model.tasks.files import fold_indices
from cloze.model.tasks.formats.table_files import as_text, open_table
from cloze.model.tasks.formats.texts import LabelledTexts
from cloze.model.tasks.options import TableOptions
from cloze.model.tasks.table import load_task

COLUMNS = {"text": "premise", "pair": "hypothesis", "label": "gold"}
ROWS = [
    {"premise": 'He said "no".', "hypothesis": "A, b", "gold": "yes"},
    {"premise": "Ünïcode\u2028line", "hypothesis": "c", "gold": "no"},
    {"premise": "x", "hypothesis": "'", "gold": "yes"},
]


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    names = list(rows[0])
    match path.suffix:
        case ".tsv":
            lines = [
                "\t".join(names),
                *("\t".join(str(row[name]) for name in names) for row in rows),
            ]
            path.write_bytes("\r\n".join(lines).encode() + b"\r\n")
        case ".csv":
            out = io.StringIO(newline="")
            writer = csv.DictWriter(out, names)
            writer.writeheader()
            writer.writerows(rows)
            path.write_bytes(b"\xef\xbb\xbf" + out.getvalue().encode())
        case ".jsonl":
            path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
        case ".parquet":
            parquet.write_table(pa.Table.from_pylist(rows), path)
        case ".arrow":
            table = pa.Table.from_pylist(rows)
            with (
                pa.OSFile(str(path), "wb") as handle,
                pa.ipc.new_file(handle, table.schema) as writer,
            ):
                writer.write_table(table)


def read(path: Path, split: str = "dev", **options: Any) -> LabelledTexts:
    found: LabelledTexts = load_task("classification", {"columns": COLUMNS, **options}).read(
        str(path), split, None
    )
    return found


@pytest.mark.parametrize("suffix", [".tsv", ".csv", ".jsonl", ".parquet", ".arrow"])
def test_a_table_is_the_same_in_every_format(tmp_path: Path, suffix: str) -> None:
    write(tmp_path / f"dev{suffix}", ROWS)
    examples = read(tmp_path)
    assert list(examples.texts) == [row["premise"] for row in ROWS]
    assert examples.text_pairs == [row["hypothesis"] for row in ROWS]
    assert [examples.label_names[label] for label in examples.labels or ()] == ["yes", "no", "yes"]
    assert examples.label_names == ("no", "yes")
    assert read(tmp_path / f"dev{suffix}").texts == examples.texts
    with pytest.raises(DataError) as fault:
        read(tmp_path, columns={**COLUMNS, "text": "sentence"})
    for part in (f"dev{suffix}", "no column 'sentence'", "premise, hypothesis, gold", "columns"):
        assert part in str(fault.value)


@pytest.mark.parametrize("suffix", [".tsv", ".csv", ".jsonl", ".parquet"])
def test_a_test_split_without_labels_is_read_and_one_of_dev_is_refused(
    tmp_path: Path, suffix: str
) -> None:
    bare = [{name: value for name, value in row.items() if name != "gold"} for row in ROWS]
    for split in ("test", "dev"):
        write(tmp_path / f"{split}{suffix}", bare)
    assert read(tmp_path, "test").labels is None
    with pytest.raises(DataError, match=r"no column 'gold'.*--split test"):
        read(tmp_path, "dev")
    write(
        tmp_path / f"test{suffix}", [{**row, "gold": "-1"} for row in ROWS]
    )  # as the tables of Hugging Face's hub say it
    assert read(tmp_path, "test").labels is None
    write(tmp_path / f"test{suffix}", ROWS)
    assert read(tmp_path, "test").labels == [1, 0, 1]


def test_a_quoted_value_may_hold_line_ends_and_lines_are_counted_on(tmp_path: Path) -> None:
    (tmp_path / "dev.csv").write_text('text,label\n"one\ntwo",a\nthree,b\n  ,a\n')
    with pytest.raises(DataError, match=r"dev\.csv, line 5: the text is empty"):
        read(tmp_path, columns={})
    (tmp_path / "dev.csv").write_text('text;label\n"one\ntwo";a\nthree;b\n')
    assert list(read(tmp_path, columns={}, delimiter=";").texts) == ["one\ntwo", "three"]


def test_a_text_may_be_as_long_as_a_book(tmp_path: Path) -> None:
    text = "a book " * 30_000
    for suffix, separator in ((".csv", ","), (".tsv", "\t")):
        path = tmp_path / f"dev{suffix}"
        path.write_text(f"text{separator}label\n{text}{separator}1\n", encoding="utf-8")
        table = open_table(str(path), TableOptions())
        assert [row for _, row in table.rows] == [[text, "1"]]
    assert read_tsv(str(tmp_path / "dev.tsv")) == [{"text": text, "label": "1"}]


def test_numbers_and_truth_values_are_labels_as_they_are_written(tmp_path: Path) -> None:
    write(tmp_path / "dev.jsonl", [{"text": "x", "label": True}, {"text": "y", "label": False}])
    assert read(tmp_path, columns={}).label_names == ("false", "true")
    write(tmp_path / "dev.jsonl", [{"text": "x", "label": 10}, {"text": "y", "label": 9}])
    assert read(tmp_path, columns={}).class_counts() == {"10": 1, "9": 1}


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("dev.tsv", b"", "dev.tsv is empty"),
        ("dev.csv", b"\n\n", "dev.csv is empty"),
        ("dev.jsonl", b"\n", "dev.jsonl is empty"),
        ("dev.parquet", b"PAR1", "dev.parquet is not a valid parquet file"),
        ("dev.arrow", b"", "dev.arrow is not a valid arrow file"),
        ("dev.tsv", b"\ntext\tlabel\nx\t1\n", "dev.tsv begins with an empty line"),
        ("dev.tsv", b"text\tlabel\n\n\n", "has a header but no examples"),
        ("dev.tsv", b"text\ttext\tlabel\nx\ty\t1\n", "line 1: two columns are called 'text'"),
        ("dev.tsv", b"text\tlabel\nx\0y\t1\n", "line 2: a NUL at byte 2"),
        ("dev.tsv", b"text\tlabel\nx\t1\n\ny\t0\n", "line 3: 1 columns, but the header has 2"),
        ("dev.tsv", b"text\tlabel\nx\t\n", "line 2: the label is empty"),
        ("dev.csv", b'text,label\n"x,1\n', "dev.csv, line 2: unexpected end of data"),
        ("dev.csv", b'text,label\n"x" y,1\n', "dev.csv, line 2: "),
        (
            "dev.jsonl",
            b'{"text": "x", "label": "a"}\n{"text": \n',
            "line 2, column 10: not valid JSON",
        ),
        ("dev.jsonl", b'["x", "a"]\n', "line 1: list instead of an object"),
        (
            "dev.jsonl",
            b'{"text": ["x"], "label": "a"}\n',
            "line 1: the text is a list instead of a text",
        ),
        (
            "dev.jsonl",
            b'{"text": "x", "label": "a"}\n{"label": "a"}\n',
            "line 2: the text is empty",
        ),
        (
            "dev.jsonl",
            b'{"text": "x", "label": "a"}\n{"text": "y"}\n',
            "line 2: the label is empty",
        ),
        ("dev.jsonl", b'{"text": "x\xff", "label": "a"}\n', "line 1: byte 12 is not UTF-8"),
    ],
)
def test_a_fault_names_file_and_line(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as fault:
        read(tmp_path, columns={})
    assert said in str(fault.value)
    assert str(tmp_path / name) in str(fault.value)


def test_a_file_that_ends_like_no_table_is_read_as_the_options_say(tmp_path: Path) -> None:
    (tmp_path / "reviews.txt").write_text("text\tlabel\ngood\t1\n")
    with pytest.raises(
        DataError, match=r"reviews\.txt has no suffix of a table .* options\.format=tsv"
    ):
        read(tmp_path / "reviews.txt", columns={})
    assert list(read(tmp_path / "reviews.txt", columns={}, format="tsv").texts) == ["good"]
    (tmp_path / "reviews.txt").write_text("1\tgood\n0\tbad\n")
    numbered = {"format": "tsv", "header": False, "columns": {"text": 1, "label": 0}}
    assert list(read(tmp_path / "reviews.txt", **numbered).texts) == ["good", "bad"]
    with pytest.raises(DataError, match=r"no column 2 \(2 columns\)"):
        read(tmp_path / "reviews.txt", **{**numbered, "columns": {"text": 2, "label": 0}})


def test_an_id_that_stands_twice_is_refused_and_one_is_kept(tmp_path: Path) -> None:
    columns = {"text": "text", "id": "nr"}
    (tmp_path / "dev.tsv").write_text("nr\ttext\tlabel\n7\tx\ta\n8\ty\tb\n")
    assert read(tmp_path, columns=columns).ids == ["7", "8"]
    (tmp_path / "dev.tsv").write_text("nr\ttext\tlabel\n7\tx\ta\n8\ty\tb\n7\tz\tb\n")
    with pytest.raises(DataError, match=r"dev\.tsv, line 4: duplicate id '7', see line 2"):
        read(tmp_path, columns=columns)


def test_a_label_that_train_does_not_have_is_told_with_its_line(tmp_path: Path) -> None:
    write(tmp_path / "dev.csv", ROWS)
    examples = read(tmp_path)
    task = load_task("classification", {"columns": COLUMNS})
    with pytest.raises(
        DataError,
        match=r"dev\.csv, line 3: label 'no' is unknown to the model, which has yes, maybe",
    ):
        task.align_labels(examples, {"labels": ["yes", "maybe"]})


def test_irregular_lines_are_left_out_on_demand_and_counted_but_never_of_a_test_file(
    tmp_path: Path,
) -> None:
    for split in ("train", "test"):
        (tmp_path / f"{split}.tsv").write_text("text\tlabel\nx\ta\nbroken\ny\tb\tc\nz\tb\n")
    examples = read(tmp_path, "train", columns={}, irregular="drop")
    assert (list(examples.texts), examples.dropped) == (["x", "z"], {"irregular_line": 2})
    with pytest.raises(DataError, match="line 3: 1 columns"):
        read(tmp_path, "test", columns={}, irregular="drop")


@given(st.lists(st.text(max_size=3), min_size=1, max_size=25), st.integers(2, 5))
@settings(max_examples=25)
def test_folds_cut_a_file_into_parts_that_share_no_text(texts: list[str], folds: int) -> None:
    dev = [fold_indices(texts, "dev", folds, fold) for fold in range(folds)]
    assert sorted(number for part in dev for number in part) == list(range(len(texts)))
    for fold in range(folds):
        train = fold_indices(texts, "train", folds, fold)
        assert sorted([*train, *dev[fold]]) == list(range(len(texts)))
        assert not {texts[i] for i in train} & {texts[i] for i in dev[fold]}
    different = [len({texts[i] for i in part}) for part in dev]
    assert max(different) - min(different) <= 1
    turned = {texts[::-1][i] for i in fold_indices(texts[::-1], "dev", folds, 0)}
    assert turned == {texts[i] for i in dev[0]}


def test_folds_of_a_table_of_texts(tmp_path: Path) -> None:
    (tmp_path / "all.tsv").write_text(
        "text\tlabel\n" + "".join(f"text {n}\t{n % 2}\n" for n in range(20))
    )
    options = {
        "columns": {},
        "files": {"train": "all.tsv", "dev": "all.tsv"},
        "folds": 4,
        "fold": 3,
    }
    assert (len(read(tmp_path, "train", **options)), len(read(tmp_path, "dev", **options))) == (
        15,
        5,
    )
    with pytest.raises(
        DataError, match=r"no split 'test': its one file is cut into 4 folds; use dev or train"
    ):
        read(tmp_path, "test", **options)
    with pytest.raises(UsageError, match=r"fold \(4\) must be below folds \(4\)"):
        read(tmp_path, "dev", **{**options, "fold": 4})


@pytest.mark.parametrize("name", ["dev.jsonl", "dev.parquet"])
@pytest.mark.parametrize("role", ["text", "label"])
def test_nan_is_a_missing_value_not_a_text(tmp_path: Path, name: str, role: str) -> None:
    path, values = tmp_path / name, [1.5, float("nan")]
    if name.endswith(".jsonl"):
        path.write_text("".join(json.dumps({role: value}) + "\n" for value in values))
    else:
        parquet.write_table(pa.table({role: pa.array(values)}), path)
    rows = open_table(str(path), TableOptions()).rows
    assert [as_text(cell, location, role) for location, (cell,) in rows] == ["1.5", ""]


def test_a_binary_column_is_read_as_utf8_and_other_bytes_are_refused_with_their_row(
    tmp_path: Path,
) -> None:
    path = tmp_path / "dev.parquet"
    texts = ["Zürich 世界".encode(), b"\xff"]
    parquet.write_table(pa.table({"text": pa.array(texts, pa.binary())}), path)
    (first, good), (second, bad) = open_table(str(path), TableOptions()).rows
    assert as_text(good[0], first, "text") == "Zürich 世界"
    with pytest.raises(DataError, match=r"row 2.*UTF-8"):
        as_text(bad[0], second, "text")
