"""Any number of labels per text: files, metrics, training, inference, and the Hugging Face form."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as settings_of
from hypothesis import strategies as st
from sklearn.metrics import f1_score

from cloze.core.errors import DataError, UsageError
from cloze.core.storage import read_tsv
from cloze.labs.serving.classify import TextClassificationPipeline
from cloze.model import checkpoint
from cloze.model.hub.read import read_directory
from cloze.model.hub.write import write_directory
from cloze.model.tasks.kinds.multilabel import LabelSets, label_set_intervals, label_set_scores
from cloze.model.tasks.table import load_task
from tests.model.tasks.conftest import BAD, GOOD, NEUTRAL
from tests.model.tasks.stages import evaluate, finetune, settings
from tests.model.tasks.test_text_tasks import read, write


def test_labels_are_lists_or_columns_of_0_and_1(tmp_path: Path) -> None:
    rows = [("x", ["b", "a"]), ("y", []), ("z", ["a"])]
    write(tmp_path / "dev.jsonl", *({"text": text, "label": own} for text, own in rows))
    lists = read("multilabel", tmp_path)
    write(tmp_path / "dev.csv", "text,a,b", "x,1,1", "y,0,0", "z,1,0")
    columns = read("multilabel", tmp_path / "dev.csv", label_columns=["a", "b"])
    for examples in (lists, columns):
        assert examples.label_names == ("a", "b")
        assert examples.matrix().tolist() == [[True, True], [False, False], [True, False]]
    write(tmp_path / "test.csv", "text", "x")
    assert not read("multilabel", tmp_path, "test", label_columns=["a", "b"]).labelled


@pytest.mark.parametrize(
    ("lines", "options", "said"),
    [
        (["text,label", "x,a"], {}, "line 2: the label is not a list of labels"),
        (["text,a", "x,2"], {"label_columns": "a"}, "line 2: '2' is not 0 or 1"),
        (["text,b", "x,2"], {"label_columns": "a"}, "line 1: no column 'a'"),
    ],
)
def test_faults_name_the_line(
    lines: list[str], options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    write(tmp_path / "dev.csv", *lines)
    with pytest.raises(DataError, match=said):
        read("multilabel", tmp_path, **options)


@pytest.mark.parametrize("empty", ['""', "null", "NaN", '" "'])
def test_an_empty_label_is_refused_with_its_line(tmp_path: Path, empty: str) -> None:
    path = tmp_path / "dev.jsonl"
    path.write_text('{"text": "a", "label": ["x", ' + empty + "]}\n")
    with pytest.raises(DataError, match=r"line 1: label 2 of label is empty"):
        load_task("multilabel", {}).read(str(path), "dev", None)


def test_an_unknown_label_and_a_limit_per_class_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", {"text": "x", "label": ["c"]})
    with pytest.raises(DataError, match=r"line 1: label 'c' is not one of a, b"):
        read("multilabel", tmp_path, "train", labels=["a", "b"])
    with pytest.raises(UsageError, match="limit_per_class"):
        load_task("multilabel").read(str(tmp_path), "train", 3)


@settings_of(max_examples=30)
@given(st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=20))
def test_f1_is_scikit_learn_s(rows: list[list[bool]]) -> None:
    labels, found = np.split(np.array(rows), 2, axis=1)
    scores = label_set_scores(labels, found)
    for name in ("micro", "macro"):
        expected = f1_score(labels, found, average=name, zero_division=0)
        assert scores[f"{name}_f1"] == pytest.approx(expected)
    intervals = label_set_intervals(labels, labels | True, seed=1, resamples=20)
    assert all(0 <= low <= high <= 1 for low, high in intervals.values())


def test_the_loss_is_that_of_hugging_face() -> None:
    task = load_task("multilabel")
    outputs, labels = torch.tensor([[2.0, -1.0], [-0.5, 3.0]]), torch.tensor([[1.0, 0], [1, 1]])
    loss = task.loss(outputs, {"labels": labels})
    expected = torch.nn.BCEWithLogitsLoss()(outputs, labels)
    assert torch.allclose(loss.total / 2, expected)
    assert int(loss.correct) == 1


# Words of each set of labels.
WORDS = {(): NEUTRAL, ("bad",): BAD[:2], ("good",): GOOD[:2], ("bad", "good"): [GOOD[2], BAD[2]]}


def opinions(folder: Path) -> Path:
    """Texts whose labels are those of one of their words."""
    draw = random.Random(5)
    for split, count in (("train", 240), ("dev", 40)):
        rows = []
        for _ in range(count):
            labels = draw.choice(list(WORDS))
            words = [draw.choice(NEUTRAL) for _ in range(6)]
            words[draw.randrange(6)] = draw.choice(WORDS[labels])
            rows.append({"text": " ".join(words), "label": list(labels)})
        write(folder / f"{split}.jsonl", *rows)
    return folder


def test_several_labels_are_learned_classified_and_exported(
    pretrained: str, tmp_path: Path
) -> None:
    data = opinions(tmp_path / "data")
    tuned = finetune(
        settings(data, task="multilabel", epochs=16, learning_rate=1e-3, baselines=False),
        pretrained,
        tmp_path / "tuned",
    )
    assert tuned.manifest.summary["metrics"]["micro_f1"] > 0.95
    assert tuned.manifest.summary["classes"]["dev"].keys() == {"bad", "good"}
    evaluated = evaluate(tmp_path / "tuned", tmp_path / "dev", data=str(data), resamples=20)
    assert evaluated.manifest.summary["metrics"] == tuned.manifest.summary["metrics"]
    predictions = read_tsv(str(tmp_path / "dev" / "predictions.tsv"))
    assert {row["prediction"] for row in predictions} == {"", "bad", "good", "bad, good"}

    classifier = TextClassificationPipeline(str(tmp_path / "tuned"))
    both, neither = classifier.classify(["the warm film and the plot", "the film and the plot"])
    assert min(label["score"] for label in both) > 0.5
    assert max(label["score"] for label in neither) < 0.5

    loaded = checkpoint.load(str(tmp_path / "tuned" / "checkpoint"))
    config = write_directory(loaded, str(tmp_path / "hub"))
    assert config["problem_type"] == "multi_label_classification"
    assert read_directory(str(tmp_path / "hub")).task == loaded.task


def test_examples_without_labels_are_aligned() -> None:
    examples = LabelSets(texts=["x"], labels=None, label_names=())
    aligned = load_task("multilabel").align_labels(examples, {"labels": ["a"]})
    assert aligned.label_names == ("a",)
