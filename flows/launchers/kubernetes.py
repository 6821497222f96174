"""`--launcher kubernetes`: an agent in each pod of a Kubeflow TrainJob, by `kubectl`.

The pods and this process share the artifact's directory: a volume claim that is mounted here, too, or an object store. Events go through
it; what Kubernetes knows of the pods says why they wait, and how one has ended that said nothing. The manifest stays in `_logs/kubernetes/`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

from flows.launchers.by_agents import ByAgents
from flows.launchers.kubernetes_manifest import ARTIFACT, Options, artifact_label, name_of, options, train_job
from flows.launchers.protocol import Elastic, Handle, Host, Launch, Launcher
from pipeline.core import storage
from pipeline.core.errors import ClozeError, UsageError
from pipeline.core.execution import Execution
from pipeline.core.worker import LOGS

DIRECTORY = "kubernetes"  # in LOGS: manifests
SECONDS = 60.0  # for the cluster to answer a command
LOOK_SECONDS = 5.0  # between two looks at the pods
KIND = "trainjobs.trainer.kubeflow.org"
INDEX = "batch.kubernetes.io/job-completion-index"  # a pod's label: its number among the nodes
POD_OF = "jobset.sigs.k8s.io/jobset-name"  # and the TrainJob, whose JobSet has its name


class Kubernetes:
    """See `protocol.Starter`."""

    allots = True

    def check(self, execution: Execution) -> None:
        if execution.hostfile is not None:
            raise UsageError(
                f"hostfile ({execution.hostfile}) is for --launcher ssh or torchrun; Kubernetes chooses the hosts itself"
            )
        chosen = options(execution)
        if shutil.which("kubectl") is None:
            raise UsageError(
                "launcher kubernetes needs kubectl, which is not on this machine; install it and point it at the cluster"
            )
        allowed = _kubectl("auth", "can-i", "create", KIND, f"--namespace={chosen.namespace}")
        if allowed.stdout.strip() == "no":
            raise UsageError(
                f"you may not create TrainJobs in namespace {chosen.namespace} of the cluster; ask for that, or name another"
            )
        if allowed.returncode:
            raise UsageError(f"the cluster does not answer kubectl ({_words(allowed.stderr)}); see `kubectl cluster-info`")
        runtime = _kubectl("get", "clustertrainingruntimes.trainer.kubeflow.org", chosen.runtime, "--output=name")
        if runtime.returncode:
            raise UsageError(
                f"the cluster has no ClusterTrainingRuntime {chosen.runtime} ({_words(runtime.stderr)}); install Kubeflow Trainer from 2.2"
                " on (infra/kubernetes), or name another with --kubernetes-option runtime=NAME"
            )

    def hosts(self, execution: Execution, processes: int) -> Sequence[Host]:
        return [Host(name="", count=processes)] * execution.nodes  # the pods say their names themselves

    def elastic(self, execution: Execution) -> Elastic | None:
        del execution
        return None

    def start(self, launch: Launch, execution: Execution) -> Handle:
        return _TrainJob(launch, execution, options(execution))


class _TrainJob:
    """See `protocol.Handle`."""

    def __init__(self, launch: Launch, execution: Execution, chosen: Options) -> None:
        self.name, self._launch, self._chosen = name_of(launch), launch, chosen
        manifest = train_job(self.name, launch, execution, chosen)
        place = storage.join(launch.artifact, LOGS, DIRECTORY, f"{self.name}.yaml")
        storage.write_bytes(place, yaml.safe_dump(manifest, sort_keys=False).encode())
        self._delete_others()  # of a head that died: two trainings in one directory would be one too many
        done = _kubectl("apply", "--filename=-", content=json.dumps(manifest))
        if done.returncode:
            raise UsageError(f"Kubernetes does not take the TrainJob ({_words(done.stderr)}); it is in {place}")
        self._deleted = False
        self._looked = 0.0
        self._pods: dict[int, Mapping[str, Any]] = {}  # by the node's number
        self._fault: str | None = None  # of the TrainJob as a whole

    def host(self, node: int) -> str:
        pod = self._pods.get(node)
        return str(pod["metadata"]["name"]) if pod else f"{self.name}-{node}"

    def waiting(self) -> str | None:
        self._look()
        running = sum(_phase(pod) == "Running" for pod in self._pods.values())
        if running == self._launch.nodes:
            return None
        why = next(filter(None, map(_why, self._pods.values())), "")
        return f"TrainJob {self.name} waits for its pods, {running} of {self._launch.nodes} run" + (f" ({why})" if why else "")

    def gone(self) -> Mapping[int, tuple[int, str]]:
        self._look()
        if self._fault is not None:
            return dict.fromkeys(range(self._launch.nodes), (1, self._fault))
        return {node: _end(pod) for node, pod in self._pods.items() if _phase(pod) in ("Failed", "Succeeded")}

    def stop(self) -> None:
        """Delete the TrainJob: its pods get SIGTERM, and their grace time to save."""
        if not self._deleted:
            self._deleted = True
            self._delete(self.name)

    def _look(self) -> None:
        """Ask the cluster now and then; where it does not answer, what was seen last holds."""
        if self._deleted or time.monotonic() < self._looked + LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        job = _kubectl("get", KIND, self.name, f"--namespace={self._chosen.namespace}", "--output=json")
        if job.returncode:
            if "NotFound" in job.stderr or "not found" in job.stderr:
                self._fault = f"cloze: TrainJob {self.name} was deleted in the cluster; run again to go on"
            return
        failed = [
            found
            for found in _conditions(json.loads(job.stdout))
            if found.get("type") == "Failed" and found.get("status") == "True"
        ]
        pods = _kubectl(
            "get", "pods", f"--namespace={self._chosen.namespace}", f"--selector={POD_OF}={self.name}", "--output=json"
        )
        if pods.returncode == 0:
            self._pods = _by_node(json.loads(pods.stdout)["items"])
        if failed and not self._pods:
            self._fault = f"cloze: TrainJob {self.name} failed: {failed[0].get('message') or failed[0].get('reason')}"

    def _delete_others(self) -> None:
        chosen = f"{ARTIFACT}={artifact_label(self._launch.artifact)}"
        done = _kubectl(
            "delete", KIND, f"--namespace={self._chosen.namespace}", f"--selector={chosen}", "--ignore-not-found", "--wait=true"
        )
        if done.returncode:
            raise ClozeError(
                f"an earlier TrainJob of {self._launch.artifact} cannot be deleted ({_words(done.stderr)}); delete it by hand"
            )

    def _delete(self, name: str) -> None:
        _kubectl("delete", KIND, name, f"--namespace={self._chosen.namespace}", "--ignore-not-found", "--wait=false")


def _by_node(pods: Iterable[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """The newest pod of each node: Kubernetes may have made one again."""
    found: dict[int, Mapping[str, Any]] = {}
    for pod in sorted(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp", ""))):
        index = pod["metadata"].get("labels", {}).get(INDEX)
        if index is not None:
            found[int(index)] = pod
    return found


def _phase(pod: Mapping[str, Any]) -> str:
    return str(pod.get("status", {}).get("phase", ""))


def _conditions(thing: Mapping[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = thing.get("status", {}).get("conditions") or []
    return found


def _statuses(pod: Mapping[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pod.get("status", {}).get("containerStatuses") or []
    return found


def _why(pod: Mapping[str, Any]) -> str:
    """What a pod waits for, in Kubernetes' words."""
    for status in _statuses(pod):
        waiting = status.get("state", {}).get("waiting")
        if waiting and waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            return ": ".join(filter(None, (waiting["reason"], waiting.get("message"))))
    for condition in _conditions(pod):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return str(condition.get("message") or condition.get("reason") or "")
    return ""


def _end(pod: Mapping[str, Any]) -> tuple[int, str]:
    """A pod's exit code, and why it ended: OOMKilled, Evicted, …"""
    status = pod.get("status", {})
    code, words = 1 if _phase(pod) == "Failed" else 0, [str(status[name]) for name in ("reason", "message") if status.get(name)]
    for container in _statuses(pod):
        ended = container.get("state", {}).get("terminated")
        if ended:
            code = int(ended.get("exitCode", code))
            words += [
                str(ended[name])
                for name in ("reason", "message")
                if ended.get(name) and ended[name] not in ("Error", "Completed")
            ]
    return code, ": ".join(words)


def _words(stderr: str) -> str:
    return "; ".join(line.removeprefix("error: ").strip() for line in stderr.strip().splitlines()[-2:]) or "it gave no reason"


def _kubectl(*arguments: str, content: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run kubectl; one that does not answer in time counts as failed."""
    command = ["kubectl", *arguments]
    try:
        return subprocess.run(command, input=content or "", capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"kubectl did not answer in {SECONDS:.0f} s")
    except OSError as error:
        return subprocess.CompletedProcess(command, 1, "", f"kubectl: {error.strerror}")


LAUNCHER: Launcher = ByAgents(Kubernetes())
