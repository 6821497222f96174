"""The stack of infra/ for real: a whole run while each of its parts is killed; backup and restore."""

from __future__ import annotations

import json
import os
import shutil
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cloze.core.artifacts import artifact
from tests.operations.stack import LocalStack, started
from tests.pipeline.runners.conftest import flink_classpath, flink_jar  # noqa: F401

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]
PROFILES = "core,data,gpu"
STEPS = 2000
TRAINING = {
    "dataset.mask_copies": 2,
    "pretrain.steps": STEPS,
    "run.processes": 2,
    "run.threads": 1,
    "run.restarts": 3,
    "run.checkpoint_every": 20,
    "finetune.baselines": False,
}


@pytest.fixture(scope="module")
def stack(flink_jar: str) -> Iterator[LocalStack]:  # noqa: F811
    with started(flink_jar, PROFILES) as found:
        yield found


class KillTable:
    """What was killed, when, and what came of it. Printed at the end."""

    def __init__(self, stack: LocalStack) -> None:
        self.stack, self.rows = stack, list[tuple[str, str, str]]()

    def kill(self, name: str, during: str) -> None:
        """Kill a service and wait until it is healthy again."""
        pid = self.stack.kill(name)
        took = self.stack.wait_until_back(name, pid)
        self.note(name, during, f"healthy again after {took:.0f} s")

    def note(self, name: str, during: str, result: str) -> None:
        self.rows.append((name, during, result))
        print("|", " | ".join(self.rows[-1]), "|", flush=True)


def status(stack: LocalStack) -> dict[str, Any]:
    """The record of the sample's newest start."""
    records = sorted(
        (stack.home / "runs" / "sample" / "_status").glob("*.json"), key=os.path.getmtime
    )
    content: dict[str, Any] = json.loads(records[-1].read_text())
    return content


def node_runs(stack: LocalStack, node: str, *, finished: bool = False) -> bool:
    try:
        state = status(stack)["nodes"][node]["state"]
    except (OSError, IndexError, KeyError, ValueError):
        return False
    return bool(state == "finished" if finished else state == "running")


def flink_job_runs(stack: LocalStack) -> bool:
    address = stack.services()["flink-jobmanager"]["address"]
    with urllib.request.urlopen(f"http://{address}:8081/jobs/overview", timeout=30) as answer:
        return any(job["state"] == "RUNNING" for job in json.load(answer)["jobs"])


def step_of(stack: LocalStack) -> int:
    """The last step that the pretraining has logged."""
    try:
        path = stack.home / status(stack)["nodes"]["pretrain"]["artifact"] / "metrics.jsonl"
        lines = path.read_text().splitlines()
    except (OSError, IndexError, KeyError, ValueError):
        return 0
    return max((json.loads(line).get("step", 0) for line in lines), default=0)


def reached(stack: LocalStack, step: int) -> Callable[[], bool]:
    return lambda: step_of(stack) >= step


def mlflow_runs(stack: LocalStack, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """MLflow's runs of the sample by name."""
    from mlflow import MlflowClient

    for name, value in stack.login().items():
        if name.startswith(("MLFLOW_", "AWS_")):
            monkeypatch.setenv(name, value)
    client = MlflowClient(stack.login()["MLFLOW_TRACKING_URI"])
    runs: dict[str, list[Any]] = {}
    for experiment in client.search_experiments():
        for run in client.search_runs([experiment.experiment_id]):
            runs.setdefault(run.info.run_name, []).append(run)
    return runs


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="apt-get install prometheus")
def test_prometheus_scrapes_the_dashboard_and_reads_the_alerts() -> None:
    with started("", "monitoring") as stack:
        root = f"http://{stack.services()['prometheus']['address']}:9090/api/v1"

        def get(path: str) -> Any:
            with urllib.request.urlopen(f"{root}/{path}", timeout=30) as answer:
                return json.load(answer)["data"]

        stack.until(lambda: [t["health"] for t in get("targets")["activeTargets"]] == ["up"])
        assert get("query?query=cloze_runs")["result"]
        (group,) = get("rules")["groups"]
        assert len(group["rules"]) == 3
        assert {rule["health"] for rule in group["rules"]} <= {"ok", "unknown"}, group
        assert "grafana is left out" in stack.command("up")


def test_a_run_keeps_its_artifacts_in_the_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    """With CLOZE_STORE, checkpoints and report included; the store is killed during training."""
    monkeypatch.setenv("CLOZE_STORE", "s3://cloze/runs")
    with started("", "core") as stack:
        steps = {**TRAINING, "pretrain.steps": 300}
        whole = stack.trigger("full-run/full-run", config="sample", overrides=steps)
        stack.until(lambda: node_runs(stack, "pretrain"), 400)
        stack.until(lambda: stack.processes("cloze.model.worker"), 100)
        pid = stack.kill("store")
        stack.wait_until_back("store", pid)
        assert stack.end_of(whole) == "COMPLETED"
        for name, node in status(stack)["nodes"].items():
            assert node["artifact"].startswith(f"s3://cloze/runs/sample/{name}-")
            answer = stack.cloze("verify", f"sample/{name}", "--json").stdout.splitlines()[-1]
            assert [row["ok"] for row in json.loads(answer)["artifacts"]] == [True]
        kept = {path.name for path in (stack.home / "runs" / "sample").iterdir()}
        assert {path for path in kept if "-" in path} == set()


def test_a_run_survives_the_death_of_every_part(
    stack: LocalStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is lost, nothing is done twice, and no process is left."""
    table = KillTable(stack)
    flink = {
        "run.runner": "flink",
        "run.flink_master": f"{stack.services()['flink-jobmanager']['address']}:8081",
        "run.worker_pool": "worker-pool:50000",
    }
    data = stack.trigger("data/data", config="sample", mask_copies=2, workers=2, overrides=flink)
    stack.until(lambda: flink_job_runs(stack), 400)
    table.kill("flink-taskmanager-1", "a Flink job of the data stages")
    table.kill("postgres", "the data stages")
    table.kill("redis", "the data stages")
    assert stack.end_of(data) == "COMPLETED"

    whole = stack.trigger("full-run/full-run", config="sample", overrides=TRAINING)
    stack.until(reached(stack, 40), 400)
    step = step_of(stack)
    stack.processes("cloze.model.worker")[-1].kill()
    stack.until(reached(stack, step + 20), 400)
    table.note("a rank", f"pretraining, step {step}", "continued from its checkpoint by itself")
    for name in ("prefect-server", "prefect-services", "mlflow", "store"):
        table.kill(name, f"pretraining, step {step_of(stack)}")
        assert stack.processes("cloze.model.worker")

    step, begin = step_of(stack), time.monotonic()
    table.kill("worker", f"pretraining, step {step}")
    assert not stack.processes("cloze.model.worker")
    # 90 s, and up to six minutes more: Prefect's queue redelivers late what was in work when Redis
    # or its services died, such as the evaluation of automations
    assert stack.end_of(whole, 700) == "CRASHED"
    table.note("worker", "its flow run", f"crashed after {time.monotonic() - begin:.0f} s")
    retry = {"state": {"type": "SCHEDULED", "name": "AwaitingRetry"}, "force": True}
    assert stack.call(f"/flow_runs/{whole}/set_state", retry)["status"] == "ACCEPT"
    assert stack.end_of(whole) == "COMPLETED"
    table.note("worker", "Retry in Prefect", "the run is complete")

    nodes = status(stack)["nodes"]
    assert {node["state"] for node in nodes.values()} <= {"finished", "cached"}, nodes
    for node in nodes.values():
        assert artifact.verify(str(stack.home / node["artifact"])).ok
    stack.until(lambda: not list((stack.home / "runs" / ".tracking").glob("*.jsonl")), 200)
    runs = mlflow_runs(stack, monkeypatch)
    assert all(len(found) == 1 for found in runs.values()), {k: len(v) for k, v in runs.items()}
    assert all(found[0].info.status == "FINISHED" for found in runs.values())
    log = stack.home / nodes["pretrain"]["artifact"] / "metrics.jsonl"
    steps = [json.loads(line)["step"] for line in log.open() if '"loss"' in line]
    assert len(steps) == len(set(steps))
    assert max(steps) == STEPS
    assert not stack.processes("prefect.engine")
    assert not stack.processes("cloze.model.worker")


def inventory(stack: LocalStack, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a restored stack must have again."""
    ended = {"flow_runs": {"state": {"type": {"any_": ["COMPLETED", "CRASHED"]}}}}
    flow_runs = stack.call("/flow_runs/filter", ended)
    nightly = stack.call("/deployments/name/nightly-evaluation/nightly-evaluation")
    runs = mlflow_runs(stack, monkeypatch)
    from mlflow import MlflowClient

    client = MlflowClient(stack.login()["MLFLOW_TRACKING_URI"])
    models = {
        model.name: {alias: str(version) for alias, version in model.aliases.items()}
        for model in client.search_registered_models()
    }
    (pretraining,) = (found[0] for name, found in runs.items() if "pretrain" in name)
    files = [file.path for file in client.list_artifacts(pretraining.info.run_id)]
    return {
        "flow runs": sorted((run["id"], run["state"]["type"]) for run in flow_runs),
        "schedules": [
            (s["slug"], s["schedule"]["cron"], s["active"]) for s in nightly["schedules"]
        ],
        "MLflow runs": sorted(found[0].info.run_id for found in runs.values()),
        "registered models": models,
        "files of the pretraining in the store": files,
        "champion": json.loads(stack.cloze("champion", "--json").stdout.splitlines()[-1]),
    }


def test_backup_destroy_restore(stack: LocalStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """History, champion and schedules are there again."""
    if not (stack.home / "runs" / "sample" / "report").exists():
        whole = stack.trigger("full-run/full-run", config="sample", overrides=TRAINING)
        assert stack.end_of(whole) == "COMPLETED"
    stack.cloze("champion", "--promote", "runs/sample/pretrain", "--reason", "the first one")
    before = inventory(stack, monkeypatch)
    assert before["flow runs"]
    assert before["MLflow runs"]
    assert before["champion"]
    copy = stack.directory / "copy"
    print(stack.command("backup", str(copy)))
    stack.command("down")
    shutil.rmtree(stack.directory / "volumes")
    print(stack.command("restore", str(copy)))
    after = inventory(stack, monkeypatch)
    for name, value in before.items():
        assert after[name] == value, name
    assert stack.cloze("verify", "runs/sample/report").returncode == 0


def test_doctor_names_what_is_down(stack: LocalStack) -> None:
    """The store is kept from starting; its address and a remedy are told."""
    answer = stack.cloze("doctor", "--json", check=False)
    checks = {row["check"]: row for row in json.loads(answer.stdout.splitlines()[-1])["checks"]}
    assert checks["AWS_ENDPOINT_URL"]["ok"]
    data = stack.directory / "volumes" / "store"
    data.rename(data.with_suffix(".away"))
    data.write_text("in the way")
    try:
        stack.kill("store")
        stack.until(lambda: stack.services()["store"]["restarts"] > 1)
        answer = stack.cloze("doctor", "--json", check=False)
        assert answer.returncode == 1
        checks = {row["check"]: row for row in json.loads(answer.stdout.splitlines()[-1])["checks"]}
        assert not checks["AWS_ENDPOINT_URL"]["ok"]
        assert "make up" in checks["AWS_ENDPOINT_URL"]["fix"]
    finally:
        data.unlink()
        data.with_suffix(".away").rename(data)
    stack.wait_until_back("store", 0)
