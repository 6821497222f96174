"""Reading labelled files: what is read, what is refused, and how well the refusal is said."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from cloze.core.config import parse_config
from cloze.core.errors import DataError, UsageError
from cloze.model.tasks.finetune.stage import FinetuneConfig
from cloze.model.tasks.formats.texts import LabelledTexts
from cloze.model.tasks.table import TASKS, load_task
from cloze.model.tasks.task import task_source


def _write(directory, split, *lines, header="sentence\tlabel", end="\n"):
    path = directory / f"{split}.tsv"
    path.write_bytes(end.join([header, *lines, ""]).encode())
    return path


def _read(directory, split="dev", limit=None):
    return load_task("sst2").read(str(directory), split, limit)


def test_every_task_of_the_table_keeps_the_contract():
    for name in TASKS:
        task = load_task(name)
        assert task.name == name
        assert task.metrics
        assert task.source in ("data", "corpus")
        assert task.files


def test_sst2_reads_lines_in_order_and_quotes_as_text(tmp_path):
    _write(tmp_path, "dev", 'the " best " film\t1', '"unclosed quote\t0', "it 's fine \t1")
    examples = _read(tmp_path)
    assert list(examples.texts) == ['the " best " film', '"unclosed quote', "it 's fine "]
    assert list(examples.labels) == [1, 0, 1]
    assert examples.label_names == ("0", "1")
    assert examples.class_counts() == {"0": 1, "1": 2}


def test_sst2_reads_windows_line_ends_and_a_missing_last_one(tmp_path):
    _write(tmp_path, "dev", "good\t1", "bad\t0", end="\r\n")
    assert list(_read(tmp_path).texts) == ["good", "bad"]
    (tmp_path / "dev.tsv").write_bytes(b"\xef\xbb\xbfsentence\tlabel\ngood\t1\nbad\t0")
    assert list(_read(tmp_path).texts) == ["good", "bad"]


def test_a_unicode_line_separator_ends_no_line(tmp_path):
    _write(tmp_path, "dev", "one\u2028two\x0bthree\t1")
    assert list(_read(tmp_path).texts) == ["one\u2028two\x0bthree"]


def test_the_test_split_has_no_labels(tmp_path):
    _write(tmp_path, "test", "0\tuneasy mishmash", "1\tgood", header="index\tsentence")
    examples = _read(tmp_path, "test")
    assert list(examples.texts) == ["uneasy mishmash", "good"]
    assert examples.labels is None
    assert examples.class_counts() == {}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "dev.tsv is empty"),
        (b"\n", "dev.tsv is empty"),
        (b"sentence\tlabel\n", "has a header but no examples"),
        (b"sentence\tlabel\ngood\t1\nbad\n", "line 3: 1 columns, but the header has 2"),
        (b"sentence\tlabel\ngood\t1\textra\n", "line 2: 3 columns, but the header has 2"),
        (b"sentence\tlabel\ngood\t1\n\nbad\t0\n", "line 3: 1 columns"),
        (b"sentence\tlabel\ngood\tpositive\n", "line 2: label 'positive' is not one of 0, 1"),
        (b"sentence\tlabel\n \t1\n", "line 2: the sentence is empty"),
        (b"sentence\tlabel\ng\xffod\t1\n", "line 2: byte 2 is not UTF-8"),
        (
            b"good film\t1\nbad film\t0\n",
            "line 1: no column 'sentence' in the header (good film, 1)",
        ),
    ],
)
def test_a_fault_names_file_and_line(tmp_path, content, said):
    (tmp_path / "dev.tsv").write_bytes(content)
    with pytest.raises(DataError) as fault:
        _read(tmp_path)
    assert said in str(fault.value)
    assert str(tmp_path / "dev.tsv") in str(fault.value)


def test_pairs_are_read_by_their_columns(tmp_path):
    _write(
        tmp_path,
        "dev",
        "x\tgood film\tfine film\tyes",
        "x\tbad\tfine\tno",
        header="id\tone\ttwo\tsame",
    )
    columns = {"text": "one", "pair": "two", "label": "same"}
    read = load_task("classification", {"columns": columns, "labels": ["no", "yes"]}).read
    examples = read(str(tmp_path), "dev", None)
    assert list(zip(examples.texts, examples.text_pairs, examples.labels, strict=True)) == [
        ("good film", "fine film", 1),
        ("bad", "fine", 0),
    ]
    _write(tmp_path, "dev", "x\tgood film\t\tyes", header="id\tone\ttwo\tsame")
    with pytest.raises(DataError, match=r"dev\.tsv, line 2: the two is empty"):
        read(str(tmp_path), "dev", None)


def test_a_wrong_directory_is_named_with_what_belongs_there(tmp_path):
    with pytest.raises(
        DataError,
        match=(
            r"train\.tsv does not exist; the task reads a directory with train\.tsv and dev\.tsv "
            r"\(columns: sentence, label\)"
        ),
    ):
        _read(tmp_path / "nowhere", "train")


def test_unknown_tasks_are_refused_with_the_nearest_name():
    with pytest.raises(UsageError, match="did you mean 'sst2'"):
        load_task("sst-2")
    with pytest.raises(
        UsageError,
        match=r"finetune\.task \(found 'packages'\): no such task; did you mean 'package'",
    ):
        parse_config(FinetuneConfig, {"task": "packages"}, "finetune")
    with pytest.raises(UsageError, match="needs data"):
        task_source(load_task("sst2"), None, "corpus")
    with pytest.raises(UsageError, match="needs corpus"):
        task_source(load_task("package"), "data", None)


def test_the_data_path_is_no_part_of_the_fingerprint_but_its_content_is(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        _write(tmp_path / name, "train", "good\t1")
    a, b = (FinetuneConfig(data=str(tmp_path / name)) for name in ("a", "b"))
    assert a.fingerprint_fields() == b.fingerprint_fields()
    assert a.external_fingerprints() == b.external_fingerprints()
    _write(tmp_path / "b", "train", "good\t0")
    assert a.external_fingerprints() != b.external_fingerprints()


def test_capping_balances_keeps_the_order_and_does_not_depend_on_it():
    labels = [0] * 30 + [1] * 5
    texts = [f"text {i}" for i in range(35)]
    capped = LabelledTexts(texts=texts, labels=labels, label_names=("a", "b")).capped(6)
    assert capped.class_counts() == {"a": 6, "b": 5}
    assert capped.dropped == {"over_limit_per_class": 24}
    assert list(capped.texts) == sorted(capped.texts, key=texts.index)
    turned = LabelledTexts(texts=texts[::-1], labels=labels[::-1], label_names=("a", "b")).capped(6)
    assert set(turned.texts) == set(capped.texts)


def test_the_limit_holds_for_training_only_in_sst2(tmp_path):
    for split in ("train", "dev"):
        _write(tmp_path, split, *(f"text {i}\t{i % 2}" for i in range(10)))
    assert len(_read(tmp_path, "train", 2)) == 4
    assert len(_read(tmp_path, "dev", 2)) == 10


def test_balanced_classes_weigh_alike_and_one_on_average():
    labels = [0] * 6 + [1] * 2 + [3]
    examples = LabelledTexts(texts=["x"] * 9, labels=labels, label_names=("a", "b", "c", "d"))
    weights = examples.balanced().weights
    assert sum(weights) == pytest.approx(9)
    totals = {
        label: sum(w for w, own in zip(weights, labels, strict=True) if own == label)
        for label in set(labels)
    }
    assert totals == pytest.approx({0: 3.0, 1: 3.0, 3: 3.0})


def test_a_train_split_of_one_label_is_refused_and_a_dev_split_scored(tmp_path):
    for split in ("train", "dev"):
        _write(tmp_path, split, "good\t1", "fine\t1")
    task = load_task("sst2")
    with pytest.raises(
        DataError,
        match=r"train\.tsv has examples of one label only \('1'\)",
    ):
        task.metadata(_read(tmp_path, "train"))
    dev = _read(tmp_path)
    right = np.array([[0.2, 0.8], [0.6, 0.4]], dtype=np.float32)
    assert task.score(dev, right) == {"accuracy": 0.5}
    assert task.baselines(dev) == {"majority": 1.0}
    assert task.detailed_metrics(dev, right, seed=1, resamples=20)["confusion"]["rows_true"] == [
        [0, 0],
        [1, 1],
    ]


def test_the_baseline_is_in_the_unit_of_the_score(tmp_path):
    examples = LabelledTexts(texts=["x"] * 4, labels=[1, 1, 1, 0], label_names=("0", "1"))
    assert load_task("sst2").baselines(examples) == {"majority": 0.75}
    assert load_task("cola").baselines(examples) == {"majority": 0.0}
    assert load_task("mrpc").baselines(examples) == {"majority": pytest.approx(6 / 7)}


def test_relabelling_follows_names_and_refuses_unknown_ones():
    examples = LabelledTexts(
        texts=["x", "y"], labels=[0, 1], label_names=("a", "b"), where="dev.tsv"
    )
    assert list(examples.relabelled(["b", "c", "a"]).labels) == [2, 0]
    with pytest.raises(
        DataError, match=r"dev\.tsv: label 'b' is unknown to the model, which has a, c"
    ):
        examples.relabelled(["a", "c"])


def test_the_real_sst2_reads_as_csv_without_quoting_does(shared_data):
    directory = shared_data / "tasks" / "glue" / "SST-2"
    for split, count in (("train", 67_349), ("dev", 872)):
        examples = _read(directory, split)
        with open(directory / f"{split}.tsv", encoding="utf-8", newline="") as handle:
            rows = list(csv.reader(handle, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]
        assert len(examples) == count
        assert [
            [t, examples.label_names[n]]
            for t, n in zip(examples.texts, examples.labels, strict=True)
        ] == rows
