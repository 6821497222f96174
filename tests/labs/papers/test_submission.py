"""GLUE's submission: the official files, from the answers of the model that is best on dev; and the
table beside the paper's.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloze.core.artifacts import artifact
from cloze.core.artifacts.artifact import Manifest
from cloze.core.errors import DataError
from cloze.core.stages.execute import BuildResult, execute
from cloze.core.stages.execution import Execution
from cloze.flows.report.report_nodes import NodePlacement
from cloze.labs.papers.submission import FILES, STAGE, SubmissionConfig
from cloze.model.tasks.table import load_task
from tests.glue_files import TEST_ROWS, write_glue

SCORES = {
    "cola": ("matthews", "accuracy"),
    "mrpc": ("f1", "accuracy"),
    "qqp": ("f1", "accuracy"),
    "stsb": ("pearson", "spearman"),
}


class Run:
    """Nodes as a run leaves them: prediction files are written by the tasks themselves, from test
    files.
    """

    def __init__(self, directory: Path, data: Path) -> None:
        self.directory, self.data = directory, data
        self.inputs: dict[str, str] = {}
        self.places: dict[str, NodePlacement] = {}

    def add(self, name: str, summary: Mapping[str, Any], **place: Any) -> Path:
        path = self.directory / name
        path.mkdir()
        stage = name.partition("@")[0]
        artifact.write_manifest(
            str(path),
            Manifest(
                stage=stage,
                version=1,
                fingerprint=name,
                parents={},
                config={},
                files=(),
                summary=dict(summary),
            ),
        )
        self.inputs[name], self.places[name] = str(path), NodePlacement(section=stage, **place)
        return path

    def tuned(self, task: str, seed: int, value: float, **more: float) -> str:
        name = f"finetune@{task}-{seed}"
        metrics = dict.fromkeys(SCORES.get(task, ("accuracy",)), value) | {
            "majority": 0.5,
            "from_scratch": 0.1,
            **more,
        }
        self.add(
            name,
            {"task": task, "metric": next(iter(metrics)), "metrics": metrics},
            values={"task": task, "seed": seed},
        )
        return name

    def answered(self, task: str, seed: int, split: str, said: int) -> None:
        """The evaluation in which every answer is the label of that number."""
        kind: Any = load_task(task)
        examples = kind.read(str(self.data), split, None)
        labels = len(getattr(examples, "label_names", ()))
        answers = (
            np.full(len(examples), float(said))
            if task == "stsb"
            else np.eye(labels, dtype=np.float32)[[said] * len(examples)]
        )
        summary = {"task": task, "split": split, "metrics": {}, "predictions": "predictions.tsv"}
        inputs = {"checkpoint": f"finetune@{task}-{seed}"}
        path = self.add(
            f"evaluate@{task}-{split}-{seed}",
            summary,
            values={"task": task, "seed": seed},
            inputs=inputs,
        )
        kind.write_predictions(str(path), examples, answers)

    def together(self, task: str, seeds: tuple[int, ...], split: str, **summary: Any) -> None:
        """The evaluation of an ensemble, whose answers are all the second label."""
        kind: Any = load_task(task)
        name = f"evaluate@ensemble-{task}-{split}"
        inputs = {f"checkpoint/{seed}": f"finetune@{task}-{seed}" for seed in seeds}
        content = {"task": task, "split": split, "predictions": "predictions.tsv", **summary}
        path = self.add(name, content, values={"task": task}, inputs=inputs)
        examples = kind.read(str(self.data), split, None)
        kind.write_predictions(
            str(path), examples, np.eye(2, dtype=np.float32)[[1] * len(examples)]
        )

    def handed_in(self, out: Path) -> BuildResult:
        return execute(
            STAGE, SubmissionConfig(nodes=self.places), self.inputs, str(out), execution=Execution()
        )


@pytest.fixture(scope="module")
def glue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_glue(tmp_path_factory.mktemp("glue"))


def files_in(result: BuildResult) -> dict[str, list[str]]:
    with zipfile.ZipFile(Path(result.artifact) / result.manifest.summary["submission"]) as found:
        return {
            name: io.TextIOWrapper(found.open(name), "utf-8").read().splitlines()
            for name in found.namelist()
        }


def test_all_official_files_from_the_best_seed_of_each_task(tmp_path: Path, glue: Path) -> None:
    run = Run(tmp_path, glue)
    for task in {file.task for file in FILES.values()}:
        for seed, value in ((1, 0.6), (2, 0.8), (3, 0.7)):
            run.tuned(task, seed, value)
            for split in ("test", "test_mismatched", "ax") if task == "mnli" else ("test",):
                run.answered(task, seed, split, said=int(seed == 2))
    result = run.handed_in(tmp_path / "out")
    found = files_in(result)
    assert sorted(found) == sorted([
        "AX.tsv", "CoLA.tsv", "MNLI-m.tsv", "MNLI-mm.tsv", "MRPC.tsv", "QNLI.tsv", "QQP.tsv",
        "RTE.tsv", "SST-2.tsv", "STS-B.tsv", "WNLI.tsv",
    ])  # fmt: skip
    second = {
        "AX.tsv": "neutral",
        "MNLI-m.tsv": "neutral",
        "MNLI-mm.tsv": "neutral",
        "QNLI.tsv": "not_entailment",
        "RTE.tsv": "not_entailment",
    }
    for name, lines in found.items():
        said = second.get(name, "1.000000" if name == "STS-B.tsv" else "1")
        assert lines == ["index\tprediction", *(f"{i}\t{said}" for i in range(TEST_ROWS))], name
    assert {entry["node"] for entry in result.manifest.summary["files"].values()} == {
        f"finetune@{task}-2" for task in {file.task for file in FILES.values()}
    }
    assert result.manifest.summary["missing"] == {}
    (table,) = result.manifest.summary["tables"]
    assert ["MRPC.tsv", "finetune@mrpc-2"] in table["rows"]
    # a test file of another size is no GLUE's
    assert "CoLA.tsv has 4 rows, GLUE's has 1,063" in " ".join(table["notes"])


def test_what_is_not_there_is_said_and_what_the_server_wants(tmp_path: Path, glue: Path) -> None:
    run = Run(tmp_path, glue)
    run.tuned("sst2", 1, 0.9)
    run.answered("sst2", 1, "test", said=0)
    run.tuned("rte", 1, 0.6)
    result = run.handed_in(tmp_path / "out")
    assert list(files_in(result)) == ["SST-2.tsv"]
    missing = result.manifest.summary["missing"]
    assert len(missing) == len(FILES) - 1
    assert missing["RTE.tsv"] == "no test file of rte: dev only"
    assert missing["CoLA.tsv"] == "task cola is not in this run"
    notes = result.manifest.summary["tables"][0]["notes"]
    assert any(
        "gluebenchmark.com refuses an archive" in note and "sample_submission.zip" in note
        for note in notes
    )


def test_without_any_test_file_there_is_no_archive(tmp_path: Path, glue: Path) -> None:
    run = Run(tmp_path, glue)
    run.tuned("sst2", 1, 0.9)
    result = run.handed_in(tmp_path / "out")
    assert "submission" not in result.manifest.summary
    assert not (Path(result.artifact) / "submission.zip").exists()


def test_equal_answers_make_equal_bytes(tmp_path: Path, glue: Path) -> None:
    run = Run(tmp_path, glue)
    run.tuned("sst2", 1, 0.9)
    run.answered("sst2", 1, "test", said=1)
    first, second = run.handed_in(tmp_path / "one"), run.handed_in(tmp_path / "two")
    assert (Path(first.artifact) / "submission.zip").read_bytes() == (
        Path(second.artifact) / "submission.zip"
    ).read_bytes()


def test_an_answer_that_glue_does_not_know_is_refused(tmp_path: Path, glue: Path) -> None:
    run = Run(tmp_path, glue)
    run.tuned("rte", 1, 0.9)
    run.answered("rte", 1, "test", said=1)
    name = tmp_path / "evaluate@rte-test-1" / "predictions.tsv"
    name.write_text(name.read_text().replace("not_entailment", "contradiction", 1))
    with pytest.raises(
        DataError,
        match=r"predictions.tsv, line 2: prediction 'contradiction' is none that GLUE knows of rte",
    ):
        run.handed_in(tmp_path / "out")


@pytest.mark.parametrize(
    ("on_dev", "chosen"), [(0.95, "evaluate@ensemble-sst2-test"), (0.6, "finetune@sst2-2")]
)
def test_an_ensemble_hands_in_where_it_is_better_on_dev(
    on_dev: float, chosen: str, tmp_path: Path, glue: Path
) -> None:
    run = Run(tmp_path, glue)
    for seed, value in ((1, 0.6), (2, 0.8)):
        run.tuned("sst2", seed, value)
        run.answered("sst2", seed, "test", said=0)
    run.together("sst2", (1, 2), "test", metrics={})
    run.together("sst2", (1, 2), "dev", metrics={"accuracy": on_dev}, metric="accuracy")
    result = run.handed_in(tmp_path / "out")
    entry = result.manifest.summary["files"]["SST-2.tsv"]
    assert entry["node"] == chosen
    is_ensemble = chosen.startswith("evaluate")
    members = ["finetune@sst2-1", "finetune@sst2-2"]
    assert entry.get("members") == (members if is_ensemble else None)
    assert {line.split("\t")[1] for line in files_in(result)["SST-2.tsv"][1:]} == {
        str(int(is_ensemble))
    }
    rows = dict(result.manifest.summary["tables"][0]["rows"])
    assert rows["SST-2.tsv"] == (f"{chosen} ({', '.join(members)})" if is_ensemble else chosen)


def test_an_ensemble_without_a_score_on_dev_is_told_and_not_taken(
    tmp_path: Path, glue: Path
) -> None:
    run = Run(tmp_path, glue)
    for seed in (1, 2):
        run.tuned("sst2", seed, 0.6)
    run.together("sst2", (1, 2), "test", metrics={})
    result = run.handed_in(tmp_path / "out")
    assert result.manifest.summary["files"] == {}
    notes = " ".join(result.manifest.summary["tables"][0]["notes"])
    assert "evaluate@ensemble-sst2-test has no score on dev" in notes
