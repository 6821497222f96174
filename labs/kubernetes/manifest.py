"""The TrainJob manifest of `--launcher kubernetes` (Kubeflow Trainer v2, 2.2 or later).

Fields as in https://github.com/kubeflow/trainer, pkg/apis/trainer/v1alpha1/trainjob_types.go. Pod
settings outside the container (volumes, grace period) are in `runtimePatches`, which patch the
runtime's replicated job `node`.
"""

from __future__ import annotations

import hashlib
import math
import re
from pathlib import PurePosixPath
from typing import Any

from pydantic import Field, ValidationError, ValidationInfo, field_validator

from cloze.core import storage
from cloze.core.config import Values
from cloze.core.errors import UsageError, did_you_mean
from cloze.core.stages.execution import Execution, LaunchOptions
from cloze.flows.launch import site
from cloze.flows.launch.protocol import LaunchSpec

API = "trainer.kubeflow.org/v1alpha1"
MANAGER = "cloze.dev/launcher"  # owner of the patches
ARTIFACT = "cloze.dev/artifact"  # label: hash of the artifact's directory
FIELD = "kubernetes_options"  # of the execution, as of every launcher of a plug-in
NODE = "node"  # replicated job and container in Trainer's runtimes
GRACE_MARGIN = 15  # seconds added to the ranks' grace period, for the agent's last events
# Trainer numbers the pods (PET_NODE_RANK). JobSet's headless service, named like the TrainJob,
# resolves the pods' names. `exec` lets the agent receive the pod's SIGTERM. Where Trainer takes
# progress, the first pod sends it.
AGENT = (
    'if [ "$PET_NODE_RANK" = 0 ] && [ "$KUBEFLOW_TRAINER_SERVER_URL" ]; then '
    '"$0" -m cloze.labs.kubernetes.progress "$1" & fi; '
    'CLOZE_HOST_ADDRESS="$(hostname).$2" '
    'exec "$0" -m cloze.flows.launch.agent "$1" "$PET_NODE_RANK"'
)
# repeatable options
SEVERAL = ("claim", "env", "secret", "node_selector", "toleration", "pull_secret")


FORMS = {  # option -> pattern and form of its values
    "claim": (r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?:/.+", "NAME:/PATH, such as training:/data"),
    "env": (r"[^=]+=.*", "NAME=VALUE"),
    "secret": (r"[^=]+=[^/]+/[^/]+", "NAME=SECRET/KEY"),
    "node_selector": (r"[^=]+=.*", "NAME=VALUE"),
}


class Options(Values):
    """Values of `kubernetes_options`, each given as NAME=VALUE."""

    image: str = Field(min_length=1, max_length=500)
    """Container image with the same version of Cloze."""
    namespace: str = "default"
    """Namespace of the TrainJob."""
    runtime: str = "torch-distributed"
    """ClusterTrainingRuntime of the TrainJob; infra/kubernetes has one, cloze, whose pods
    Kubernetes does not restart."""
    python: str = "python"
    """Python interpreter in the image."""
    claim: tuple[str, ...] = ()
    """Persistent volume claim as NAME:/PATH, mounted at the path that it has on this host.
    Repeatable."""
    cpu: str | None = None
    """CPU cores per pod, such as 8. Default: resources.cpus."""
    memory: str | None = None
    """Memory per pod, such as 64Gi. Default: resources.memory."""
    gpus: int | None = Field(default=None, ge=0)
    """GPUs per pod. Default: resources.gpus, or --processes, or 0 with --device cpu."""
    gpu_resource: str = "nvidia.com/gpu"
    """Resource name of a GPU in the cluster."""
    shared_memory: str = "8Gi"
    """Size of /dev/shm, through which the ranks of a pod exchange gradients."""
    env: tuple[str, ...] = ()
    """Environment variable of the pods as NAME=VALUE. Everyone who may read the TrainJob can read
    it. Repeatable."""
    secret: tuple[str, ...] = ()
    """Environment variable of the pods from a Secret, as NAME=SECRET/KEY. Repeatable."""
    service_account: str | None = None
    """Service account of the pods."""
    node_selector: tuple[str, ...] = ()
    """Label that a node must have, as LABEL=VALUE. Repeatable."""
    toleration: tuple[str, ...] = ()
    """Taint that the pods tolerate, as KEY or KEY=VALUE. Repeatable."""
    pull_secret: tuple[str, ...] = ()
    """Secret to pull the image with. Repeatable."""
    queue: str | None = None
    """Local queue of Kueue."""

    @field_validator(*FORMS)
    @classmethod
    def _check_form(cls, values: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        pattern, form = FORMS[str(info.field_name)]
        for value in values:
            if not re.fullmatch(pattern, value, re.DOTALL):
                raise ValueError(f"{value!r} must look like {form}")
            if info.field_name == "env" and value.startswith("PET_"):
                raise ValueError(f"{value!r}: Trainer sets the variables PET_… itself")
        return values


def options(execution: LaunchOptions) -> Options:
    """Parse and validate `kubernetes_options`.

    Raises:
        UsageError: an option is unknown, missing or malformed.
    """
    values: dict[str, Any] = {}
    for option in getattr(execution, FIELD):
        name, separator, value = option.partition("=")
        name = name.removeprefix("--").replace("-", "_")
        if not separator or not value:
            raise UsageError(
                f"kubernetes_options ({option!r}) must look like NAME=VALUE, such as "
                f"image=registry/cloze:1"
            )
        if name not in Options.model_fields:
            raise UsageError(
                f"kubernetes_options ({option}) is not known; "
                f"{did_you_mean(name, Options.model_fields)}"
            )
        if name in SEVERAL:
            values[name] = (*values.get(name, ()), value)
        elif name in values:
            raise UsageError(
                f"kubernetes_options ({option}) says {name} a second time; it was {values[name]}"
            )
        else:
            values[name] = value
    here = site.read()
    usual = {"image": here.container, "python": here.python}
    values = {**{name: value for name, value in usual.items() if value}, **values}
    if "image" not in values:
        raise UsageError(
            "kubernetes_options (image) is missing; add --kubernetes-option image=REGISTRY/"
            "cloze:VERSION"
        )
    try:
        return Options.model_validate(values)
    except ValidationError as error:
        problem = error.errors()[0]
        raise UsageError(
            f"kubernetes_options ({'.'.join(map(str, problem['loc']))}): "
            f"{problem['msg'].removeprefix('Value error, ')}"
        ) from None


def artifact_label(path: str) -> str:
    """Return the label value for an artifact's directory: a hash of the path."""
    return hashlib.sha256(path.encode()).hexdigest()[:16]


def name_of(launch: LaunchSpec) -> str:
    """Return the unique name of a launch's TrainJob: a DNS label, short enough for pod names."""
    digest = hashlib.sha256(launch.directory.encode()).hexdigest()[:10]
    directory = launch.artifact.rstrip("/").rpartition("/")[2].lower()
    name = re.sub(r"[^a-z0-9]+", "-", directory)[:20].strip("-")
    return "-".join(part for part in ("cloze", name, digest) if part)


def train_job(
    name: str, launch: LaunchSpec, execution: Execution, options: Options
) -> dict[str, Any]:
    """Return the manifest of a TrainJob.

    Raises:
        UsageError: the pods would not see the artifact's directory.
    """
    path = launch.artifact
    _must_be_seen(path, options)
    trainer = {
        "image": options.image,
        "command": ["sh", "-c", site.read().script(AGENT), options.python, launch.directory, name],
        "numNodes": launch.nodes,
        "numProcPerNode": max(launch.counts),
        "env": _environment(options),
        "resourcesPerNode": _resources(launch, execution, options),
    }
    labels = {"app.kubernetes.io/name": "cloze", ARTIFACT: artifact_label(path)}
    if options.queue:
        labels["kueue.x-k8s.io/queue-name"] = options.queue
    pod = {
        "replicatedJobs": [
            {"name": NODE, "template": {"spec": {"template": {"spec": _pod(execution, options)}}}}
        ]
    }
    return {
        "apiVersion": API,
        "kind": "TrainJob",
        "metadata": {
            "name": name,
            "namespace": options.namespace,
            "labels": labels,
            "annotations": {"cloze.dev/directory": path},
        },
        "spec": {
            "runtimeRef": {
                "apiGroup": API.partition("/")[0],
                "kind": "ClusterTrainingRuntime",
                "name": options.runtime,
            },
            **_deadline(execution),
            "trainer": {field: value for field, value in trainer.items() if value},
            "runtimePatches": [
                {"manager": MANAGER, "trainingRuntimeSpec": {"template": {"spec": pod}}}
            ],
        },
    }


def _deadline(execution: Execution) -> dict[str, int]:
    """Return the limit for a cluster without a coordinator: the shorter time, and the grace."""
    limits = [limit for limit in (execution.timeout_minutes, execution.resources.minutes) if limit]
    if not limits:
        return {}
    seconds = 60 * min(limits) + execution.scheduler_grace_seconds + GRACE_MARGIN
    return {"activeDeadlineSeconds": math.ceil(seconds)}


def _must_be_seen(path: str, options: Options) -> None:
    if not storage.is_local(path):
        return
    mounts = [claim.partition(":")[2] for claim in options.claim]
    if not any(PurePosixPath(path).is_relative_to(mount) for mount in mounts):
        location = f"is on no claim ({', '.join(mounts)})" if mounts else "is on this host's disk"
        raise UsageError(
            f"{path} {location}, so the pods would not see it; add --kubernetes-option claim=NAME:/"
            f"PATH, where PATH contains it"
        )


def _environment(options: Options) -> list[dict[str, Any]]:
    variables: list[dict[str, Any]] = []
    for pair in options.env:
        name, _, value = pair.partition("=")
        variables.append({"name": name, "value": value})
    for pair in options.secret:
        name, secret, key = re.split("[=/]", pair, maxsplit=2)
        reference = {"secretKeyRef": {"name": secret, "key": key}}
        variables.append({"name": name, "valueFrom": reference})
    return variables


def _resources(launch: LaunchSpec, execution: Execution, options: Options) -> dict[str, Any]:
    given = execution.resources
    default_gpus = 0 if execution.device == "cpu" else max(launch.counts)
    gpus = next(count for count in (options.gpus, given.gpus, default_gpus) if count is not None)
    memory = options.memory or (given.memory and f"{given.memory}i")
    sizes = {"cpu": options.cpu or given.cpus, "memory": memory, options.gpu_resource: gpus}
    amounts = {name: str(amount) for name, amount in sizes.items() if amount}
    return {"requests": amounts, "limits": amounts} if amounts else {}


def _pod(execution: Execution, options: Options) -> dict[str, Any]:
    """Return the patch of the runtime's pod spec."""
    volumes: list[dict[str, Any]] = [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": options.shared_memory}}
    ]
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}]
    for number, claim in enumerate(options.claim):
        volume, (claim_name, _, mount_path) = f"claim-{number}", claim.partition(":")
        volumes.append({"name": volume, "persistentVolumeClaim": {"claimName": claim_name}})
        mounts.append({"name": volume, "mountPath": mount_path})
    tolerations = []
    for toleration in options.toleration:
        key, separator, value = toleration.partition("=")
        test = {"operator": "Equal", "value": value} if separator else {"operator": "Exists"}
        tolerations.append({"key": key, **test})
    grace_seconds = math.ceil(execution.scheduler_grace_seconds) + GRACE_MARGIN
    spec = {
        "terminationGracePeriodSeconds": grace_seconds,
        "serviceAccountName": options.service_account,
        "nodeSelector": dict(pair.split("=", 1) for pair in options.node_selector),
        "tolerations": tolerations,
        "imagePullSecrets": [{"name": secret} for secret in options.pull_secret],
        "volumes": volumes,
        "containers": [{"name": NODE, "volumeMounts": mounts}],
    }
    return {field: value for field, value in spec.items() if value}
