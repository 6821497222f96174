"""`--launcher kubernetes`: an agent in each pod of a Kubeflow TrainJob, started with `kubectl`.

The pods and this host share the artifact's directory: a volume claim that is mounted here, too, or
an object store. Events use that directory. The status of the pods says why they wait, and how a pod
without a message has ended. The manifest is in `_logs/kubernetes/`.
"""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import yaml

from cloze.core import storage
from cloze.core.accounts import open_private
from cloze.core.errors import ClozeError, UsageError
from cloze.core.stages.execution import Execution
from cloze.core.stages.worker import JOB, LOGS, Job
from cloze.flows.launch.agent_launcher import AgentLauncher
from cloze.flows.launch.cancel_requests import cancel_result
from cloze.flows.launch.host_setup import COMMAND_SECONDS, run_command
from cloze.flows.launch.protocol import AgentGroup, Detached, Host, Launcher, LaunchSpec
from cloze.labs.kubernetes.manifest import (
    ARTIFACT,
    Options,
    artifact_label,
    name_of,
    options,
    train_job,
)

DIRECTORY = "kubernetes"  # below LOGS: manifests
POLL_SECONDS = 5.0  # poll interval of the pods
KIND = "trainjobs.trainer.kubeflow.org"
INDEX = "batch.kubernetes.io/job-completion-index"  # label of a pod: its node number
ENDED = ("Complete", "Failed")  # conditions of a TrainJob that has ended
POD_OF = "jobset.sigs.k8s.io/jobset-name"  # label of a pod: its JobSet, named like the TrainJob

PLAIN = ("Error", "Completed")  # reasons of an end that say nothing

Completed = subprocess.CompletedProcess[str]
log = logging.getLogger(__name__)


class KubernetesLauncher(AgentLauncher):
    """See `AgentLauncher`."""

    allocates_gpus = True

    def check(self, execution: Execution) -> None:
        settings = options(execution)
        if shutil.which("kubectl") is None:
            raise UsageError(
                "launcher kubernetes needs kubectl, which is not on this machine; install it and "
                "point it at the cluster"
            )
        space = settings.namespace
        allowed = _kubectl("auth", "can-i", "create", KIND, f"--namespace={space}")
        if allowed.stdout.strip() == "no":
            raise UsageError(
                f"you may not create TrainJobs in namespace {space} of the cluster; ask for that, "
                f"or name another"
            )
        if allowed.returncode:
            raise UsageError(
                f"the cluster does not answer kubectl ({_words(allowed.stderr)}); see `kubectl "
                f"cluster-info`"
            )
        runtime = _kubectl(
            "get", "clustertrainingruntimes.trainer.kubeflow.org", settings.runtime, "--output=name"
        )
        if runtime.returncode:
            raise UsageError(
                f"the cluster has no ClusterTrainingRuntime {settings.runtime} "
                f"({_words(runtime.stderr)}); install Kubeflow Trainer from 2.2"
                " on (infra/kubernetes), or name another with --kubernetes-option runtime=NAME"
            )

    def hosts(self, execution: Execution, processes: int) -> Sequence[Host]:
        return [Host(name="", count=processes)] * execution.nodes  # pods report their names

    def start_agents(self, launch: LaunchSpec, execution: Execution) -> AgentGroup:
        return _TrainJob(launch, execution, options(execution))

    def living(self, path: str) -> Detached | None:
        job = living(path)
        return job and Detached(f"TrainJob {job[0]}", lambda report: cancel(path, job, report))


class _TrainJob:
    """See `protocol.AgentGroup`."""

    def __init__(self, launch: LaunchSpec, execution: Execution, options: Options) -> None:
        self.name, self._launch, self._options = name_of(launch), launch, options
        manifest = train_job(self.name, launch, execution, options)
        path = storage.join(launch.artifact, LOGS, DIRECTORY, f"{self.name}.yaml")
        content = yaml.safe_dump(manifest, sort_keys=False).encode()
        storage.write_bytes(path, content, opener=open_private)  # `env` may hold a secret
        # a dead coordinator's TrainJob would train in the same directory
        self._delete_others()
        result = _kubectl("apply", "--filename=-", content=json.dumps(manifest))
        if result.returncode:
            raise UsageError(
                f"Kubernetes does not take the TrainJob ({_words(result.stderr)}); it is in {path}"
            )
        self._deleted = self._warned = False
        self._has_run = self._was_suspended = False  # Kueue suspends a TrainJob to preempt it
        self._last_poll = 0.0
        self._pods: dict[int, Mapping[str, Any]] = {}  # by node number
        self._fault: str | None = None  # error of the whole TrainJob

    def host(self, node: int) -> str:
        pod = self._pods.get(node)
        return str(pod["metadata"]["name"]) if pod else f"{self.name}-{node}"

    def waiting(self) -> str | None:
        self._poll()
        running = sum(_phase(pod) == "Running" for pod in self._pods.values())
        if running == self._launch.nodes:
            return None
        reason = next(filter(None, map(_why, self._pods.values())), "")
        return f"TrainJob {self.name} waits for its pods, {running} of {self._launch.nodes} run" + (
            f" ({reason})" if reason else ""
        )

    def preempted(self) -> bool:
        """See `AgentGroup`. Pods are marked, or their TrainJob suspended, before SIGTERM."""
        self._last_poll = 0.0
        self._poll()
        marked = any(_true(pod, "DisruptionTarget") for pod in self._pods.values())
        return self._was_suspended or marked

    def exited(self) -> Mapping[int, tuple[int, str]]:
        self._poll()
        if self._fault is not None:
            return dict.fromkeys(range(self._launch.nodes), (1, self._fault))
        ended = ("Failed", "Succeeded")
        return {node: _end(pod) for node, pod in self._pods.items() if _phase(pod) in ended}

    def stop(self) -> None:
        """Delete the TrainJob: pods get SIGTERM and their grace period. Retries until accepted."""
        if self._deleted:
            return
        result = _delete(self.name, self._options.namespace)
        self._deleted = result.returncode == 0
        if not self._deleted and not self._warned:
            self._warned = True
            log.warning(
                "TrainJob %s could not be deleted (%s), its pods keep their GPUs; delete it: "
                "kubectl delete %s %s --namespace=%s",
                self.name, _words(result.stderr), KIND, self.name, self._options.namespace,
            )  # fmt: skip

    def _poll(self) -> None:
        """Poll the cluster, rate-limited; without an answer the last status stays."""
        if self._deleted or time.monotonic() < self._last_poll + POLL_SECONDS:
            return
        self._last_poll = time.monotonic()
        job = _get(self.name, self._options.namespace)
        if job.returncode:
            # its pods have their grace period to save
            if _is_deleted(job) and _pods(self.name, self._options.namespace) == []:
                self._fault = (
                    f"cloze: TrainJob {self.name} was deleted in the cluster; run again to continue"
                )
            return
        resource = json.loads(job.stdout)
        failures = _true(resource, "Failed")
        if (pods := _pods(self.name, self._options.namespace)) is not None:
            self._pods = _by_node(pods)
            self._has_run |= any(_phase(pod) == "Running" for pod in pods)
        self._was_suspended |= self._has_run and bool(resource["spec"].get("suspend"))
        if failures and not self._pods:
            reason = failures[0].get("message") or failures[0].get("reason")
            self._fault = f"cloze: TrainJob {self.name} failed: {reason}"

    def _delete_others(self) -> None:
        selector = f"--selector={ARTIFACT}={artifact_label(self._launch.artifact)}"
        result = _delete(selector, self._options.namespace, wait=True)
        if result.returncode:
            raise ClozeError(
                f"an earlier TrainJob of {self._launch.artifact} cannot be deleted "
                f"({_words(result.stderr)}); delete it by hand"
            )


def _delete(which: str, namespace: str, wait: bool = False) -> Completed:
    """Delete a TrainJob by its name, or those of a `--selector=`."""
    how = ("--ignore-not-found", f"--wait={str(wait).lower()}")
    return _kubectl("delete", KIND, which, f"--namespace={namespace}", *how)


def _get(name: str, namespace: str, output: str = "json") -> Completed:
    return _kubectl("get", KIND, name, f"--namespace={namespace}", f"--output={output}")


def _pods(name: str, namespace: str) -> list[dict[str, Any]] | None:
    """Return the pods of a TrainJob; None if the cluster does not respond."""
    result = _kubectl(
        "get", "pods", f"--namespace={namespace}", f"--selector={POD_OF}={name}", "--output=json"
    )
    return None if result.returncode else list(json.loads(result.stdout)["items"])


def living(path: str) -> tuple[str, str] | None:
    """Return (name, namespace) of a TrainJob that trains or will train at `path`, or None.

    Raises:
        ClozeError: the cluster does not respond.
    """
    directory = storage.join(path, LOGS, DIRECTORY)
    for file in reversed(storage.list_names(directory)):
        metadata = yaml.safe_load(storage.read_text(storage.join(directory, file)))["metadata"]
        name, namespace = str(metadata["name"]), str(metadata["namespace"])
        job = _get(name, namespace)
        if job.returncode == 0:
            if not _true(json.loads(job.stdout), *ENDED):
                return name, namespace
        elif not _is_deleted(job):
            raise ClozeError(
                f"the cluster does not say whether TrainJob {name} still trains in {path} "
                f"({_words(job.stderr)}); run this "
                f"on a host where kubectl answers, or delete the TrainJob and remove {directory}"
            )
    return None


def cancel(path: str, train_job: tuple[str, str], report: Callable[[str], None]) -> dict[str, Any]:
    """Delete a TrainJob that no process follows; return the same as `cancel_requests.cancel`."""
    name, namespace = train_job
    execution = Execution.model_validate(Job.read(storage.join(path, LOGS, JOB)).execution)
    report(f"TrainJob {name} is deleted; its pods have their grace period to save a checkpoint")
    deadline = time.monotonic() + execution.scheduler_grace_seconds + COMMAND_SECONDS
    while not _is_deleted(_get(name, namespace, "name")):
        result = _delete(name, namespace)
        if time.monotonic() > deadline:
            raise ClozeError(
                f"TrainJob {name} cannot be deleted ({_words(result.stderr)}); look at it with "
                f"kubectl"
            )
        time.sleep(POLL_SECONDS)
    while _pods(name, namespace) != []:
        if time.monotonic() > deadline:
            raise ClozeError(f"the pods of TrainJob {name} do not end; look at them with kubectl")
        time.sleep(POLL_SECONDS)
    return cancel_result(path)


def _is_deleted(result: Completed) -> bool:
    """Check whether kubectl reports that the object does not exist."""
    return result.returncode != 0 and ("NotFound" in result.stderr or "not found" in result.stderr)


def _by_node(pods: Iterable[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """Return the newest pod of each node, because Kubernetes may have recreated pods."""
    newest: dict[int, Mapping[str, Any]] = {}
    for pod in sorted(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp", ""))):
        index = pod["metadata"].get("labels", {}).get(INDEX)
        if index is not None:
            newest[int(index)] = pod
    return newest


def _phase(pod: Mapping[str, Any]) -> str:
    return str(pod.get("status", {}).get("phase", ""))


def _conditions(resource: Mapping[str, Any]) -> list[dict[str, Any]]:
    conditions: list[dict[str, Any]] = resource.get("status", {}).get("conditions") or []
    return conditions


def _true(resource: Mapping[str, Any], *types: str) -> list[dict[str, Any]]:
    """Return the conditions of these types that hold."""
    own = _conditions(resource)
    return [one for one in own if one.get("type") in types and one.get("status") == "True"]


def _statuses(pod: Mapping[str, Any]) -> list[dict[str, Any]]:
    statuses: list[dict[str, Any]] = pod.get("status", {}).get("containerStatuses") or []
    return statuses


def _why(pod: Mapping[str, Any]) -> str:
    """Return Kubernetes' reason why a pod waits."""
    for status in _statuses(pod):
        waiting = status.get("state", {}).get("waiting")
        if waiting and waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            return ": ".join(filter(None, (waiting["reason"], waiting.get("message"))))
    for condition in _conditions(pod):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return str(condition.get("message") or condition.get("reason") or "")
    return ""


def _end(pod: Mapping[str, Any]) -> tuple[int, str]:
    """Return a pod's exit code, and the reason of its end: OOMKilled, Evicted, …"""
    status, code = pod.get("status", {}), 1 if _phase(pod) == "Failed" else 0
    reasons = [status.get("reason"), status.get("message")]
    for container in _statuses(pod):
        terminated = container.get("state", {}).get("terminated") or {}
        code = int(terminated.get("exitCode", code))
        reasons += [terminated.get("reason"), terminated.get("message")]
    return code, ": ".join(str(own) for own in reasons if own not in (None, "", *PLAIN))


def _words(stderr: str) -> str:
    lines = (line.removeprefix("error: ").strip() for line in stderr.strip().splitlines()[-2:])
    return "; ".join(lines) or "it gave no reason"


def _kubectl(*arguments: str, content: str = "") -> Completed:
    return run_command("kubectl", *arguments, content=content)


LAUNCHER: Launcher = KubernetesLauncher()
