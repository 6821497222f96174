"""What a TrainJob of Kubeflow Trainer 2.2 and 2.3 may hold, as far as a launcher could write it.

Written after https://github.com/kubeflow/trainer (Apache-2.0),
manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml and
pkg/apis/trainer/v1alpha1/trainjob_types.go, with the API server's own rules for names. Fields that
are not here are refused, as the API server does with `--validate=strict`. `CLOZE_TRAINER_CRD` may
name that file of a checkout: then manifests are held against it, too.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}
LABEL_NAME = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/"
    r")?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
)
LABEL_VALUE = r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$"
QUANTITY: Schema = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti)?$"}


def _object(required: tuple[str, ...] = (), **fields: Schema) -> Schema:
    return {
        "type": "object",
        "properties": fields,
        "required": list(required),
        "additionalProperties": False,
    }


def _list(of: Schema, most: int) -> Schema:
    return {"type": "array", "items": of, "maxItems": most}


def _map(values: Schema, names: str = LABEL_NAME) -> Schema:
    return {"type": "object", "patternProperties": {names: values}, "additionalProperties": False}


def _text(most: int, least: int = 1) -> Schema:
    return {"type": "string", "minLength": least, "maxLength": most}


LABELS = _map({"type": "string", "pattern": LABEL_VALUE})
KEY = _object(("key",), key=TEXT, name=TEXT, optional={"type": "boolean"})
FIELD = _object(("fieldPath",), apiVersion=TEXT, fieldPath=TEXT)
ENV = _list(
    _object(
        ("name",),
        name=_text(253),
        value=TEXT,
        valueFrom=_object(secretKeyRef=KEY, configMapKeyRef=KEY, fieldRef=FIELD),
    ),
    128,
)
MOUNT = _object(
    ("name", "mountPath"),
    name=TEXT,
    mountPath={"type": "string", "pattern": "^/"},
    readOnly={"type": "boolean"},
    subPath=TEXT,
)
CONTAINER = _object(
    ("name",),
    name=_text(253),
    env=ENV,
    volumeMounts=_list(MOUNT, 128),
    securityContext={"type": "object"},
)
VOLUME = _object(
    ("name",),
    name={"type": "string", "pattern": r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63},
    emptyDir=_object(medium={"enum": ["", "Memory"]}, sizeLimit=QUANTITY),
    persistentVolumeClaim=_object(
        ("claimName",), claimName=_text(253), readOnly={"type": "boolean"}
    ),
)
TOLERATION = _object(
    key=TEXT,
    operator={"enum": ["Exists", "Equal"]},
    value=TEXT,
    effect={"enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"]},
    tolerationSeconds={"type": "integer"},
)
POD = _object(
    terminationGracePeriodSeconds={"type": "integer", "minimum": 0},
    serviceAccountName=_text(253),
    nodeSelector=_map(TEXT),
    tolerations=_list(TOLERATION, 128),
    imagePullSecrets=_list(_object(name=TEXT), 64),
    volumes=_list(VOLUME, 128),
    containers=_list(CONTAINER, 64),
    initContainers=_list(CONTAINER, 64),
    securityContext={"type": "object"},
    affinity={"type": "object"},
    schedulingGates=_list(_object(("name",), name=TEXT), 16),
)
METADATA = _object(labels=LABELS, annotations=_map(TEXT))
POD_TEMPLATE = _object(metadata=METADATA, spec=POD)
JOB_TEMPLATE = _object(metadata=METADATA, spec=_object(template=POD_TEMPLATE))
PATCH = _object(
    ("manager",),
    manager=_text(253),
    time={"type": "string", "format": "date-time"},
    trainingRuntimeSpec=_object(
        template=_object(
            metadata=METADATA,
            spec=_object(
                replicatedJobs=_list(
                    _object(("name",), name=_text(253), template=JOB_TEMPLATE), 100
                )
            ),
        )
    ),
)
RESOURCES = _object(
    requests=_map(QUANTITY), limits=_map(QUANTITY), claims=_list({"type": "object"}, 16)
)
TRAINER = _object(
    image=_text(500),
    command=_list(TEXT, 128),
    args=_list(TEXT, 128),
    env=ENV,
    numNodes={"type": "integer", "minimum": 0},
    numProcPerNode={"type": "integer", "minimum": 1},
    resourcesPerNode=RESOURCES,
)
TRAIN_JOB = _object(
    ("apiVersion", "kind", "metadata", "spec"),
    apiVersion={"const": "trainer.kubeflow.org/v1alpha1"},
    kind={"const": "TrainJob"},
    metadata=_object(
        ("name",),
        name={"type": "string", "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63},
        namespace={"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63},
        labels=LABELS,
        annotations=_map(TEXT),
    ),
    spec=_object(
        ("runtimeRef",),
        runtimeRef=_object(
            ("name",),
            name=_text(253),
            apiGroup=_text(253),
            kind={"enum": ["ClusterTrainingRuntime", "TrainingRuntime"]},
        ),
        trainer=TRAINER,
        runtimePatches=_list(PATCH, 16),
        suspend={"type": "boolean"},
        managedBy={
            "enum": ["trainer.kubeflow.org/trainjob-controller", "kueue.x-k8s.io/multikueue"]
        },
        activeDeadlineSeconds={"type": "integer", "minimum": 1},
    ),
)


def strict(schema: Any) -> Any:
    """A CRD's schema that refuses unknown fields."""
    if isinstance(schema, list):
        return [strict(found) for found in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: strict(value) for name, value in schema.items()}
    if found.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    if (
        isinstance(found.get("properties"), dict)
        and found.get("type") == "object"
        and not found.get("x-kubernetes-preserve-unknown-fields")
    ):
        found.setdefault("additionalProperties", False)
    return found
