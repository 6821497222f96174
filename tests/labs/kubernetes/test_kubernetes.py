"""`--launcher kubernetes`: the TrainJob by its schema, and its course with a stand-in for the
cluster (`kubectl.py`).
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import jsonschema
import psutil
import pytest
import yaml

from cloze.core.errors import ClozeError, StoppedError, UsageError
from cloze.core.stages.execute import BuildResult, execute
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import Reporter
from cloze.flows.launch import coordinator, protocol
from cloze.flows.launch.protocol import LaunchSpec
from cloze.labs.kubernetes import manifest as kubernetes_manifest
from tests.checkout import import_path
from tests.conftest import REPOSITORY
from tests.flows.launch.test_slurm import Heard, meanwhile
from tests.flows.toy import STAGE, ToyConfig
from tests.flows.ui.waiting import until
from tests.labs.kubernetes import trainjob_schema
from tests.slices import few

IMAGE = "image=registry.example/cloze:1"
EVERYTHING = (
    IMAGE, "namespace=research", "runtime=cloze", "python=/opt/venv/bin/python",
    "claim=training:/data", "claim=models:/models", "cpu=16",
    "memory=128Gi", "gpus=8", "shared_memory=32Gi", "env=NCCL_DEBUG=INFO", "env=PLAIN=a=b",
    "secret=AWS_SECRET_ACCESS_KEY=store/secret-key",
    "service-account=trainer", "node_selector=cloud.example/gpu=h100", "toleration=nvidia.com/gpu",
    "toleration=team=nlp",
    "pull_secret=registry", "queue=nights",
)  # fmt: skip


def manifest(
    options: tuple[str, ...] = (IMAGE, "claim=training:/data"),
    path: str = "/data/runs/pretrain",
    **more: Any,
) -> dict[str, Any]:
    """Of two nodes with eight ranks each."""
    execution = Execution(
        launcher="kubernetes", nodes=2, processes=8, kubernetes_options=options, **more
    )
    launch = LaunchSpec(
        artifact=path, directory=f"{path}/_logs/launches/1-a", job=f"{path}/_logs/job.json",
        worker="cloze.model.worker", hosts=("", ""),
        counts=(8, 8), program={}, inputs={}, grace_seconds=execution.min_grace_seconds,
            grace_grows=False, device=execution.device,
    )  # fmt: skip
    chosen = kubernetes_manifest.options(execution)
    return kubernetes_manifest.train_job(
        kubernetes_manifest.name_of(launch), launch, execution, chosen
    )


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "store": {"options": (IMAGE,), "path": "s3://bucket/Runs/My Model_1"},
    "everything": {"options": EVERYTHING, "path": "/data/x", "grace_seconds": 300},
    "cpu": {"device": "cpu"},
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_a_train_job_by_its_schema(case: str) -> None:
    jsonschema.validate(manifest(**CASES[case]), trainjob_schema.TRAIN_JOB)


@pytest.mark.skipif(
    "CLOZE_TRAINER_CRD" not in os.environ,
    reason="CLOZE_TRAINER_CRD names no CRD of Kubeflow Trainer's",
)
@pytest.mark.parametrize("case", CASES)
def test_it_is_a_train_job_by_trainers_own_schema(case: str) -> None:
    crd = yaml.safe_load(Path(os.environ["CLOZE_TRAINER_CRD"]).read_text())
    jsonschema.validate(
        manifest(**CASES[case]),
        trainjob_schema.strict(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]),
    )


@pytest.mark.parametrize(
    "place",
    [
        ("spec",),
        ("spec", "trainer"),
        ("spec", "trainer", "resourcesPerNode"),
        (
            "spec",
            "runtimePatches",
            0,
            "trainingRuntimeSpec",
            "template",
            "spec",
            "replicatedJobs",
            0,
            "template",
            "spec",
            "template",
            "spec",
        ),
    ],
)
def test_the_schema_refuses_what_it_does_not_know(place: tuple[str | int, ...]) -> None:
    found: Any = json.loads(json.dumps(manifest()))
    inner = found
    for name in place:
        inner = inner[name]
    inner["restartPolicies"] = {}
    with pytest.raises(jsonschema.ValidationError, match="restartPolicies"):
        jsonschema.validate(found, trainjob_schema.TRAIN_JOB)


def test_what_is_asked_for_is_in_it() -> None:
    found = manifest(EVERYTHING, "/data/x", grace_seconds=300)
    trainer, (patch,) = found["spec"]["trainer"], found["spec"]["runtimePatches"]
    (job,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    pod = job["template"]["spec"]["template"]["spec"]
    assert found["metadata"]["namespace"] == "research"
    assert found["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "nights"
    assert found["spec"]["runtimeRef"]["name"] == "cloze"
    assert (trainer["numNodes"], trainer["numProcPerNode"], trainer["image"]) == (
        2,
        8,
        "registry.example/cloze:1",
    )
    assert trainer["resourcesPerNode"]["limits"] == {
        "cpu": "16",
        "memory": "128Gi",
        "nvidia.com/gpu": "8",
    }
    assert {"name": "PLAIN", "value": "a=b"} in trainer["env"]
    secret = {"secretKeyRef": {"name": "store", "key": "secret-key"}}
    assert {"name": "AWS_SECRET_ACCESS_KEY", "valueFrom": secret} in trainer["env"]
    assert pod["terminationGracePeriodSeconds"] == 315
    assert pod["serviceAccountName"] == "trainer"
    assert pod["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists"},
        {"key": "team", "operator": "Equal", "value": "nlp"},
    ]
    mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    claims = {
        found["name"]: found["persistentVolumeClaim"]["claimName"]
        for found in pod["volumes"]
        if "persistentVolumeClaim" in found
    }
    assert {claims.get(name): path for name, path in mounts.items()} == {
        None: "/dev/shm",
        "training": "/data",
        "models": "/models",
    }
    assert (
        "nvidia.com/gpu"
        not in manifest((IMAGE, "claim=a:/data", "cpu=2"), device="cpu")["spec"]["trainer"][
            "resourcesPerNode"
        ]["limits"]
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            (),
            r"kubernetes_options \(image\) is missing; add --kubernetes-option image=REGISTRY/"
            r"cloze:VERSION",
        ),
        (
            (IMAGE, "imgae=x"),
            r"kubernetes_options \(imgae=x\) is not known; did you mean 'image'\?",
        ),
        ((IMAGE, "gpus"), r"kubernetes_options \('gpus'\) must look like NAME=VALUE"),
        ((IMAGE, "gpus=many"), r"kubernetes_options \(gpus\): Input should be a valid integer"),
        ((IMAGE, IMAGE), r"says image a second time; it was registry.example/cloze:1"),
        (
            (IMAGE, "claim=data"),
            r"kubernetes_options \(claim\): 'data' must look like NAME:/PATH, such as training:/"
            r"data",
        ),
        ((IMAGE, "secret=KEY=value"), r"'KEY=value' must look like NAME=SECRET/KEY"),
        ((IMAGE, "env=PET_NNODES=2"), r"'PET_NNODES=2': Trainer sets the variables PET_… itself"),
    ],
)
def test_bad_options_are_refused(options: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        kubernetes_manifest.options(Execution(kubernetes_options=options))


@pytest.mark.parametrize("options", [(IMAGE,), (IMAGE, "claim=training:/dat")])
def test_a_directory_that_pods_would_not_see_is_refused(options: tuple[str, ...]) -> None:
    with pytest.raises(
        UsageError,
        match=(
            r"/data/runs/pretrain is on .*, so the pods would not see it; add --kubernetes-option "
            r"claim=NAME:/PATH"
        ),
    ):
        manifest(options)


def test_a_machine_without_kubectl_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        UsageError, match="launcher kubernetes needs kubectl, which is not on this machine"
    ):
        protocol.LAUNCHERS.find("kubernetes").check(Execution(kubernetes_options=(IMAGE,)))


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stand-in's directory; its `kubectl` is the only one on the path."""
    place, programs = tmp_path / "cluster", tmp_path / "bin"
    place.mkdir()
    programs.mkdir()
    (programs / "kubectl").write_text(
        f'#!/bin/sh\nexec {sys.executable} -m tests.labs.kubernetes.kubectl "$@"\n'
    )
    (programs / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", import_path(REPOSITORY), prepend=os.pathsep)
    monkeypatch.setenv("CLUSTER", str(place))
    monkeypatch.setattr("cloze.labs.kubernetes.launcher.POLL_SECONDS", 0.5)
    return place


def run(out: Path, heard: Reporter, act: str = "work", rank: int = 0, *options: str) -> BuildResult:
    stage = dataclasses.replace(
        STAGE, run=coordinator.run_in_worker_processes(STAGE, "tests.flows.toy:STAGE")
    )
    wanted = (IMAGE, f"claim=training:{out.parent}", f"python={sys.executable}", *options)
    execution = Execution(launcher="kubernetes", nodes=2, device="cpu", kubernetes_options=wanted)
    return execute(
        stage, ToyConfig(act=act, rank=rank), {}, str(out), execution=execution, report=heard
    )


def jobs(cluster: Path) -> list[str]:
    return [path.name for path in cluster.iterdir() if path.is_dir()]


def test_two_pods_make_it_and_are_deleted(cluster: Path, tmp_path: Path) -> None:
    (cluster / "unschedulable").touch()
    heard = Heard()
    meanwhile(heard, lambda: heard.notes, (cluster / "unschedulable").unlink)
    result = run(tmp_path / "out", heard)
    assert result.manifest.counters == {"seen": 5}
    assert (tmp_path / "out" / "out.txt").read_text() == "2"
    assert heard.steps == [1, 2, 3]
    assert "0 of 2 run (0/3 nodes are available: 3 Insufficient nvidia.com/gpu.)" in heard.notes[0]
    assert jobs(cluster) == []
    (kept,) = (tmp_path / "out" / "_logs" / "kubernetes").glob("*.yaml")
    jsonschema.validate(yaml.safe_load(kept.read_text()), trainjob_schema.TRAIN_JOB)


def test_a_stopped_run_saves_and_leaves_nothing(cluster: Path, tmp_path: Path) -> None:
    out, heard = tmp_path / "out", Heard()
    meanwhile(heard, lambda: len(list(out.glob("_pid-?"))) == 2, heard.stop.set)
    with pytest.raises(StoppedError, match="stopped at step 7, checkpoint saved"):
        run(out, heard, "twice")
    assert jobs(cluster) == []


@pytest.mark.parametrize(
    ("mark", "number"),
    few(
        [
            pytest.param("preempt", signal.SIGTERM, id="SIGTERM"),
            pytest.param("preempt", signal.SIGKILL, id="SIGKILL"),
            pytest.param("suspend", signal.SIGTERM, id="Kueue"),
        ],
        "SIGKILL",
    ),
)
def test_preempted_pods_are_started_again_and_count_as_no_failure(
    cluster: Path, tmp_path: Path, mark: str, number: int
) -> None:
    """Saved on SIGTERM or killed: no restart is allowed, and it goes on when there is room."""
    out, heard = tmp_path / "out", Heard()

    def preempt() -> None:
        (cluster / mark).touch()
        (job,) = jobs(cluster)
        for file in (cluster / job).glob("pod-*.json"):
            pod = psutil.Process(json.loads(file.read_text())["pid"])
            for process in [pod] if number == signal.SIGTERM else pod.children(recursive=True):
                process.send_signal(number)
        until(lambda: heard.starts)
        (cluster / mark).unlink()
        if number == signal.SIGKILL:  # nobody has saved anything, so that it would wait again
            for rank in (0, 1):
                (out / f"_again{rank}").touch()
            (out / "_again").touch()

    thread = meanwhile(heard, lambda: len(list(out.glob("_pid-?"))) == 2, preempt)
    result = run(out, heard, "twice")
    thread.join()
    assert result.manifest.summary == {"rank": 0}
    assert heard.starts == [(0, 1)]
    assert jobs(cluster) == []


def test_a_train_job_that_somebody_deletes_is_told(cluster: Path, tmp_path: Path) -> None:
    out, heard = tmp_path / "out", Heard()

    def delete() -> None:
        for job in jobs(cluster):
            for file in (cluster / job).glob("pod-*.json"):
                os.kill(json.loads(file.read_text())["pid"], 9)
            os.rename(cluster / job, tmp_path / job)

    meanwhile(heard, lambda: len(list(out.glob("_pid-?"))) == 2, delete)
    with pytest.raises(
        ClozeError,
        match=r"TrainJob cloze-out-\w+ was deleted in the cluster; run again to continue",
    ):
        run(out, heard, "twice")


@pytest.mark.parametrize(
    ("file", "options", "sentence"),
    [
        (
            "down",
            (),
            r"the cluster does not answer kubectl \(The connection to the server 10.0.0.1:6443 "
            r"was refused",
        ),
        (
            None,
            ("runtime=torhc",),
            r"the cluster has no ClusterTrainingRuntime torhc \(.*not found\); install Kubeflow "
            r"Trainer",
        ),
    ],
)
def test_a_cluster_that_cannot_is_told(
    file: str | None, options: tuple[str, ...], sentence: str, cluster: Path, tmp_path: Path
) -> None:
    if file:
        (cluster / file).touch()
    with pytest.raises(UsageError, match=sentence):
        run(tmp_path / "out", Heard(), "work", 0, *options)
    assert not (tmp_path / "out" / "_logs" / "kubernetes").exists()
