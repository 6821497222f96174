"""A plan reads the first rows of a task's tables, before any stage runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloze.core.config import parse_config
from cloze.core.errors import DataError, UsageError
from cloze.flows.graph.nodes import with_section
from cloze.model.tasks.finetune.stage import FinetuneConfig
from cloze.model.tasks.formats import table_files
from cloze.model.tasks.formats.lines import json_lines
from cloze.model.tasks.table import KINDS, TASKS

GOOD: dict[str, Any] = {"text": "a", "label": "x"}


def written(directory: Path, name: str, rows: list[dict[str, Any]]) -> None:
    for split in ("train", "dev"):
        text = "\n".join(map(json.dumps, rows))
        if name.endswith(".csv"):
            text = "\n".join([",".join(rows[0]), *(",".join(map(str, r.values())) for r in rows)])
        (directory / f"{split}{name}").write_text(text + "\n", encoding="utf-8")


def check(data: Path, **values: Any) -> None:
    parse_config(FinetuneConfig, {"data": str(data), **values}, "finetune").check_data()


@pytest.mark.parametrize(
    ("task", "row", "options", "said"),
    [
        ("classification", {"author": "a", "passage": "b"}, {}, "no column 'text'"),
        ("classification", {"text": "a"}, {}, "no column 'label'"),
        ("classification", GOOD, {"columns": {"pair": "second"}}, "no column 'second'"),
        ("classification", GOOD, {"labels": ["y", "z"]}, "line [12]: label 'x' is not one of y, z"),
        ("classification", GOOD, {"where": {"lang": "de"}}, "no column 'lang'"),
        ("multilabel", GOOD, {"label_columns": ["p", "q"]}, "no column 'p'"),
        ("regression", {"sentence": "a", "label": 1}, {}, "no column 'text'"),
        ("relation", {"sentence": "a", "label": 1}, {}, "no column 'text'"),
        ("text-to-text", {"text": "a"}, {}, "no column 'label'"),
        ("choice", {"context": "a", "label": 1}, {}, "no column 'endings'"),
        ("choice", {"text": "a", "label": 1}, {}, "no column 'context'"),
        ("retrieval", {"question": "a", "passage": "b"}, {}, "no column 'query'"),
    ],
)
@pytest.mark.parametrize("name", [".jsonl", ".csv"])
def test_a_missing_column_is_told_by_the_plan(
    task: str, row: dict[str, Any], options: dict[str, Any], said: str, name: str, tmp_path: Path
) -> None:
    written(tmp_path, name, [row])
    with pytest.raises(DataError, match=said) as fault:
        check(tmp_path, task=task, options=options)
    assert "default" not in str(fault.value)


@pytest.mark.parametrize(
    ("task", "row", "options"),
    [
        ("classification", GOOD, {"labels": ["x"]}),
        ("multilabel", {"text": "a", "label": ["x"]}, {}),
        ("multilabel", {"text": "a", "p": 1, "q": 0}, {"label_columns": ["p", "q"]}),
        ("regression", {"text": "a", "label": 1.5}, {}),
        ("relation", {"text": "<e1>a</e1> <e2>b</e2>", "label": "x"}, {}),
        ("text-to-text", GOOD, {}),
        ("choice", {"context": "a", "endings": ["b", "c"], "label": 1}, {}),
        ("retrieval", {"q": "a", "passage": "b"}, {"columns": {"query": "q"}}),
    ],
)
def test_what_is_right_passes(
    task: str, row: dict[str, Any], options: dict[str, Any], tmp_path: Path
) -> None:
    written(tmp_path, ".jsonl", [row, row])
    check(tmp_path, task=task, options=options)


def test_the_assumed_task_is_named(tmp_path: Path) -> None:
    written(tmp_path, ".csv", [GOOD])
    with pytest.raises(DataError, match=r"no column 'sentence'.*\(task sst2 is the default; name"):
        check(tmp_path)
    with pytest.raises(DataError, match=r"no column 'sentence'.*…\}\}'$"):
        check(tmp_path, task="sst2")


def test_only_first_records_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, ".jsonl", [GOOD] * 500)
    read: list[str] = []

    def counted(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
        for item in json_lines(path):
            read.append(path)
            yield item

    monkeypatch.setattr(table_files, "json_lines", counted)
    check(tmp_path, task="classification")
    assert len(read) == 2  # one of each split
    written(tmp_path, ".jsonl", [{"text": "a"}, GOOD])
    check(tmp_path, task="classification")


@pytest.mark.parametrize("kind", sorted({spec.kind for spec in TASKS.values()} - {"multitask"}))
@pytest.mark.parametrize("given", [{"limit_per_class": 20}, {"class_weights": "balanced"}])
def test_classes_are_wanted_only_of_tasks_with_classes(kind: str, given: dict[str, Any]) -> None:
    task = next(name for name, spec in TASKS.items() if spec.kind == kind)
    forms: list[dict[str, Any]] = [{"task": task}]
    if kind != "package":
        forms.append({"task": "multitask", "tasks": {"sst2": {}, "other": {"task": task}}})
    for form in forms:
        if KINDS[kind].classes:
            parse_config(FinetuneConfig, {**form, **given}, "finetune")
            continue
        with pytest.raises(UsageError, match=f"means nothing to task {task}, .*; leave it out"):
            parse_config(FinetuneConfig, {**form, **given}, "finetune")


def test_remedies_are_those_of_a_run() -> None:
    class Node:
        section, out = "finetune@rte", ""

    text = "name the columns with --set 'options={columns: {…}}', or --set options.irregular=drop"
    assert with_section(text, Node()) == (  # type: ignore[arg-type]
        "name the columns with --set 'finetune@rte.options={columns: {…}}', or --set "
        "finetune@rte.options.irregular=drop"
    )
    Node.out = "somewhere"
    assert with_section(text, Node()) == text  # type: ignore[arg-type]
