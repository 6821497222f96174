"""The deployments with real stages: a whole run through a worker, and two trainings that share a
GPU's slot.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import psutil
import pytest

from cloze.core.artifacts import artifact, checkpoint_files
from cloze.flows.prefect.environment import PREFECT_YAML
from tests.flows.test_cli import cloze
from tests.model.datasets import lines, write_dataset
from tests.operations.servers import Operations, prefect, until

SMALL = {
    "dataset.mask_copies": 2,
    "pretrain.steps": 6,
    "run.processes": 1,
    "run.workers": 1,
    "finetune.baselines": False,
}


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_a_full_run_and_its_parts(operations: Operations) -> None:
    """Under a worker that sees one GPU, so that trainings take its slot; torch finds none and
    computes on the CPU.
    """
    prefect(operations, "deploy", "--all", "--prefect-file", str(PREFECT_YAML))
    data = operations.trigger("data/data", config="sample", mask_copies=2, workers=1)
    assert operations.end(data)["type"] == "COMPLETED"
    assert set(operations.tasks(data)) == {"corpus", "vocab", "dataset"}
    whole = operations.trigger("full-run/full-run", config="sample", overrides=SMALL)
    assert operations.end(whole)["type"] == "COMPLETED"
    tasks = operations.tasks(whole)
    assert set(tasks) == {
        "corpus",
        "vocab",
        "dataset",
        "pretrain",
        "finetune",
        "evaluate",
        "report",
    }
    assert [tasks[name] for name in ("corpus", "vocab", "dataset")] == [["Cached"]] * 3
    assert artifact.verify(str(operations.runs / "sample" / "report")).ok
    again = operations.trigger("full-run/full-run", config="sample", overrides=SMALL)
    assert operations.end(again)["message"] == "nothing to do"
    lines = [text for _, text in operations.logs(whole)]
    assert any("6/6 steps" in line and "loss" in line for line in lines)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_two_trainings_never_share_a_gpu(tmp_path: Path) -> None:
    operations = Operations(tmp_path)
    try:
        found = cloze(
            "run", "sample", "--only", "corpus", "--only", "vocab", "--only", "dataset",
            "--no-prefect", cwd=tmp_path, timeout=300,
            CLOZE_RUNS_DIR=str(operations.runs), PATH=os.environ["PATH"],
        )  # fmt: skip
        assert found.returncode == 0, found.stderr
        prefect(operations, "work-pool", "create", "cloze", "--type", "process")
        prefect(operations, "deploy", "--all", "--prefect-file", str(PREFECT_YAML))
        operations.worker(CUDA_VISIBLE_DEVICES="0")
        dataset = str((operations.runs / "sample" / "dataset").resolve())
        runs = []
        for name in ("one", "two"):
            path = tmp_path / f"{name}.yaml"
            pretrain = {"dataset": dataset, "model": "bert-tiny", "steps": 60, "global_batch": 16}
            path.write_text(
                json.dumps(
                    {
                        "name": name,
                        "pretrain": pretrain,
                        "run": {"processes": 1, "resources": {"cpus": 1}},
                    }
                )
            )
            runs.append(operations.trigger("pretraining/pretraining", config=str(path)))
        ends = [operations.end(run) for run in runs]
        assert [end["type"] for end in ends] == ["COMPLETED", "COMPLETED"], ends
        spans = []
        for name in ("one", "two"):
            record = json.loads(
                sorted((operations.runs / name).glob("_status/*.json"))[-1].read_text()
            )
            node = record["nodes"]["pretrain"]
            spans.append((node["started"], node["ended"]))
        (_, first_end), (second_start, _) = sorted(spans)
        assert second_start >= first_end - 0.5
    finally:
        operations.close()


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_sigterm_to_the_process_of_a_flow_run_saves_a_training_over_two_ranks(
    operations: Operations, tmp_path: Path
) -> None:
    """As a supervisor of processes ends it, Prefect not knowing: all ranks end in the grace time,
    with the step that they were at.
    """
    prefect(operations, "deploy", "--all", "--prefect-file", str(PREFECT_YAML))
    config, runs = tmp_path / "terminated.yaml", operations.runs / "terminated"
    pretrain = {
        "dataset": write_dataset(tmp_path / "dataset"), "model": "bert-tiny", "steps": 100_000,
        "global_batch": 8, "precision": "fp32",
        "evaluate_every": 100_000, "log_every": 1,
    }  # fmt: skip
    run = {"processes": 2, "threads": 1, "device": "cpu", "grace_seconds": 60}
    config.write_text(json.dumps({"name": "terminated", "pretrain": pretrain, "run": run}))
    flow_run = operations.trigger("pretraining/pretraining", config=str(config))
    until(lambda: any(len(lines(path)) > 3 for path in runs.glob("pretrain-*/metrics.jsonl")), 400)
    engine = next(
        process
        for process in operations.processes()
        if "prefect.engine" in " ".join(process.cmdline())
    )
    ranks = [
        process
        for process in operations.processes()
        if "cloze.model.worker" in " ".join(process.cmdline())
    ]
    assert len(ranks) == 2
    engine.terminate()
    assert operations.end(flow_run)["type"] in ("CRASHED", "CANCELLED")
    until(
        lambda: (
            not [
                process
                for process in (engine, *ranks)
                if process.is_running() and process.status() != psutil.STATUS_ZOMBIE
            ]
        )
    )
    (saved,) = runs.glob("pretrain-*/checkpoints/*")
    checkpoint_files.verify(str(saved))
    (log,) = runs.glob("pretrain-*/metrics.jsonl")
    assert saved.name == f"step-{int(str(lines(log)[-1]['step'])):08d}"
    record = json.loads(sorted(runs.glob("_status/*.json"))[-1].read_text())
    assert (
        f"training was stopped after step {int(saved.name.removeprefix('step-'))} of"
        in record["nodes"]["pretrain"]["error"]
    )


@pytest.mark.timeout(600)
def test_a_run_goes_on_without_a_prefect_that_does_not_answer(tmp_path: Path) -> None:
    done = cloze(
        "run", "sample", "--only", "corpus", "--json", cwd=tmp_path, timeout=500,
        PREFECT_API_URL="http://127.0.0.1:9/api", PREFECT_CLIENT_MAX_RETRIES="0",
        MLFLOW_TRACKING_URI="http://127.0.0.1:9",
        PREFECT_HOME=str(tmp_path / "prefect"), PATH=os.environ["PATH"],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "without it" in done.stderr
    assert "the rest is kept in" in " ".join(done.stderr.split())  # MLflow's records
    assert [stage["stage"] for stage in done.json["stages"]] == ["corpus"]
