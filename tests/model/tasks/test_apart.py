"""No file is train and dev at once, and dev examples that train has are told."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, cast

import pytest

from cloze.core.errors import DataError
from cloze.labs.inside.prune import Scorer
from cloze.labs.inside.stages import ProbeConfig
from cloze.model.tasks.files import check_apart, headline
from cloze.model.tasks.finetune.stage import FinetuneConfig
from cloze.model.tasks.kinds.multitask import MultiTask
from cloze.model.tasks.notes import repeats
from cloze.model.tasks.options import SubTask
from cloze.model.tasks.table import KINDS, TASKS, load_task, task_options
from cloze.model.tasks.task import Samples, Split
from tests.model.tasks.stages import finetune, settings

BY_KIND = {
    spec.kind: name for name, spec in reversed(list(TASKS.items())) if "folds" not in spec.options
}
SPLITS = ("train", "dev")


def told(*examples: Any) -> list[str]:
    train, dev = (Split(examples=own, samples=cast("Samples", None)) for own in examples)
    return repeats(train, dev)


def config_of(kind: str, data: Path, **options: Any) -> FinetuneConfig:
    if kind == "multitask":
        part = SubTask(data=str(data), options=options)
        return FinetuneConfig(task=kind, tasks={"sst2": part})
    return FinetuneConfig(task=BY_KIND[kind], data=str(data), options=options)


@pytest.mark.parametrize("kind", sorted({*KINDS} - {"package"}))
def test_one_file_is_not_both_splits(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "all.tsv"
    file.write_text("sentence\tlabel\na\t1\nb\t0\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"all.tsv is one file, and train and dev are read; name"):
        config_of(kind, file).external_fingerprints()
    files = {"files": {"train": "all.tsv", "dev": "all.tsv"}}
    with pytest.raises(DataError, match=r"all.tsv is both train and dev; name another file"):
        config_of(kind, tmp_path, **files).external_fingerprints()
    options = {} if kind == "multitask" else TASKS[BY_KIND[kind]].options
    if options.get("layout") == "race" or kind == "spans":
        return
    (tmp_path / "train.tsv").write_bytes(file.read_bytes())
    for link in (os.symlink, os.link):
        link(tmp_path / "train.tsv", tmp_path / "dev.tsv")
        names = {"files": {"train": "train.tsv", "dev": "dev.tsv"}}
        with pytest.raises(DataError, match=r"dev.tsv is both train and dev"):
            config_of(kind, tmp_path, **names).external_fingerprints()
        (tmp_path / "dev.tsv").unlink()


def test_rows_or_folds_of_one_file_are_splits(tmp_path: Path) -> None:
    (tmp_path / "all.tsv").write_text("text\tlabel\tpart\na\t1\tx\nb\t0\ty\n", encoding="utf-8")
    parts = {"train": {"where": {"part": "x"}}, "dev": {"where": {"part": "y"}}}
    for more in ({"splits": parts}, {"folds": 2}):
        for path, files in (
            (tmp_path, dict.fromkeys(SPLITS, "all.tsv")),
            (tmp_path / "all.tsv", {}),
        ):
            options = task_options("classification", {"files": files, **more})
            check_apart(str(path), options, SPLITS)
    same: dict[str, Any] = {"splits": {"dev": {"where": {}}}}
    with pytest.raises(DataError, match="is one file"):
        check_apart(str(tmp_path / "all.tsv"), task_options("classification", same), SPLITS)


def test_probe_and_prune_read_two_files(tmp_path: Path) -> None:
    file = tmp_path / "eng.testa"
    file.write_text("a O\n\nb O\n", encoding="utf-8")
    with pytest.raises(DataError, match="is one file"):
        ProbeConfig(task="conll2003-pos", data=str(file)).external_fingerprints()
    scorer = object.__new__(Scorer)
    scorer._source = str(file)
    scorer.whole = type("Whole", (), {"task": load_task("conll2003")})()
    with pytest.raises(DataError, match="is one file"):
        scorer.split("train")
    parts = MultiTask(
        "multitask", task_options("multitask", {"tasks": {"sst2": {}, "rte": {"data": "x"}}})
    )
    assert [path for path, _ in parts.sources("here")] == ["here", "x"]


ROWS = [{"text": "a", "pair": "b", "label": "x"}, {"text": "c", "pair": "b", "label": "y"}]
TAGGED = "one O\n\ntwo B-PER\n\nthree O\n"
SQUAD = {
    "data": [{"paragraphs": [{"context": "a b c", "qas": [
        {"id": str(n), "question": f"q{n}", "answers": [{"text": "b", "answer_start": 2}]}
        for n in range(3)]}]}]
}  # fmt: skip
CHOICES = [{"context": f"c{n}", "endings": ["a", "b"], "label": 0} for n in range(3)]
PAIRS = [{"query": f"q{n}", "passage": f"p{n}"} for n in range(3)]


def lines(rows: list[dict[str, Any]]) -> str:
    return "\n".join(map(json.dumps, rows))


@pytest.mark.parametrize(
    ("task", "suffix", "content"),
    [
        ("classification", "jsonl", lines(ROWS)),
        ("regression", "jsonl", lines([{**row, "label": 1} for row in ROWS])),
        ("text-to-text", "jsonl", lines(ROWS)),
        ("multilabel", "jsonl", lines([{**row, "label": ["x"]} for row in ROWS])),
        ("relation", "jsonl", lines(
            [{**row, "text": f"<e1>{row['text']}</e1> <e2>b</e2>"} for row in ROWS])),
        ("choice", "jsonl", lines(CHOICES)),
        ("retrieval", "jsonl", lines(PAIRS)),
        ("conll2003", "txt", TAGGED),
        ("squad", "json", json.dumps(SQUAD)),
    ],
)  # fmt: skip
def test_dev_examples_that_train_has_are_counted(
    task: str, suffix: str, content: str, tmp_path: Path
) -> None:
    for split in SPLITS:
        (tmp_path / f"{split}.{suffix}").write_text(content, encoding="utf-8")
    own = load_task(task)
    train, dev = (own.read(str(tmp_path), split, None) for split in SPLITS)
    count = len(dev)
    note = f"{count} of {count} dev examples are also among the {count} of train"
    assert told(train, dev) == [note]


def test_few_repeated_examples_are_not_told(tmp_path: Path) -> None:
    rows = [f"text {n}\t{n % 2}" for n in range(20)]
    for split, own in (("train", rows[:11]), ("dev", rows[9:])):
        (tmp_path / f"{split}.tsv").write_text("\n".join(["text\tlabel", *own]), encoding="utf-8")
    task = load_task("classification")
    train, dev = (task.read(str(tmp_path), split, None) for split in SPLITS)
    assert told(train, dev) == ["2 of 11 dev examples are also among the 11 of train"]
    more = [f"new {n}\t1" for n in range(9)]
    (tmp_path / "dev.tsv").write_text(
        "\n".join(["text\tlabel", *rows[9:], *more]), encoding="utf-8"
    )
    assert told(train, task.read(str(tmp_path), "dev", None)) == []


def test_the_last_line_says_it(tmp_path: Path, pretrained: str) -> None:
    rows = [f"{word} film\t{label}" for label, word in enumerate(("bad", "good")) for _ in "abc"]
    for split in SPLITS:
        text = "\n".join(["text\tlabel", *rows, ""])
        (tmp_path / f"{split}.tsv").write_text(text, encoding="utf-8")
    config = settings(tmp_path, task="classification", epochs=1, baselines=False)
    result = finetune(config, pretrained, tmp_path / "out")
    line = headline(result.manifest.summary)
    assert line.endswith("; 6 of 6 dev examples are also among the 6 of train"), line
