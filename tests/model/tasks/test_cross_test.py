"""Trained on one task, tested on another: labels are matched by name, and several may become one."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from sklearn.metrics import f1_score

from cloze.core.errors import DataError, UsageError
from cloze.core.storage import read_tsv
from cloze.flows.graph.config import load
from cloze.model.tasks.evaluate.stage import EvaluateConfig
from cloze.model.tasks.predict import FinetunedModel
from tests.glue_files import write_glue
from tests.model.tasks.stages import evaluate, finetune, settings
from tests.model.tasks.test_spans_stages import content, write

TWO = {"neutral": "not_entailment", "contradiction": "not_entailment"}


@pytest.fixture(scope="module")
def glue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_glue(tmp_path_factory.mktemp("glue"), train=48, dev=24)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, pretrained: str, glue: Path) -> Any:
    """A function that gives the model of a task, trained once."""
    root = tmp_path_factory.mktemp("trained")

    def train(task: str) -> Path:
        if not (root / task).exists():
            config = settings(glue, task=task, epochs=2, baselines=False)
            finetune(config, pretrained, root / task)
        return root / task

    return train


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle, delimiter="\t", quoting=csv.QUOTE_NONE))


def test_three_labels_answer_a_question_of_two(trained: Any, glue: Path, tmp_path: Path) -> None:
    model = FinetunedModel(str(trained("mnli")))
    assert list(model.metadata["labels"]) == ["entailment", "neutral", "contradiction"]
    file = rows(glue / "RTE" / "dev.tsv")
    result = evaluate(
        trained("mnli"), tmp_path / "out", data=str(glue), test_on="rte", label_map=TWO
    ).as_json()
    assert (result["task"], result["trained_on"]) == ("rte", "mnli")
    predicted = read_tsv(str(tmp_path / "out" / "predictions.tsv"))
    assert [row["label"] for row in predicted] == [row["label"] for row in file]
    assert {row["prediction"] for row in predicted} <= {"entailment", "not_entailment"}
    blank = model.task.read(str(glue), "dev", None)
    texts = [row["sentence1"] for row in file], [row["sentence2"] for row in file]
    own = type(blank)(
        texts=texts[0], text_pairs=texts[1], labels=None, label_names=blank.label_names
    )
    probabilities = model.predict(model.encode(own))
    entailed = probabilities[:, 0] > probabilities[:, 1:].sum(axis=1)
    names = np.where(entailed, "entailment", "not_entailment").tolist()
    assert [row["prediction"] for row in predicted] == names
    accuracy = np.mean([name == row["label"] for name, row in zip(names, file, strict=True)])
    assert result["metrics"]["accuracy"] == pytest.approx(accuracy)


def test_two_labels_answer_a_question_of_three_and_the_own_task_stays(
    trained: Any, glue: Path, tmp_path: Path
) -> None:
    common = {"data": str(glue), "label_map": TWO}
    evaluate(trained("rte"), tmp_path / "mnli", test_on="mnli", **common)
    predicted = read_tsv(str(tmp_path / "mnli" / "predictions.tsv"))
    assert {row["label"] for row in predicted} == {"entailment", "not_entailment"}
    evaluate(trained("rte"), tmp_path / "mapped", test_on="rte", **common)
    evaluate(trained("rte"), tmp_path / "plain", data=str(glue))
    files = [(tmp_path / name / "predictions.tsv").read_bytes() for name in ("mapped", "plain")]
    assert files[0] == files[1]


def test_f1_is_of_the_datas_own_positive_label(trained: Any, glue: Path, tmp_path: Path) -> None:
    names = {"0": "not_entailment", "1": "entailment"}
    for task in ("rte", "mrpc"):
        out = tmp_path / task
        result = evaluate(
            trained(task), out, data=str(glue), test_on="mrpc", label_map=names
        ).as_json()
        predicted = read_tsv(str(out / "predictions.tsv"))
        truth, guess = (
            [row[column] == "entailment" for row in predicted] for column in ("label", "prediction")
        )
        assert result["metrics"]["f1"] == pytest.approx(f1_score(truth, guess))
    with pytest.raises(DataError, match=r"label 'neutral' is unknown to the model"):
        label_map = {"contradiction": "not_entailment"}
        out = tmp_path / "mnli"
        evaluate(trained("rte"), out, data=str(glue), test_on="mnli", label_map=label_map)


def test_what_cannot_be_compared_is_told(trained: Any, glue: Path, tmp_path: Path) -> None:
    out, data = tmp_path / "out", str(glue)
    with pytest.raises(DataError, match="'not_entailment' is unknown to the model.* label_map"):
        evaluate(trained("mnli"), out, data=data, test_on="rte")
    with pytest.raises(UsageError, match=r"test_on \(stsb\) is a task of another kind than rte"):
        evaluate(trained("rte"), out, data=data, test_on="stsb")
    with pytest.raises(UsageError, match="label_map means nothing to task stsb"):
        evaluate(trained("stsb"), out, data=data, label_map=TWO)
    with pytest.raises(ValidationError, match="no such task"):
        EvaluateConfig(test_on="rtee")


def test_a_model_of_squad_is_scored_on_questions_without_answers(
    pretrained: str, tmp_path: Path
) -> None:
    for split, count in (("train", 30), ("dev", 12)):
        write(tmp_path / f"{split}-v1.1.json", content(count, seed=1, unanswerable=False))
        write(tmp_path / f"{split}-v2.0.json", content(count, seed=2))
    config = settings(tmp_path, task="squad", max_length=24, epochs=1, baselines=False)
    finetune(config, pretrained, tmp_path / "tuned")
    result = evaluate(tmp_path / "tuned", tmp_path / "out", data=str(tmp_path), test_on="squad2")
    assert {"f1", "exact_match", "NoAns_f1"} <= result.as_json()["metrics"].keys()


def test_the_preset_is_a_square(glue: Path) -> None:
    overrides = {"finetune": {"data": str(glue), "checkpoint": "/runs/x/pretrain"}}
    nodes = load("cross-test", overrides).nodes
    tests = [node for node in nodes.values() if node.stage == "evaluate"]
    pairs = {(node.inputs["checkpoint"].node, node.config.test_on) for node in tests}  # type: ignore[attr-defined]
    assert len(tests) == len(pairs) == 27
    assert nodes["evaluate@rte-mnli-1"].depends_on == ("finetune@mnli-1",)
