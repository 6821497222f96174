"""What a checkpoint says of a task's head, for every task: a form of the checkpoint, so it stays."""

from __future__ import annotations

from typing import Any

import pytest

from cloze.model.tasks.table import KINDS, TASKS, load_task

LABELS = {"labels": ("a", "b", "c")}
CLASSES: dict[str, Any] = {"classifier": {"num_labels": 3}}
HEADS: dict[str, dict[str, Any]] = {
    "classification": CLASSES,
    "multilabel": CLASSES,
    "answers": CLASSES,
    "package": CLASSES,
    "regression": {"classifier": {"num_labels": 1}},
    "relation": {"relation": {"num_labels": 3}},
    "tagging": {"token_classifier": {"num_labels": 3}},
    "choice": {"choice": {}},
    "spans": {"span": {}},
    "text-to-text": {"seq2seq": {}},
    "open-questions": {"seq2seq": {}},
    "retrieval": {"embedding": {"pooling": "mean", "normalize": True}},
}


def metadata_of(kind: str) -> dict[str, Any]:
    vectors = {"pooling": "mean", "normalize": True}
    return {"regression": {}, "retrieval": vectors}.get(kind, LABELS)


@pytest.mark.parametrize("name", [name for name in TASKS if TASKS[name].kind in HEADS])
def test_a_head_is_told_by_its_name_and_labels(name: str) -> None:
    kind = TASKS[name].kind
    assert load_task(name).heads(metadata_of(kind)) == HEADS[kind]


def test_several_tasks_have_a_head_each_and_two_texts_may_have_their_own() -> None:
    assert set(HEADS) == KINDS.keys() - {"multitask"}
    names = {"mnli": "classification", "conll2003": "tagging", "stsb": "regression"}
    task = load_task("multitask", {"tasks": {name: {} for name in names}})
    metadata = {"tasks": {name: metadata_of(kind) for name, kind in names.items()}}
    assert task.heads(metadata) == {name: HEADS[kind] for name, kind in names.items()}
