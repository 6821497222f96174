"""What schedulers are given, as a whole: the batch script of Slurm, the TrainJob of Kubernetes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from cloze.core.errors import UsageError
from cloze.core.stages.execution import Execution, Resources
from cloze.core.stages.stage import BuildContext
from cloze.core.stages.worker import Job
from cloze.flows.launch.protocol import LaunchSpec
from cloze.flows.launch.slurm import cli, launcher
from cloze.labs.kubernetes import manifest

IMAGE = "image=registry/cloze:1"


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> launcher.SlurmLauncher:
    monkeypatch.setattr(cli, "check", lambda: None)
    return launcher.SlurmLauncher()


@pytest.mark.parametrize(("option", "instead"), launcher.RESERVED.items())
def test_what_the_launcher_sets_is_refused(
    slurm: launcher.SlurmLauncher, option: str, instead: str
) -> None:
    given = f"{option}=4" if option.startswith("--") else f"{option}4"
    with pytest.raises(UsageError) as refused:
        slurm.check(Execution(slurm_options=("--time=5", given)))
    assert str(refused.value) == f"slurm_options ({given}) is set by the launcher; use {instead}"


def test_the_options_that_are_reserved() -> None:
    by_remedy: dict[str, list[str]] = {}
    for option, remedy in launcher.RESERVED.items():
        by_remedy.setdefault(remedy, []).append(option)
    assert by_remedy == {
        "--nodes": ["--nodes", "-N"],
        "--processes": ["--ntasks", "-n", "--ntasks-per-node"],
        "--grace-seconds": ["--signal"],
        "nothing: it is always set": ["--requeue", "--parsable"],
        "nothing: the launcher requeues": ["--no-requeue"],
        "nothing: the log is in _logs/slurm": ["--output", "-o", "--error", "-e"],
        "nothing: it is append": ["--open-mode"],
        "a matrix in a run's config": ["--array", "-a"],
        "nothing: paths are made absolute": ["--chdir", "-D"],
        "nothing: the launcher finds jobs by name": ["--job-name", "-J"],
        "nothing: cloze waits": ["--wait"],
    }


@pytest.mark.parametrize("option", ["time=5", "--time 5", "-p gpu"])
def test_an_option_of_another_form_is_refused(slurm: launcher.SlurmLauncher, option: str) -> None:
    with pytest.raises(UsageError) as refused:
        slurm.check(Execution(slurm_options=(option,)))
    assert str(refused.value) == (
        f"slurm_options ({option!r}) must look like --NAME=VALUE, such as --partition=gpu"
    )


def test_others_are_passed_on(slurm: launcher.SlurmLauncher) -> None:
    slurm.check(Execution(slurm_options=("--comment=a b", "-pgpu", "--exclusive")))


@pytest.mark.parametrize(
    ("python", "shown"), [(None, sys.executable), ("/opt/a b/python", "'/opt/a b/python'")]
)
def test_the_batch_script(
    python: str | None, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if python is not None:
        (tmp_path / "site.yaml").write_text(f"launcher: {{python: {python}}}")
        monkeypatch.setenv("CLOZE_SITE", str(tmp_path / "site.yaml"))
    how = Execution(launcher="slurm", nodes=3, slurm_options=("--comment=a b", "-pgpu"))
    build = BuildContext(path="/runs/x", inputs={}, execution=how, fingerprint="f")
    job = Job(stage="toy", reference="r", config={}, path="/runs/x", inputs={}, execution={}, fingerprint="f",
              build_id="0123456789abcdefghi")  # fmt: skip
    work = launcher.LaunchRequest(job=job, worker="w", processes=1, build=build)
    assert launcher.batch_script(work, "/runs/x/_logs/slurm") == (
        "#!/bin/bash\n"
        "#SBATCH --job-name=cloze-toy-0123456789abcdef\n"
        "#SBATCH --nodes=3\n"
        "#SBATCH --dependency=singleton\n"
        "#SBATCH --ntasks-per-node=1\n"
        "#SBATCH --signal=B:TERM@210\n"
        "#SBATCH --requeue\n"
        "#SBATCH --open-mode=append\n"
        "#SBATCH --output=/runs/x/_logs/slurm/%j.log\n"
        "#SBATCH '--comment=a b'\n"
        "#SBATCH -pgpu\n"
        "# toy in /runs/x: the head of a batch job, on its first node. It stops 210 s before the time limit.\n"
        f"exec {shown} -m cloze.flows.launch.slurm.job /runs/x/_logs/slurm\n"
    )


def train_job(
    *options: str, counts: tuple[int, ...] = (1,), path: str = "/data/x", **execution: Any
) -> Any:
    how = Execution(launcher="kubernetes", kubernetes_options=options, **execution)
    spec = LaunchSpec(
        artifact=path, directory=f"{path}/_logs/launches/1", job="j", worker="w", hosts=("",) * len(counts),
        counts=counts, program={}, inputs={}, grace_seconds=1.0, grace_grows=False, device="auto", gpu_ids=(),
        slots=False, token="t", addresses=(),
    )  # fmt: skip
    return manifest.train_job("NAME", spec, how, manifest.options(how))


def pod(job: Any) -> Any:
    (patch,) = job["spec"]["runtimePatches"]
    assert patch["manager"] == "cloze.dev/launcher"
    (replicated,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    assert replicated["name"] == "node"
    return replicated["template"]["spec"]["template"]["spec"]


def test_a_plain_train_job() -> None:
    job = train_job(IMAGE, "claim=d:/data", counts=(1, 2))
    shm = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}
    claim = {"name": "claim-0", "persistentVolumeClaim": {"claimName": "d"}}
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}, {"name": "claim-0", "mountPath": "/data"}]
    assert pod(job) == {
        "terminationGracePeriodSeconds": 195,
        "volumes": [shm, claim],
        "containers": [{"name": "node", "volumeMounts": mounts}],
    }
    del job["spec"]["runtimePatches"]
    progress = 'if [ "$PET_NODE_RANK" = 0 ] && [ "$KUBEFLOW_TRAINER_SERVER_URL" ]; then "$0" -m cloze.labs.kubernetes.progress "$1" & fi; '
    agent = (
        progress
        + 'CLOZE_HOST_ADDRESS="$(hostname).$2" exec "$0" -m cloze.flows.launch.agent "$1" "$PET_NODE_RANK"'
    )
    gpus = {"nvidia.com/gpu": "2"}
    assert job == {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {
            "name": "NAME",
            "namespace": "default",
            "labels": {"app.kubernetes.io/name": "cloze", "cloze.dev/artifact": manifest.artifact_label("/data/x")},
            "annotations": {"cloze.dev/directory": "/data/x"},
        },
        "spec": {
            "runtimeRef": {
                "apiGroup": "trainer.kubeflow.org", "kind": "ClusterTrainingRuntime", "name": "torch-distributed",
            },
            "trainer": {
                "image": "registry/cloze:1",
                "command": ["sh", "-c", agent, "python", "/data/x/_logs/launches/1", "NAME"],
                "numNodes": 2,
                "numProcPerNode": 2,
                "resourcesPerNode": {"requests": gpus, "limits": gpus},
            },
        },
    }  # fmt: skip


def test_what_is_asked_for() -> None:
    job = train_job(
        IMAGE, "claim=d:/data", "python=/p", "gpus=0", "cpu=4", "gpu-resource=amd.com/gpu", "queue=q", "env=A=b=c",
        "secret=K=s/k", "node_selector=a=b=c", "toleration=t", "toleration=t=v", "pull_secret=p",
        "service_account=me", "shared_memory=1Gi", "namespace=n", "runtime=r",
        timeout_minutes=2, grace_seconds=0.5,
    )  # fmt: skip
    found = pod(job)
    assert {name: found[name] for name in found if name not in ("volumes", "containers")} == {
        "terminationGracePeriodSeconds": 16,
        "serviceAccountName": "me",
        "nodeSelector": {"a": "b=c"},
        "tolerations": [
            {"key": "t", "operator": "Exists"},
            {"key": "t", "operator": "Equal", "value": "v"},
        ],
        "imagePullSecrets": [{"name": "p"}],
    }
    assert found["volumes"][0]["emptyDir"]["sizeLimit"] == "1Gi"
    assert job["spec"]["activeDeadlineSeconds"] == 136
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "q"
    assert job["spec"]["trainer"]["resourcesPerNode"] == {
        "requests": {"cpu": "4"},
        "limits": {"cpu": "4"},
    }
    assert job["spec"]["trainer"]["env"] == [
        {"name": "A", "value": "b=c"},
        {"name": "K", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
    ]
    assert (
        "resourcesPerNode" not in train_job(IMAGE, "claim=d:/data", device="cpu")["spec"]["trainer"]
    )


@pytest.mark.parametrize(
    ("options", "amounts"),
    [
        ((), {"cpu": "4", "memory": "24Gi", "nvidia.com/gpu": "2"}),
        (("cpu=8",), {"cpu": "8", "memory": "24Gi", "nvidia.com/gpu": "2"}),
        (("memory=1Gi", "gpus=0"), {"cpu": "4", "memory": "1Gi"}),
        (("gpu-resource=amd.com/gpu",), {"cpu": "4", "memory": "24Gi", "amd.com/gpu": "2"}),
    ],
)
def test_resources_of_a_pod(options: tuple[str, ...], amounts: dict[str, str]) -> None:
    """One pod of one process; an option of the launcher that says the same counts before them."""
    given = Resources(gpus=2, cpus=4, memory="24G", time="2h")
    job = train_job(IMAGE, "claim=d:/data", *options, resources=given, grace_seconds=0)
    trainer = job["spec"]["trainer"]
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (1, 1)
    assert trainer["resourcesPerNode"] == {"requests": amounts, "limits": amounts}
    assert job["spec"]["activeDeadlineSeconds"] == 7200 + 15


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((), "(image) is missing; add --kubernetes-option image=REGISTRY/cloze:VERSION"),
        ((IMAGE, "gpus"), "('gpus') must look like NAME=VALUE, such as image=registry/cloze:1"),
        ((IMAGE, "gpus="), "('gpus=') must look like NAME=VALUE, such as image=registry/cloze:1"),
        ((IMAGE, "queu=x"), "(queu=x) is not known; did you mean 'queue'?"),
        ((IMAGE, "queue=x", "queue=y"), "(queue=y) says queue a second time; it was x"),
        (
            (IMAGE, "claim=D:/x"),
            "(claim): 'D:/x' must look like NAME:/PATH, such as training:/data",
        ),
        ((IMAGE, "claim=d:x"), "(claim): 'd:x' must look like NAME:/PATH, such as training:/data"),
        ((IMAGE, "env=x"), "(env): 'x' must look like NAME=VALUE"),
        ((IMAGE, "env=PET_X=1"), "(env): 'PET_X=1': Trainer sets the variables PET_… itself"),
        ((IMAGE, "secret=a=b"), "(secret): 'a=b' must look like NAME=SECRET/KEY"),
        ((IMAGE, "node_selector=a"), "(node_selector): 'a' must look like NAME=VALUE"),
        ((IMAGE, "gpus=-1"), "(gpus): Input should be greater than or equal to 0"),
    ],
)
def test_options_of_kubernetes_that_are_refused(options: tuple[str, ...], told: str) -> None:
    with pytest.raises(UsageError) as refused:
        manifest.options(Execution(kubernetes_options=options))
    assert str(refused.value) == f"kubernetes_options {told}"


@pytest.mark.parametrize(
    ("options", "where"),
    [((), "is on this host's disk"), (("claim=a:/dat", "claim=b:/c"), "is on no claim (/dat, /c)")],
)
def test_pods_must_see_the_artifact(options: tuple[str, ...], where: str) -> None:
    with pytest.raises(UsageError) as refused:
        train_job(IMAGE, *options)
    assert str(refused.value) == (
        f"/data/x {where}, so the pods would not see it; add --kubernetes-option claim=NAME:/PATH, where PATH "
        f"contains it"
    )
    assert train_job(IMAGE, path="s3://b/x")["metadata"]["annotations"] == {
        "cloze.dev/directory": "s3://b/x"
    }


def test_names_of_jobs() -> None:
    def name(path: str) -> str:
        spec: Any = type("Spec", (), {"directory": "/d", "artifact": path})
        return manifest.name_of(spec)

    digest = "cloze-{}-" + name("/x/")[len("cloze-x-") :]
    assert len(digest) == len("cloze-{}-") + 10
    assert name("/a/My_Run.2/") == digest.format("my-run-2")
    assert name(f"/a/{'b' * 19}-c") == digest.format("b" * 19)
    assert name(f"/a/{'b' * 30}") == digest.format("b" * 20)
    assert name("/a/__") == digest.replace("{}-", "")
    assert (
        manifest.artifact_label(str(Path("/data")))
        == manifest.artifact_label("/data")
        != manifest.artifact_label("/d")
    )
    assert len(manifest.artifact_label("x")) == 16
