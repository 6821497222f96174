"""A worker of `cloze serve` and `cloze evaluate` compute in int8 when they are told so."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from cloze.core.errors import UsageError
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import BuildContext, Reporter
from cloze.labs.serving import worker
from cloze.labs.serving.worker import ServingConfig
from cloze.model.tasks.evaluate.config import EvaluateConfig
from cloze.model.tasks.evaluate.run import run as evaluate
from tests.tiny_models import write_checkpoint, write_classifier


class Kept(Reporter):
    def __init__(self) -> None:
        self.records: list[Mapping[str, Any]] = []

    def predictions(self, values: Sequence[Mapping[str, Any]]) -> None:
        self.records += values


def answers(
    checkpoint: str, scratch: Path, precision: str, texts: Sequence[str], explain: bool = False
) -> Any:
    requests = [{"text": text, "explain": explain} for text in texts]
    source = scratch / "batches.jsonl"
    source.write_text(json.dumps({"batch": 0, "requests": requests}) + "\n")
    kept = Kept()
    build = BuildContext(
        str(scratch), {"checkpoint": checkpoint}, Execution(device="cpu"), "f", report=kept
    )
    worker.run(ServingConfig(source=str(source), precision=precision), build)  # type: ignore[arg-type]
    ready, batch = kept.records
    assert ready["ready"]["explains"] == (precision != "int8")
    return batch["answers"]


def test_a_worker_answers_in_it_and_one_text_as_in_a_batch(tmp_path: Path) -> None:
    path = write_classifier(tmp_path / "classifier", tmp_path / "pieces")
    texts = ["the cat sat on the mat.", "a dog ran", "paris is the capital of a park"]
    exact = answers(path, tmp_path, "fp32", texts)
    rounded = answers(path, tmp_path, "int8", texts)
    for one, other in zip(exact, rounded, strict=True):
        assert other["score"] != one["score"]
        assert other["score"] == pytest.approx(one["score"], abs=0.1)
    (alone,) = answers(path, tmp_path, "int8", texts[1:2])
    assert alone["score"] == pytest.approx(rounded[1]["score"], abs=1e-5)


def test_a_worker_with_a_masked_model(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "checkpoint", tmp_path / "pieces")
    (found,) = answers(path, tmp_path, "int8", ["the [MASK] sat"])
    assert "error" not in found


def test_an_explanation_has_no_gradient_in_it(tmp_path: Path) -> None:
    path = write_classifier(tmp_path / "classifier", tmp_path / "pieces")
    (exact,) = answers(path, tmp_path, "fp32", ["the cat sat"], explain=True)
    assert exact["explanation"]
    (refused,) = answers(path, tmp_path, "int8", ["the cat sat"], explain=True)
    assert "has no gradients in int8; ask another checkpoint or precision" in refused["error"]


def test_an_evaluation_scores_it_and_a_gpu_is_refused(tmp_path: Path) -> None:
    path = write_classifier(tmp_path / "classifier", tmp_path / "pieces", ("0", "1"))
    rows = ["sentence\tlabel", "the cat sat\t1", "a dog ran\t0", "paris\t1"]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "dev.tsv").write_text("\n".join(rows) + "\n")
    summaries = []
    for precision in ("fp32", "int8"):
        place = tmp_path / precision
        place.mkdir()
        build = BuildContext(str(place), {"checkpoint": path}, Execution(device="cpu"), "f")
        config = EvaluateConfig(data=str(tmp_path / "data"), precision=precision)  # type: ignore[arg-type]
        summaries.append(evaluate(config, build).summary)
    assert [summary["precision"] for summary in summaries] == ["fp32", "int8"]
    texts = [(tmp_path / name / "predictions.tsv").read_text() for name in ("fp32", "int8")]
    assert texts[0] != texts[1]  # the scores beside the labels
    with pytest.raises(UsageError, match="cuda"):
        answers_on_gpu = ServingConfig(precision="int8", device="cuda", source="x", verb="classify")
        build = BuildContext(str(tmp_path), {"checkpoint": path}, Execution(device="cpu"), "f")
        worker.run(answers_on_gpu, build)
