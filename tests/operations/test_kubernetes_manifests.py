"""infra/kubernetes runs what infra/compose.yaml runs, and has what `--launcher kubernetes` asks for.

`make check-infra` builds the overlays and validates them; here is what two files must have in common.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from cloze.labs.kubernetes import launcher, manifest
from tests.conftest import REPOSITORY

INFRA = REPOSITORY / "infra"
BASE, CLUSTER = INFRA / "kubernetes" / "base", INFRA / "kubernetes" / "overlays" / "cluster"
SECRETS = "/etc/cloze/secrets"


def documents(path: Path, kind: str) -> dict[str, dict[str, Any]]:
    found = yaml.safe_load_all(path.read_text())
    return {item["metadata"]["name"]: item for item in found if item["kind"] == kind}


WORKLOADS = {
    **documents(BASE / "stores.yaml", "StatefulSet"),
    **documents(BASE / "servers.yaml", "Deployment"),
}


def compose() -> dict[str, dict[str, Any]]:
    """Services of compose.yaml with its defaults."""
    code = "import json, pathlib, tests.operations.local_services as l; s = l.LocalServices(pathlib.Path('x')).specs"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; print(json.dumps(s))"], check=True,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True,
    )  # fmt: skip
    services: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return services


def environment(container: dict[str, Any]) -> dict[str, str]:
    values = {entry["name"]: entry["value"] for entry in container.get("env", ())}
    for source in container.get("envFrom", ()):
        name = source["configMapRef"]["name"].removesuffix("-environment")
        lines = (BASE / f"{name}.env").read_text().splitlines()
        values |= dict(line.split("=", 1) for line in lines if line and line[0] != "#")
    return values


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_server_runs_as_in_compose(name: str) -> None:
    spec, service = WORKLOADS[name]["spec"]["template"]["spec"], compose()[name]
    container = spec["containers"][0]
    assert container["image"] == service["image"]
    assert container["args"] == service["command"]
    given = {"SECRETS_DIR": SECRETS} if container["image"].startswith("cloze") else {}
    assert environment(container) == {**service.get("environment", {}), **given}
    memory = service["deploy"]["resources"]["limits"]["memory"]
    assert container["resources"]["limits"]["memory"] == re.sub("([gm])$", r"\1i", memory).replace(
        "g", "G"
    ).replace("m", "M")
    secrets = [volume["secret"] for volume in spec.get("volumes", ()) if "secret" in volume]
    keys = {item["key"] for secret in secrets for item in secret["items"]}
    assert keys == set(service.get("secrets", ()))


def test_flow_runs_have_the_workers_environment_and_secrets() -> None:
    template = yaml.safe_load((BASE / "job-template.yaml").read_text())
    pod = template["job_configuration"]["job_manifest"]["spec"]["template"]["spec"]
    worker = compose()["worker"]
    values = environment({"envFrom": pod["containers"][0]["envFrom"]})
    # a pod does not share its cores
    other = {"CLOZE_SLOTS_DIR": "/tmp/slots", "SECRETS_DIR": SECRETS}
    own = (
        "CLOZE_NOTIFY",
        "CLOZE_NIGHTLY",
        "PREFECT_WORKER_WEBSERVER_HOST",
        "PREFECT_WORKER_WEBSERVER_PORT",
    )
    assert values == {k: v for k, v in worker["environment"].items() if k not in own} | other
    (secret,) = (volume["secret"] for volume in pod["volumes"] if "secret" in volume)
    assert {item["key"] for item in secret["items"]} == set(worker["secrets"])


def test_torchrun_waits_for_a_checkpoint_but_less_than_its_pod() -> None:
    """torchrun kills its ranks after 30 s, unless its environment says otherwise."""
    trainjob = yaml.safe_load((INFRA / "kubernetes" / "trainjob.yaml").read_text())["spec"]
    values = {entry["name"]: entry.get("value") for entry in trainjob["trainer"]["env"]}
    runtimes = documents(CLUSTER / "runtime.yaml", "ClusterTrainingRuntime")
    (job,) = runtimes[trainjob["runtimeRef"]["name"]]["spec"]["template"]["spec"]["replicatedJobs"]
    pod = job["template"]["spec"]["template"]["spec"]
    seconds = int(values["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"])
    assert 30 < seconds < pod["terminationGracePeriodSeconds"]
    sky = yaml.safe_load((INFRA / "sky.yaml").read_text())["envs"]
    assert int(sky["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]) == seconds


def test_volumes_are_not_walked_through_at_each_start() -> None:
    """Else a start sets the group of all files of `work`, one by one."""
    for path in (INFRA / "kubernetes").rglob("*.yaml"):
        text = path.read_text()
        assert text.count("fsGroup: ") == text.count("fsGroupChangePolicy: OnRootMismatch"), path


def test_the_launcher_finds_its_runtime_rights_and_network() -> None:
    runtimes = documents(CLUSTER / "runtime.yaml", "ClusterTrainingRuntime")
    trainjob = yaml.safe_load((INFRA / "kubernetes" / "trainjob.yaml").read_text())
    assert trainjob["spec"]["runtimeRef"]["name"] in runtimes
    assert trainjob["apiVersion"] == runtimes["cloze"]["apiVersion"] == manifest.API
    for runtime in runtimes.values():
        (job,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
        (container,) = job["template"]["spec"]["template"]["spec"]["containers"]
        assert job["name"] == container["name"] == manifest.NODE  # what a TrainJob's patch names
    policy = documents(CLUSTER / "runtime.yaml", "NetworkPolicy")["training"]["spec"]
    assert policy["podSelector"]["matchExpressions"][0]["key"] == launcher.POD_OF
    rules = documents(BASE / "worker.yaml", "Role")["cloze-launcher"]["rules"]
    plural, _, group = launcher.KIND.partition(".")
    (rule,) = (rule for rule in rules if rule["apiGroups"] == [group])
    # `kubectl apply` gets and patches; --selector with `kubectl delete` lists
    assert rule["resources"] == [plural]
    assert {"create", "get", "list", "watch", "patch", "delete"} <= set(rule["verbs"])
