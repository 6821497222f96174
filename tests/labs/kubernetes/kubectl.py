"""A stand-in for a cluster, behind a `kubectl` of the tests': a TrainJob's pods are processes of
this machine.

It takes what the launcher writes, if it is a TrainJob by its schema, and starts the container's
command once a node, with what Trainer's torch plugin sets. Below $CLUSTER: JOB/manifest.json,
JOB/POD.json of each pod, and what tests lay there: `unschedulable` keeps pods pending, `down` is a
cluster that does not answer, `preempt` says why pods end that are killed now. `suspend` is Kueue's
preemption: TrainJobs are suspended, and pods that end are gone.

    python kubectl.py ARGUMENTS OF KUBECTL python kubectl.py pod JOB NODE            a pod: starts
    the command, passes SIGTERM on, keeps the exit code
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from cloze.core.processes import request_death_signal

CLUSTER = Path(os.environ.get("CLUSTER", "/nonexistent"))
TERMINATING = CLUSTER.with_name("terminating")  # pods of deleted TrainJobs, until they end
RUNTIMES = ("torch-distributed", "cloze")


def fail(sentence: str) -> int:
    sys.stderr.write(f"{sentence}\n")
    return 1


def option(arguments: list[str], name: str) -> str | None:
    return next(
        (word.partition("=")[2] for word in arguments if word.startswith(f"--{name}=")), None
    )


def apply(text: str) -> int:
    import jsonschema  # takes long, and most calls only look

    from tests.labs.kubernetes.trainjob_schema import TRAIN_JOB

    manifest = json.loads(text)
    try:
        jsonschema.validate(manifest, TRAIN_JOB)
    except jsonschema.ValidationError as error:
        return fail(f'error: strict decoding error: {error.message} at "{error.json_path}"')
    job = CLUSTER / manifest["metadata"]["name"]
    job.mkdir(parents=True)
    (job / "manifest.json").write_text(text)
    for node in range(manifest["spec"]["trainer"]["numNodes"]):
        subprocess.Popen(
            [sys.executable, "-m", "tests.labs.kubernetes.kubectl", "pod", job.name, str(node)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
    return 0


def pod(job: Path, node: int) -> int:
    """A pod's life."""
    place, trainer = (
        job / f"pod-{node}.json",
        json.loads((job / "manifest.json").read_text())["spec"]["trainer"],
    )

    def tell(**status: Any) -> None:
        labels = {
            "batch.kubernetes.io/job-completion-index": str(node),
            "jobset.sigs.k8s.io/jobset-name": job.name,
        }
        place.with_suffix(".new").write_text(
            json.dumps(
                {
                    "metadata": {"name": f"{job.name}-node-0-{node}-x", "labels": labels},
                    "status": status,
                    "pid": os.getpid(),
                }
            )
        )
        place.with_suffix(".new").rename(place)

    why = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
    }
    tell(phase="Pending", conditions=[why])
    while (CLUSTER / "unschedulable").exists():
        time.sleep(0.1)
    ranks = {
        "PET_NNODES": str(trainer["numNodes"]),
        "PET_NPROC_PER_NODE": str(trainer["numProcPerNode"]),
        "PET_NODE_RANK": str(node),
    }
    plain = {found["name"]: found["value"] for found in trainer.get("env", []) if "value" in found}
    container = subprocess.Popen(
        trainer["command"],
        env={**os.environ, **plain, **ranks},
        start_new_session=True,
        preexec_fn=request_death_signal,
    )
    signal.signal(signal.SIGTERM, lambda *_: container.terminate())
    tell(phase="Running")
    code = container.wait()
    if (CLUSTER / "suspend").exists() or not job.exists():
        place.unlink(missing_ok=True)
        (TERMINATING / job.name / place.name).unlink(missing_ok=True)
        return 0
    ended: dict[str, Any] = {
        "exitCode": code if code >= 0 else 128 - code,
        "reason": "Completed" if code == 0 else "Error",
    }
    conditions = []
    if (CLUSTER / "preempt").exists():
        reason = {"reason": "PreemptionByScheduler", "message": "preempting to accommodate another"}
        conditions = [{"type": "DisruptionTarget", "status": "True", **reason}]
    elif code == -signal.SIGKILL:
        ended["reason"] = "OOMKilled"
    tell(
        phase="Failed" if code else "Succeeded",
        containerStatuses=[{"state": {"terminated": ended}}],
        conditions=conditions,
    )
    return 0


def pods(job: Path) -> list[dict[str, Any]]:
    found = []
    for path in sorted(job.glob("pod-*.json")):
        with suppress(FileNotFoundError):  # it has ended meanwhile
            found.append(json.loads(path.read_text()))
    return found


def delete(job: Path) -> None:
    """As Kubernetes does: the object is gone, its pods get SIGTERM and are shown until they end."""
    TERMINATING.mkdir(exist_ok=True)
    left = job.rename(TERMINATING / job.name)
    for found in pods(left):
        try:
            os.kill(found["pid"], signal.SIGTERM)
            has_ended = found["status"]["phase"] != "Running"
        except ProcessLookupError:
            has_ended = True
        if has_ended:
            node = found["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]
            (left / f"pod-{node}.json").unlink(missing_ok=True)


def kubectl(arguments: list[str]) -> int:
    if (CLUSTER / "down").exists():
        return fail(
            "The connection to the server 10.0.0.1:6443 was refused - did you specify the right "
            "host or port?"
        )
    verb, kind, name = (*arguments[:3], "", "")[:3]
    with (CLUSTER / "calls").open("a") as calls:
        calls.write(" ".join(arguments) + "\n")
    if verb == "auth":
        print("yes")
        return 0
    if verb == "apply":
        return apply(sys.stdin.read())
    if verb == "get" and kind.startswith("clustertrainingruntimes"):
        return (
            0
            if name in RUNTIMES
            else fail(
                f"Error from server (NotFound): clustertrainingruntimes.trainer.kubeflow.org "
                f'"{name}" not found'
            )
        )
    if verb == "get" and kind == "pods":
        selector = str(option(arguments, "selector")).partition("=")[2]
        print(json.dumps({"items": [*pods(CLUSTER / selector), *pods(TERMINATING / selector)]}))
        return 0
    if verb == "get":
        if not (CLUSTER / name).exists():
            return fail(
                f'Error from server (NotFound): trainjobs.trainer.kubeflow.org "{name}" not found'
            )
        is_suspended = (CLUSTER / "suspend").exists()
        # A controller lists what has not come true, too.
        conditions = [
            {"type": kind, "status": "True" if kind == "Suspended" and is_suspended else "False"}
            for kind in ("Suspended", "Complete", "Failed")
        ]
        status = {"spec": {"suspend": is_suspended}, "status": {"conditions": conditions}}
        print(json.dumps(status))
        return 0
    if verb == "delete":
        wanted = option(arguments, "selector")
        for job in [found for found in CLUSTER.iterdir() if (found / "manifest.json").exists()]:
            labels = json.loads((job / "manifest.json").read_text())["metadata"]["labels"]
            if job.name == name or (
                wanted and dict([wanted.split("=", 1)]).items() <= labels.items()
            ):
                delete(job)
        return 0
    return fail(f"error: unknown command {arguments}")


if __name__ == "__main__":
    sys.exit(
        pod(CLUSTER / sys.argv[2], int(sys.argv[3]))
        if sys.argv[1] == "pod"
        else kubectl(sys.argv[1:])
    )
