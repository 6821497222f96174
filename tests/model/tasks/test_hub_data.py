"""Labelled data sets of the Hugging Face Hub as tasks: layouts, label names, lists of words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.core.artifacts.fingerprints import directories_above
from cloze.core.errors import DataError, UsageError
from cloze.core.hub_names import hub_source, hub_url
from cloze.model.tasks.files import check_apart, data_fingerprint, missing_split
from cloze.model.tasks.formats.table_files import class_names
from cloze.model.tasks.shards import shards
from cloze.model.tasks.table import load_task

LABELS = ["negative", "positive"]
CLASS = {"names": LABELS, "_type": "ClassLabel"}
ROWS = [{"text": f"text {number}", "label": number % 2} for number in range(6)]


def features(table: pa.Table, **classes: Any) -> pa.Table:
    """Return the table with the metadata that `datasets` writes."""
    own = {"info": {"features": {"text": {"dtype": "string", "_type": "Value"}, **classes}}}
    return table.replace_schema_metadata({"huggingface": json.dumps(own)})


def write(path: Path, rows: list[dict[str, Any]] = ROWS, **classes: Any) -> Path:
    table = features(pa.Table.from_pylist(rows), **(classes or {"label": CLASS}))
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_stream(path, table.schema) as writer:  # what save_to_disk writes
            writer.write_table(table)
    return path


LAYOUTS = {
    "a repository": "data/{}-0000{}-of-00002.parquet",
    "with hashes": "{}-0000{}-of-00002-0a1b2c3d.parquet",
    "the Parquet branch": "{}/000{}.parquet",
    "save_to_disk": "{}/data-0000{}-of-00002.arrow",
    "the cache": "org-name-{}-0000{}-of-00002.arrow",
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dev", ["validation", "dev"])
def test_a_split_is_found_in_each_layout_and_its_labels_have_names(
    layout: str, dev: str, tmp_path: Path
) -> None:
    for number in range(2):
        for split, shift in (("train", 0), (dev, 10)):
            rows = [{**row, "text": f"{shift + number} {row['text']}"} for row in ROWS]
            write(tmp_path / LAYOUTS[layout].format(split, number), rows)
    folders = [folder for folder in tmp_path.rglob("*") if folder.is_dir()]
    for folder in (tmp_path, *(folders if layout == "save_to_disk" else ())):
        for name in ("dataset_info.json", "state.json"):
            (folder / name).write_text("{}")
    (tmp_path / "README.md").write_text("")
    task = load_task("classification", {})
    for split, shift in (("train", 0), ("dev", 10)):
        found = task.read(str(tmp_path), split, None)
        assert found.texts == [f"{shift + n} text {row}" for n in range(2) for row in range(6)]
        assert found.label_names == tuple(LABELS)
        assert [found.label_names[label] for label in found.labels] == LABELS * 6
    splits = ("train", "dev")
    assert not missing_split(str(tmp_path), task.options, splits)
    check_apart(str(tmp_path), task.options, splits)
    assert missing_split(str(tmp_path), task.options, ("test",)).endswith("no test split")
    before = data_fingerprint(str(tmp_path), task.options, ("dev",))
    (tmp_path / "README.md").write_text("another card")
    assert data_fingerprint(str(tmp_path), task.options, ("dev",)) == before


def test_a_file_of_a_series_that_is_missing_is_told(tmp_path: Path) -> None:
    for split in ("train", "validation"):
        write(tmp_path / f"data/{split}-00000-of-00003.parquet")
        write(tmp_path / f"data/{split}-00002-of-00003.parquet")
    with pytest.raises(DataError, match=r"2 of the 3 files of the split dev"):
        load_task("classification", {}).read(str(tmp_path), "dev", None)


def test_a_split_in_two_formats_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "validation.parquet")
    (tmp_path / "validation.csv").write_text("text,label\nx,1\n")
    with pytest.raises(DataError, match=r"the split dev as \.csv and as \.parquet"):
        load_task("classification", {}).read(str(tmp_path), "dev", None)


def test_shards_with_other_columns_are_refused_and_reordered_ones_are_read(tmp_path: Path) -> None:
    write(tmp_path / "train/0000.parquet")
    write(tmp_path / "train/0001.parquet", [{"label": 1, "text": "turned"}])
    assert load_task("classification", {}).read(str(tmp_path), "train", None).texts[-1] == "turned"
    write(tmp_path / "train/0002.parquet", [{"label": 1, "text": "x", "more": "y"}])
    with pytest.raises(DataError, match=r"0002\.parquet has the columns label, text, more"):
        load_task("classification", {}).read(str(tmp_path), "train", None)


def test_numbers_stay_where_a_task_is_defined_by_them_and_unlabelled_rows_too(
    tmp_path: Path,
) -> None:
    rows = [{"sentence": row["text"], "label": row["label"]} for row in ROWS]
    write(tmp_path / "train.parquet", rows)
    write(tmp_path / "test.parquet", [{**row, "label": -1} for row in rows])
    sst2 = load_task("sst2", {})
    train = sst2.read(str(tmp_path), "train", None)
    assert set(train.label_names) == {"0", "1"}
    assert sst2.read(str(tmp_path), "test", None).labels is None
    named = load_task(
        "classification", {"columns": {"text": "sentence"}, "where": {"label": "positive"}}
    )
    assert len(named.read(str(tmp_path), "train", None)) == 3


def test_lists_of_classes_are_labels_by_name(tmp_path: Path) -> None:
    rows = [
        {"text": "x", "labels": [0, 1]},
        {"text": "y", "labels": []},
        {"text": "z", "labels": [1]},
    ]
    for number, feature in enumerate(({"feature": CLASS, "_type": "Sequence"}, [CLASS])):
        file = write(tmp_path / f"{number}/train.parquet", rows, labels=feature)
        task = load_task("multilabel", {"columns": {"label": "labels"}})
        found = task.read(str(file.parent), "train", None)
        assert list(found.label_names) == LABELS
        assert list(map(list, found.labels)) == [LABELS, [], LABELS[1:]]


TAGS = {"feature": {"names": ["O", "B-PER", "I-PER"], "_type": "ClassLabel"}, "_type": "List"}


def test_words_and_their_tags_are_lists(tmp_path: Path) -> None:
    rows = [
        {"tokens": ["Mary", "Ann", "ran"], "ner_tags": [1, 2, 0]},
        {"tokens": [], "ner_tags": []},
        {"tokens": ["So"], "ner_tags": [0]},
    ]
    for split in ("train", "validation"):
        write(tmp_path / f"{split}/0000.parquet", rows, ner_tags=TAGS)
    found = load_task("tagging", {}).read(str(tmp_path), "dev", None)
    assert found.words == [["Mary", "Ann", "ran"], ["So"]]
    assert (found.tags, found.scheme) == ([["B-PER", "I-PER", "O"], ["O"]], "BIO")
    assert found.dropped == {"empty_row": 1}
    assert found.location(1, 0).endswith("0000.parquet, row 3")
    assert list(found.rows([["O", "O", "B-PER"], ["O"]]))[2] == "ran B-PER"
    for columns, message in (
        ({"word": "words"}, r"no column 'words' \(tokens, ner_tags\)"),
        ({"tag": "tokens"}, r"row 1: 'Mary' is not a tag"),
    ):
        with pytest.raises(DataError, match=message):
            load_task("tagging", {"columns": columns}).read(str(tmp_path), "dev", None)
    write(tmp_path / "train/0000.parquet", [{"tokens": ["a"], "ner_tags": [0, 0]}], ner_tags=TAGS)
    with pytest.raises(DataError, match="row 1: the ner_tags must be a list, with an entry"):
        load_task("tagging", {}).read(str(tmp_path), "train", None)


def test_questions_of_a_table_are_those_of_squad(tmp_path: Path) -> None:
    rows = [
        {
            "id": str(number),
            "title": "T",
            "context": "The lamp is red and old.",
            "question": "Which colour?",
            "answers": {"text": texts, "answer_start": starts},
        }
        for number, (texts, starts) in enumerate(((["red"], [12]), ([], [])))
    ]
    write(tmp_path / "validation/0000.parquet", rows)
    found = load_task("squad2", {}).read(str(tmp_path), "dev", None)
    assert [[answer.text for answer in answers] for answers in found.answers or ()] == [["red"], []]
    rows[0]["answers"] = {"text": ["blue"], "answer_start": [0]}
    write(tmp_path / "validation/0000.parquet", rows)
    with pytest.raises(DataError, match=r"0000\.parquet, question '0'"):
        load_task("squad2", {}).read(str(tmp_path), "dev", None)


@pytest.mark.parametrize(
    "metadata", [None, {}, {b"huggingface": b"{"}, {b"huggingface": b'{"info": null}'}]
)
def test_a_schema_without_features_has_no_names(metadata: Any) -> None:
    assert class_names(metadata) == {}


def names() -> Iterator[Any]:
    part = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,8}", fullmatch=True)
    yield from (part, part, st.none() | part, st.none() | part, st.none() | part)


@pytest.mark.parametrize("root", ["hf://datasets/org/name@main", "hf://org/model", "s3://bucket"])
def test_a_part_of_an_artifact_is_looked_for_up_to_the_repository(root: str) -> None:
    assert list(directories_above(f"{root}/config/train"))[-1] == root
    assert list(directories_above(root)) == []


@given(*names())
@settings(max_examples=50)
def test_a_name_is_a_url_and_no_other_path_changes(
    org: str, name: str, revision: str | None, config: str | None, split: str | None
) -> None:
    text = f"{org}/{name}" + (f"@{revision}" if revision else "")
    if config:
        text += f":{config}" + (f"/{split}" if split else "")
    url = hub_url(f"hf={text}")
    assert url.startswith(f"hf://datasets/{org}/{name}@{revision or 'refs%2Fconvert%2Fparquet'}/")
    assert url.endswith("/" + (f"{config}/{split}" if config and split else config or "default"))
    assert (hub_url(url), hub_url(text)) == (url, text)
    source = hub_source({"kind": "hf", "path": text, "fields": {}})
    assert source == {"kind": "parquet", "path": url, "fields": {}}
    assert hub_source({"kind": "text", "path": text})["path"] == text


@pytest.mark.parametrize("name", ["", "/abs/dir", "a/b/c", "a/b:c/d/e", "a/b:", "a b/c", "~/x"])
def test_another_form_is_told(name: str) -> None:
    with pytest.raises(UsageError, match="hf=ORG/NAME:CONFIG/SPLIT"):
        hub_url(f"hf={name}")


def test_a_table_is_no_text_of_a_split(tmp_path: Path) -> None:
    for name in ("train.parquet", "trainer.parquet", "pretrain/x.parquet", ".train.parquet"):
        write(tmp_path / name)
    assert shards(str(tmp_path), "train") == ["train.parquet"]
    assert shards(str(tmp_path / "pretrain"), "train") == []
