"""Tables as spreadsheets, pandas and other programs write them; labels that differ invisibly."""

from __future__ import annotations

import csv
import io
import json
import unicodedata
from pathlib import Path
from typing import Any

import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.core.errors import DataError
from cloze.model.tasks.formats.table_files import as_label
from cloze.model.tasks.table import load_task

ROWS = [("a good, fine film", "pos"), ('he said "no"; so', "neg"), ("Zeile\nzwei é", "pos")]


def read(path: Path, task: str = "classification", split: str = "dev", **options: Any) -> Any:
    return load_task(task, options).read(str(path), split, None)


def labels_of(examples: Any) -> list[str]:
    return [examples.label_names[number] for number in examples.labels]


def written(delimiter: str, end: str = "\r\n", rows: Any = ROWS, header: Any = None) -> str:
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=delimiter, lineterminator=end)
    writer.writerow(header or ("text", "label"))
    writer.writerows(rows)
    return out.getvalue()


def blanks_between(text: str) -> str:
    return text.replace("\r\n", "\r\n\r\n,\r\n", 2)


FORMS = {
    "excel-utf8.csv": written(",").encode("utf-8-sig"),
    "excel-europe.csv": written(";").encode("utf-8-sig"),
    "tab.csv": written("\t").encode(),
    "sep.csv": b"sep=;\r\n" + written(";").encode(),
    "sep-quoted.csv": b'\xef\xbb\xbf"sep=|"\r\n' + written("|").encode(),
    "utf16.csv": written(",").encode("utf-16"),
    "utf16-be.csv": b"\xfe\xff" + written("\t").encode("utf-16-be"),
    "macintosh.csv": written(",", "\r", [row for row in ROWS if "\n" not in row[0]]).encode(),
    "blank-lines.csv": b"\r\n" + written(",").replace("\r\n", "\r\n\r\n").encode() + b"\r\n\r\n",
    "empty-rows.csv": blanks_between(written(",")).encode(),
    "trailing.csv": written(
        ",", rows=[(*row, "", "") for row in ROWS], header=("text", "label", "", "")
    ).encode(),
    "short-rows.csv": written(",", header=("text", "label", "", "")).encode(),
    "long-rows.csv": written(",", rows=[(*row, "", " ") for row in ROWS]).encode(),
    "blanks-in-header.csv": written(",", header=(" text", "label ")).encode(),
    "pandas-index.csv": pandas.DataFrame(ROWS, columns=["text", "label"]).to_csv().encode(),
    "no-last-end.csv": written(",").removesuffix("\r\n").encode(),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_spreadsheet_has_its_examples(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(FORMS[name])
    expected = [row for row in ROWS if name != "macintosh.csv" or "\n" not in row[0]]
    examples = read(tmp_path / name)
    texts = [text.replace("\r\n", "\n") for text in examples.texts]
    assert list(zip(texts, labels_of(examples), strict=True)) == [
        (text, label) for text, label in expected
    ]


def test_excels_unicode_text_is_a_tsv(tmp_path: Path) -> None:
    content = "text\tlabel\r\nein Film\tpos\r\nzwei\tneg\r\n"
    (tmp_path / "dev.txt").write_bytes(content.encode("utf-16"))
    examples = read(tmp_path / "dev.txt", format="tsv")
    assert (list(examples.texts), labels_of(examples)) == (["ein Film", "zwei"], ["pos", "neg"])


def test_skipped_lines_are_counted_and_lines_keep_their_numbers(tmp_path: Path) -> None:
    (tmp_path / "dev.csv").write_bytes(b"sep=;\ntext;label\n\na;x\n ; \nb;y\nc;\n")
    with pytest.raises(DataError, match=r"dev.csv, line 7: the label is empty"):
        read(tmp_path)
    (tmp_path / "dev.csv").write_bytes(b"sep=;\ntext;label\n\na;x\n ; \nb;y\n\n\n")
    assert read(tmp_path).dropped == {"empty_line": 2}


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("dev.csv", b"text,label\na,b,c\n", "line 2: 3 columns, but the header has 2; separate "
         "columns by ',', or omit"),
        ("dev.csv", b"text;label\na;b;c\n", "separate columns by ';'"),
        ("dev.tsv", b"text\tlabel\na\n", "separate columns by one tab"),
        ("dev.csv", "text,label\ncafé,pos\n".encode("cp1252"), "line 2: byte 4 is not UTF-8"),
        ("dev.csv", "text,label\ncafé,pos\n".encode("utf-16")[:-1], "no complete UTF-16"),
        ("dev.csv", b"a,a,,\nx,y,,\n", "two columns are called 'a'"),
        ("dev.csv", b",,\n\n", "dev.csv is empty"),
        ("dev.csv", b"", "dev.csv is empty"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(name: str, content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as fault:
        read(tmp_path)
    assert said in str(fault.value)


@settings(max_examples=60)
@given(
    rows=st.lists(
        st.tuples(
            st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), min_size=1).filter(
                str.strip
            ),
            st.sampled_from(["x", "y"]),
        ),
        min_size=1,
    ),
    delimiter=st.sampled_from(",;\t"),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
)
def test_what_a_csv_writer_writes_is_read(
    rows: list[tuple[str, str]], delimiter: str, encoding: str, tmp_path_factory: Any
) -> None:
    path = tmp_path_factory.mktemp("csv") / "dev.csv"
    path.write_bytes(written(delimiter, rows=rows).encode(encoding))
    examples = read(path)
    assert list(zip(examples.texts, labels_of(examples), strict=True)) == rows


def test_json_lines_have_the_fields_of_all_records(tmp_path: Path) -> None:
    records: list[dict[str, Any]] = [
        {"text": "first"},
        {"text": "b", "label": "x"},
        {"text": "c", "label": "y"},
    ]
    for split in ("dev", "test"):
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, records)))
        with pytest.raises(DataError, match=r"line 1: the label is empty"):
            read(tmp_path, split=split)
    choices = [{"context": "c", "endings": ["a", "b"], **label} for label in ({}, {"label": 1})]
    (tmp_path / "test.jsonl").write_text("\n".join(map(json.dumps, choices)))
    with pytest.raises(DataError, match=r"line 1: label '' is not one of"):
        read(tmp_path, "choice", "test")
    pairs = [{"text": "a", "label": "x"}, {"text": "b", "label": "x", "pair": "p"}]
    (tmp_path / "dev.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    with pytest.raises(DataError, match=r"line 1: the pair is empty"):
        read(tmp_path, columns={"pair": "pair"})
    mixed = [{"text": "a"}, {"text": "b", "label": ["x"]}]
    (tmp_path / "test.jsonl").write_text("\n".join(map(json.dumps, mixed)))
    with pytest.raises(DataError, match=r"line 1: the label is not a list"):
        read(tmp_path, "multilabel", "test")


# Labels.

INVISIBLE = [
    "pos ",
    " pos",
    "pos\u00a0",
    "\ufeffpos",
    "p\u200bos",
    "pos\u200d",
    "pos\u2060",
    "po\u00ads",
]


@pytest.mark.parametrize("variant", INVISIBLE)
def test_labels_that_look_the_same_are_one(variant: str, tmp_path: Path) -> None:
    records = [{"text": f"t{n}", "label": label} for n, label in enumerate(["pos", "neg", variant])]
    (tmp_path / "dev.jsonl").write_text("\n".join(map(json.dumps, records)))
    assert labels_of(read(tmp_path)) == ["pos", "neg", "pos"]
    assert labels_of(read(tmp_path, labels=["neg", "pos"])) == ["pos", "neg", "pos"]
    marked = [{**row, "text": "<e1>a</e1> <e2>b</e2>"} for row in records]
    (tmp_path / "dev.jsonl").write_text("\n".join(map(json.dumps, marked)))
    assert labels_of(read(tmp_path, "relation")) == ["pos", "neg", "pos"]
    lists = [{**row, "label": [row["label"], "other"]} for row in records]
    (tmp_path / "dev.jsonl").write_text("\n".join(map(json.dumps, lists)))
    assert read(tmp_path, "multilabel").label_names == ("neg", "other", "pos")
    choices = [{"context": "c", "endings": ["a", "b"], "label": row["label"]} for row in records]
    (tmp_path / "dev.jsonl").write_text("\n".join(map(json.dumps, choices)))
    assert list(read(tmp_path, "choice", labels=["pos", "neg"]).labels) == [0, 1, 0]
    words = "\n".join(f"w\tB-{row['label'].lstrip()}" for row in records)
    (tmp_path / "dev.txt").write_text(words + "\n", encoding="utf-8")
    assert read(tmp_path / "dev.txt", "tagging").types() == {
        "neg": 1, "pos": 2}  # fmt: skip


def test_labels_that_look_different_stay(tmp_path: Path) -> None:
    assert as_label(unicodedata.normalize("NFD", "café")) == "café"
    for label in ("Pos", "می\u200cشود", "👩\u200d💻", "a b", "-"):
        assert as_label(label) == label
    (tmp_path / "dev.jsonl").write_text(json.dumps({"text": "a", "label": " to \u200bwrite "}))
    assert list(read(tmp_path, "text-to-text").targets) == [" to \u200bwrite "]


# Lists of labels.


@pytest.mark.parametrize(
    "rows",
    [
        [[1, 0, 0], [0, 1, 1]],
        [["1", "0", "0"], ["0", "0", "0"]],
        [[1.0, 0.0], [0.0, 1.0]],
        [[True, False, True], [False, False, True]],
        ["[1, 0, 0]", "[0, 1, 0]"],
        ["[True, False]", "[False, True]"],
        [[1, 0, 0], [0, 1]],
        [[0, 0], [0, 0]],
    ],
)
def test_flags_by_position_are_not_labels(rows: list[Any], tmp_path: Path) -> None:
    records = [{"text": f"t{n}", "label": row} for n, row in enumerate(rows)]
    (tmp_path / "dev.jsonl").write_text("\n".join(map(json.dumps, records)))
    with pytest.raises(DataError, match=r"line 1: the labels are \d values of 0 and 1 by position"):
        read(tmp_path, "multilabel")
    sizes = {row.count(",") + 1 if isinstance(row, str) else len(row) for row in rows}
    names = list("abc")[: max(sizes)]
    if len(sizes) > 1:
        with pytest.raises(DataError, match=r"line 2: the labels are 2 values .* and 3 names"):
            read(tmp_path, "multilabel", labels=names)
        return
    examples = read(tmp_path, "multilabel", labels=names)
    flags = [json.loads(row.lower()) if isinstance(row, str) else row for row in rows]
    expected = [[str(flag).lower() in ("1", "1.0", "true") for flag in row] for row in flags]
    assert examples.matrix().tolist() == expected


def test_lists_in_cells_are_lists(tmp_path: Path) -> None:
    frame = pandas.DataFrame({"text": ["a", "b"], "label": [["x", "it's"], ["y"]]})
    frame.to_csv(tmp_path / "dev.csv", index=False)
    assert read(tmp_path, "multilabel").labels == [["x", "it's"], ["y"]]
    (tmp_path / "dev.csv").write_text('text,label\na,"[""x"", null]"\n')
    with pytest.raises(DataError, match="label 2 of label is empty"):
        read(tmp_path, "multilabel")
    for cell in ('"x,y"', "1", '"[x"', "[1 0 1]"):
        (tmp_path / "dev.csv").write_text(f"text,label\na,{cell}\n")
        with pytest.raises(DataError, match="is not a list of labels"):
            read(tmp_path, "multilabel")
    ids = [{"text": "a", "label": [0, 1]}, {"text": "b", "label": [1]}]
    (tmp_path / "dev.csv").unlink()
    (tmp_path / "dev.jsonl").write_text("\n".join(map(json.dumps, ids)))
    assert read(tmp_path, "multilabel").label_names == ("0", "1")


def test_measured_numbers_are_no_classes(tmp_path: Path) -> None:
    (tmp_path / "dev.csv").write_text("text,label\na,0.5\nb,1.0\nc,3.75\n")
    with pytest.raises(DataError, match=r"labels such as 0.5 are numbers.*task regression"):
        read(tmp_path)
    assert labels_of(read(tmp_path, labels=["0.5", "1.0", "3.75"])) == ["0.5", "1.0", "3.75"]
    (tmp_path / "dev.csv").write_text("text,label\na,0.0\nb,1.0\n")
    assert labels_of(read(tmp_path)) == ["0.0", "1.0"]
