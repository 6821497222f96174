"""The deployments on a real local server: deployed, triggered through the API, run by a worker, complete."""

from __future__ import annotations

import json
import os
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.core import artifact
from tests.conftest import REPOSITORY
from tests.flows.test_cli import cloze
from tests.operations.ui import running_ui

SMALL = {"dataset.copies": 2, "pretrain.steps": 6, "run.processes": 1, "run.workers": 1, "finetune.baselines": False}
TIMEOUT = 240


def request(api: str, path: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    call = urllib.request.Request(f"{api}{path}", data=data, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(call, timeout=30) as response:
        return json.load(response)


def run_deployment(api: str, name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    deployment = request(api, f"/deployments/name/{name}")
    flow_run = request(api, f"/deployments/{deployment['id']}/create_flow_run", {"parameters": parameters})
    deadline = time.monotonic() + TIMEOUT
    while flow_run["state"]["type"] not in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED"):
        assert time.monotonic() < deadline, flow_run["state"]
        time.sleep(1)
        flow_run = request(api, f"/flow_runs/{flow_run['id']}")
    return dict(flow_run)


def test_prefect_yaml_has_no_unknown_keys() -> None:
    """Prefect ignores a mistyped key, so it is checked here against Prefect's own model of a deployment."""
    from prefect.cli.deploy._models import PrefectYamlModel

    content = yaml.safe_load((REPOSITORY / "prefect.yaml").read_text())
    PrefectYamlModel.model_validate(content)
    deployment_keys = set(PrefectYamlModel.model_fields["deployments"].annotation.__args__[0].model_fields)
    assert set(content) <= set(PrefectYamlModel.model_fields) | {"prefect-version"}
    for deployment in content["deployments"]:
        assert set(deployment) <= deployment_keys, set(deployment) - deployment_keys


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_full_run_and_nightly_evaluation(tmp_path: Path) -> None:
    with running_ui(tmp_path, MLFLOW_TRACKING_URI=f"sqlite:///{tmp_path}/mlflow.db") as ui:
        api = ui["api"]
        schema = request(api, "/deployments/name/cloze/full-run")["parameter_openapi_schema"]
        choices = json.dumps(schema["properties"]["start_from"])
        assert '"pretrain"' in choices  # the form offers the stages

        flow_run = run_deployment(api, "cloze/full-run", {"config": "sample", "overrides": SMALL})
        assert flow_run["state"]["type"] == "COMPLETED", flow_run["state"]
        tasks = request(api, "/task_runs/filter", {"flow_runs": {"id": {"any_": [flow_run["id"]]}}})
        assert {task["name"].partition("-")[0] for task in tasks} == {
            "corpus", "vocab", "dataset", "pretrain", "finetune", "evaluate", "report"
        }  # fmt: skip
        run = tmp_path / "runs" / "sample"
        assert artifact.verify(str(run / "report")).ok

        nightly = run_deployment(api, "nightly-evaluation/nightly", {"config": "sample", "overrides": SMALL})
        assert nightly["state"]["type"] == "COMPLETED", nightly["state"]
        (evaluated,) = (run / "nightly").glob("evaluate-*")
        night, day = (artifact.read_manifest(str(place)).summary["metrics"] for place in (evaluated, run / "evaluate"))
        assert night["accuracy"] == day["accuracy"]  # the newest checkpoint is the run's own


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_survives_a_prefect_that_does_not_answer(tmp_path: Path) -> None:
    settings = [f"--set={key}={json.dumps(value)}" for key, value in SMALL.items()]
    done = cloze(
        "run", "sample", *settings, "--json", cwd=tmp_path, timeout=500,
        PREFECT_API_URL="http://127.0.0.1:9/api", PREFECT_CLIENT_MAX_RETRIES="0", MLFLOW_TRACKING_URI="http://127.0.0.1:9",
        PREFECT_HOME=str(tmp_path / "prefect"), PATH=os.environ["PATH"],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "going on without it" in done.stderr
    assert "wait in" in done.stderr  # MLflow's records are kept
    assert [stage["stage"] for stage in done.json["stages"]][-1] == "report"
