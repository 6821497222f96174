"""Numbers for texts: trained by squared errors, exactly however a batch is cut, and scored by
correlations.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cloze.core.errors import DataError, UsageError
from cloze.core.storage import read_tsv
from cloze.model.families.config import ModelConfig
from cloze.model.tasks.formats.texts import ScoredTexts
from cloze.model.tasks.heads import new_network
from cloze.model.tasks.source import TaskObjective
from cloze.model.tasks.table import load_task
from cloze.pipeline.tokenizer.tokenizer import Tokenizer
from tests.model.tasks.stages import evaluate, finetune, settings
from tests.model.tasks.test_objective import gradient


def test_it_learns_a_likeness_and_is_scored_and_predicted(
    pretrained: str, likeness: Path, tmp_path: Path
) -> None:
    config = settings(likeness, task="stsb", epochs=6, baselines=False)
    tuned = finetune(config, pretrained, tmp_path / "tuned").as_json()
    assert tuned["metrics"]["pearson"] > 0.8
    assert tuned["scores"]["dev"]["highest"] == 5.0
    evaluated = evaluate(tmp_path / "tuned", tmp_path / "dev", data=str(likeness), resamples=200)
    assert evaluated.as_json()["metrics"] == pytest.approx(tuned["metrics"])
    content = json.loads((tmp_path / "dev" / "metrics.json").read_text())
    assert set(content["interval"]) == {"pearson", "spearman"}
    low, high = content["interval"]["pearson"]
    assert 0.6 < low < content["metrics"]["pearson"] < high < 1.0
    assert content["constant"] == 0.0
    rows = read_tsv(str(tmp_path / "dev" / "predictions.tsv"))
    errors = [abs(float(row["label"]) - float(row["prediction"])) for row in rows]
    assert content["mean_absolute_error"] == pytest.approx(np.mean(errors), abs=1e-5)
    hidden = evaluate(tmp_path / "tuned", tmp_path / "test", data=str(likeness), split="test")
    assert hidden.as_json()["metrics"] == {}
    rows = read_tsv(str(tmp_path / "test" / "predictions.tsv"))
    assert [row["index"] for row in rows] == [str(number) for number in range(7)]
    assert all(row["label"] == "" and np.isfinite(float(row["prediction"])) for row in rows)


def objective(shape: ModelConfig) -> TaskObjective:
    task = load_task("stsb")
    still = shape.model_copy(update={"hidden_dropout": 0.0, "attention_dropout": 0.0})
    return TaskObjective(
        task, new_network(task, still, None, {}, None, seed=1), "fp32", torch.device("cpu")
    )


def test_the_loss_is_the_mean_squared_error_however_a_batch_is_cut(
    pieces: Tokenizer, shape: ModelConfig
) -> None:
    scores = np.linspace(0.0, 5.0, 11)
    examples = ScoredTexts(
        texts=["good film"] * 11, text_pairs=["bad " * n for n in range(1, 12)], scores=scores
    )
    trained, samples = objective(shape), load_task("stsb").encode(examples, pieces, 32)
    whole, figures = gradient(trained, [samples.batch(np.arange(11))])
    parts, summed = gradient(
        trained, [samples.batch(np.arange(7)), samples.batch(np.arange(7, 11))]
    )
    assert whole.norm() > 0.01
    torch.testing.assert_close(parts, whole, atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(summed, figures)
    with torch.no_grad():
        found = trained(samples.batch(np.arange(11))).squeeze(-1).double().numpy()
    assert float(figures[0]) == pytest.approx(np.square(found - scores).sum(), rel=1e-5)
    assert int(figures[1]) == (np.abs(found - scores) < 0.5).sum()


def test_predictions_are_not_cut_to_the_range() -> None:
    task = load_task("stsb")
    examples = ScoredTexts(texts=["x"] * 3, scores=np.array([0.0, 3.0, 5.0]))
    answers = task.select_outputs(torch.tensor([[-1.5], [3.0], [7.25]]), {}).numpy()
    assert task.decode(answers, examples, None).tolist() == [-1.5, 3.0, 7.25]
    assert task.score(examples, task.decode(answers, examples, None))["spearman"] == pytest.approx(
        1.0
    )
    assert task.baselines(examples) == {"constant": 0.0}


def test_what_cannot_be_learned_from_is_refused(tmp_path: Path, likeness: Path) -> None:
    task = load_task("stsb")
    with pytest.raises(DataError, match=r"x\.tsv has examples of one score only \(3\)"):
        task.metadata(ScoredTexts(texts=["a", "b"], scores=np.array([3.0, 3.0]), where="x.tsv"))
    with pytest.raises(UsageError, match=r"limit_per_class \(5\) means nothing to task stsb"):
        task.read(str(likeness), "train", 5)
    with pytest.raises(UsageError, match=r"class_weights \(balanced\) means nothing to task stsb"):
        task.balance_classes(task.read(str(likeness), "train", None))


def read(directory: Path, **options: Any) -> ScoredTexts:
    found: ScoredTexts = load_task("regression", options).read(str(directory), "dev", None)
    return found


def test_files_of_ones_own_have_any_numbers(tmp_path: Path) -> None:
    (tmp_path / "dev.jsonl").write_text('{"text": "x", "label": -2}\n{"text": "y", "label": 1e3}\n')
    assert read(tmp_path).scores.tolist() == [-2.0, 1000.0]
    with pytest.raises(
        DataError, match=r"dev\.jsonl, line 2: score 1000\.0 is not between -inf and 10"
    ):
        read(tmp_path, highest=10)
    (tmp_path / "dev.jsonl").write_text('{"text": "x", "label": "inf"}\n')
    with pytest.raises(DataError, match=r"line 1: score 'inf' is not a number"):
        read(tmp_path)
