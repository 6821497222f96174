"""`cloze run`, killed between two checkpoints of its pretraining: the same command goes on, and
every step is recorded once.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from cloze.core.artifacts import artifact
from cloze.flows.graph import config as configs
from cloze.flows.graph import plan
from tests import warm
from tests.flows.test_cli import Done, cloze
from tests.model.datasets import lines, write_dataset
from tests.model.train.ranks import TINY, digests
from tests.operations.mlflow_server import drain

STEPS, EVERY = 50, 15
COMMAND = ["run", "tiny.yaml", "--no-prefect", "--only", "pretrain", "--json"]

pytestmark = pytest.mark.timeout(300)


def prepare(place: Path, samples: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A config, and a ready dataset where its run looks for one."""
    place.mkdir()
    monkeypatch.chdir(place)
    pretrain = {
        "model": TINY,
        "steps": STEPS,
        "global_batch": 8,
        "precision": "fp32",
        "log_every": 1,
        "heldout_rows": 8,
    }
    content = {
        "corpus": {"sources": [{"kind": "books", "path": str(samples / "books")}]},
        "vocab": {},
        "dataset": {},
        "pretrain": {**pretrain, "learning_rate": 3e-3},
        "run": {
            "processes": 2,
            "zero": 1,
            "threads": 1,
            "device": "cpu",
            "checkpoint_every": EVERY,
        },
    }
    Path("tiny.yaml").write_text(yaml.safe_dump(content))
    step = next(step for step in plan.plan(configs.load("tiny.yaml")) if step.name == "dataset")
    write_dataset(Path(step.artifact))
    manifest = artifact.read_manifest(step.artifact)
    artifact.write_manifest(
        step.artifact, dataclasses.replace(manifest, fingerprint=step.fingerprint)
    )


def run(place: Path, database: str) -> Done:
    return cloze(*COMMAND, cwd=place, MLFLOW_TRACKING_URI=database)


def start(place: Path, database: str) -> subprocess.Popen[str]:
    command = [warm.python(), "-c", warm.ENTRY, *COMMAND]
    env = {**os.environ, "MLFLOW_TRACKING_URI": database}
    return subprocess.Popen(
        command, cwd=place, env=env, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def building(place: Path) -> Path:
    return next((place / "runs" / "tiny").glob("pretrain-*"))


def wait_past_a_checkpoint(place: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while (
        len([1 for path in place.glob("runs/tiny/pretrain-*/metrics.jsonl") for _ in path.open()])
        < EVERY + 5
    ):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)


def recorded(place: Path, database: str, build_id: str) -> tuple[list[int], str]:
    """The steps of the loss in MLflow, one for every point, and the run's status."""
    from mlflow import MlflowClient

    drain(place / "runs" / ".tracking", database)  # sends what the command did not wait for
    client = MlflowClient(tracking_uri=database)
    experiment = client.get_experiment_by_name("cloze")
    assert experiment is not None
    (found,) = client.search_runs([experiment.experiment_id], f"tags.`cloze.run` = '{build_id}'")
    points = client.get_metric_history(found.info.run_id, "loss/loss")
    return sorted(point.step for point in points if point.step), found.info.status


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'mlflow.db'}"
    MlflowClient(
        tracking_uri=uri
    ).search_experiments()  # makes its tables, which a kill must not hit
    return uri


@pytest.fixture(scope="module")
def straight(database: str, samples: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run that nobody disturbs leaves."""
    place = tmp_path_factory.mktemp("straight") / "run"
    with pytest.MonkeyPatch.context() as patch:
        prepare(place, samples, patch)
        done = run(place, database)
    assert done.returncode == 0, done.stderr
    return place


def checkpoint_of(place: Path) -> tuple[dict[str, str], dict[str, Any]]:
    """The last checkpoint: the hashes of its files, and its training state, both without the
    build's own name.
    """
    directory = next(building(place).glob("checkpoints/step-*"))
    state = json.loads((directory / "training/state.json").read_text())
    del state["run"]["build"]
    return {
        name: digest for name, digest in digests(directory).items() if name != "training/state.json"
    }, state


@pytest.mark.parametrize("victim", ["tree", "rank"])
@pytest.mark.soak
def test_the_same_command_goes_on(
    victim: str,
    straight: Path,
    database: str,
    samples: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = tmp_path / "run"
    prepare(place, samples, monkeypatch)
    process = start(place, database)
    wait_past_a_checkpoint(place, process)
    if victim == "tree":
        warm.kill(process)
    else:
        ranks = [
            child for child in warm.family(process.pid) if "cloze.model.worker" in child.cmdline()
        ]
        ranks[1].kill()
        _, told = process.communicate(timeout=60)
        assert process.returncode == 1
        assert "pretrain rank 1 was killed (SIGKILL" in told.splitlines()[-1]
    begun: dict[str, Any] = json.loads((building(place) / "_building.json").read_text())
    logged = (building(place) / "metrics.jsonl").read_text().count("\n")
    saved = max(
        int(path.name.removeprefix("step-")) for path in building(place).glob("checkpoints/step-*")
    )
    assert logged > saved  # these are computed again
    again = run(place, database)
    assert again.returncode == 0, again.stderr
    assert [line["step"] for line in lines(building(place) / "metrics.jsonl")] == list(
        range(1, STEPS + 1)
    )
    assert artifact.read_manifest(str(building(place))).build == begun["build"]
    assert recorded(place, database, begun["build"]) == (list(range(1, STEPS + 1)), "FINISHED")
    assert checkpoint_of(place) == checkpoint_of(straight)
