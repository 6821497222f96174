"""Parameters of the flows, with the JSON schemas for the forms of Prefect's UI.

An optional number is declared as a number: the schema of `int | None` would be a choice between a
number and "None". `cloze.flows.prefect.deploy` removes the null defaults, so the form does not send
a field that is left empty.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from cloze.core.errors import UsageError
from cloze.flows.graph import config as configs
from cloze.flows.graph import overrides as nested
from cloze.flows.graph import stages
from cloze.flows.launch.protocol import LAUNCHERS
from cloze.flows.run.session import RunParameters


def _number(kind: str, description: str, **bounds: float) -> WithJsonSchema:
    return WithJsonSchema(
        {"type": kind, "description": f"{description}. Empty: as the config says.", **bounds}
    )


def _nodes(description: str) -> WithJsonSchema:
    return WithJsonSchema(
        {
            "anyOf": [
                {
                    "title": "Stages",
                    "type": "array",
                    "uniqueItems": True,
                    "items": {"type": "string", "enum": list(stages.TABLE)},
                },
                {
                    "title": "Nodes or patterns",
                    "type": "array",
                    "items": {"type": "string", "minLength": 1},
                },
            ],
            "description": description,
        }
    )


Config = Annotated[
    str,
    WithJsonSchema(
        {
            "anyOf": [
                {"title": "Preset", "type": "string", "enum": configs.preset_names()},
                {"title": "YAML file", "type": "string", "minLength": 1},
            ],
            "description": (
                "What to run: a preset, or the path of a YAML file on the worker's machine."
            ),
        }
    ),
]
Steps = Annotated[
    int | None, Field(ge=1), _number("integer", "Optimizer steps of pretraining", minimum=1)
]
GlobalBatch = Annotated[
    int | None,
    Field(ge=1),
    _number("integer", "Sequences a step of pretraining, over all processes", minimum=1),
]
LearningRate = Annotated[
    float | None,
    Field(gt=0),
    _number("number", "The highest learning rate of pretraining", exclusiveMinimum=0),
]
Seed = Annotated[
    int | None,
    Field(ge=0),
    _number("integer", "Seed of pretraining: weights, order, dropout", minimum=0),
]
VocabSize = Annotated[
    int | None, Field(ge=1), _number("integer", "Entries of the vocabulary", minimum=1)
]
Length = Annotated[
    int | None, Field(ge=8), _number("integer", "Tokens a row of the dataset", minimum=8)
]
MaskCopies = Annotated[
    int | None, Field(ge=1), _number("integer", "Mask copies of each row", minimum=1)
]
Epochs = Annotated[
    int | None, Field(ge=1), _number("integer", "Epochs of fine-tuning", minimum=1)
]  # as `FinetuneConfig`
TaskRate = Annotated[
    float | None,
    Field(gt=0),
    _number("number", "The highest learning rate of fine-tuning", exclusiveMinimum=0),
]
TaskSeed = Annotated[
    int | None,
    Field(ge=0),
    _number("integer", "Seed of fine-tuning: the head's weights, order, dropout", minimum=0),
]
Workers = Annotated[
    int | None,
    Field(ge=1),
    _number("integer", "Beam workers of a data stage; changes no result", minimum=1),
]
Processes = Annotated[
    int | None,
    Field(ge=1),
    _number("integer", "Training processes, one a GPU; changes no result", minimum=1),
]
Launcher = Annotated[
    str | None,
    WithJsonSchema(
        {
            "anyOf": [
                {"title": "Launcher", "type": "string", "enum": list(LAUNCHERS)},
                {"title": "As the config says", "type": "null"},
            ],
            "description": (
                "Who starts the training processes, on this machine or on many. Empty: as the "
                "config says."
            ),
        }
    ),
]
Nodes = Annotated[
    int | None,
    Field(ge=1),
    _number("integer", "Machines that train together, with a launcher", minimum=1),
]
Hostfile = Annotated[
    str | None,
    WithJsonSchema(
        {
            "type": "string",
            "description": (
                "For ssh: a file of the machines on the worker's machine. Empty: as the config "
                "says."
            ),
        }
    ),
]
LauncherOptions = Annotated[
    list[str],
    WithJsonSchema(
        {
            "type": "array",
            "items": {"type": "string", "minLength": 1},
            "description": "Options of the launcher: --partition=gpu for Slurm,"
            " image=REGISTRY/cloze:1 for Kubernetes, Port=2222 for ssh."
            " No secrets: Prefect shows this.",
        }
    ),
]
StartFrom = Annotated[
    list[str],
    _nodes("Run these and all that need them, whatever is there. Counts once: a retry goes on."),
]
Only = Annotated[list[str], _nodes("Run these alone; their inputs must be there.")]
Until = Annotated[list[str], _nodes("Run these and what they need, and nothing else.")]
Force = Annotated[
    list[str], _nodes("Run these again, whatever is there. Counts once: a retry goes on.")
]
Overrides = Annotated[
    dict[str, Any],
    WithJsonSchema(
        {
            "type": "object",
            "description": (
                'Any other value of the config by its dotted key, such as {"dataset.shards": 4}. '
                "No secrets: Prefect shows this."
            ),
        }
    ),
]
Retries = Annotated[
    int,
    Field(ge=0, le=10),
    WithJsonSchema(
        {
            "type": "integer",
            "minimum": 0,
            "maximum": 10,
            "description": "Number of retries of a node after a failure that may be temporary,"
            " unless its config sets it. Bad input and bad config are not retried.",
        }
    ),
]

NO_NODES: list[str] = []
NO_OPTIONS: list[str] = []
NO_OVERRIDES: dict[str, Any] = {}

# Form field -> key in the config.
KEYS = {
    "steps": "pretrain.steps", "global_batch": "pretrain.global_batch",
    "learning_rate": "pretrain.learning_rate",
    "seed": "pretrain.seed", "vocab_size": "vocab.size", "length": "dataset.length",
    "mask_copies": "dataset.mask_copies",
    "epochs": "finetune.epochs", "task_learning_rate": "finetune.learning_rate",
    "task_seed": "finetune.seed",
    "workers": "run.workers", "processes": "run.processes",
    "launcher": "pretrain.run.launcher", "nodes": "pretrain.run.nodes",
    "hostfile": "pretrain.run.hostfile",
}  # fmt: skip
LAUNCHER_OPTIONS = {
    "slurm": "slurm_options",
    "kubernetes": "kubernetes_options",
    "ssh": "ssh_options",
}


STAGES = {name: key.partition(".")[0] for name, key in KEYS.items()} | {
    "launcher_options": "pretrain"
}


def fields_of(until: Collection[str]) -> set[str] | None:
    """Return the form fields of a deployment that runs up to the stages `until`. None: all fields.

    These are the fields of those stages and the fields of every run.
    """
    if not until:
        return None
    own = {name for name, stage in STAGES.items() if stage in (*until, "run")}
    return own | {"config", "start_from", "force", "overrides", "retries"}


def parameters_of(values: Mapping[str, Any]) -> RunParameters:
    """Return the run's parameters for a flow's arguments. `overrides` takes precedence.

    Raises:
        UsageError: the config lacks the stage of a field that is filled in.
    """
    given = {
        KEYS[name]: value for name, value in values.items() if name in KEYS and value is not None
    }
    if values.get("launcher_options"):
        given[f"pretrain.run.{_options_of(values.get('launcher'))}"] = list(
            values["launcher_options"]
        )
    own = {
        name: values[name] for name in ("start_from", "only", "force", "until") if values.get(name)
    }
    overrides = nested.nest(values.get("overrides") or {})
    if given:
        for section, fields in nested.nest(_by_section(given, str(values["config"]))).items():
            mine = overrides.get(section, {})
            overrides[section] = {**fields, **mine} if isinstance(mine, Mapping) else mine
    return RunParameters.model_validate({"config": values["config"], "overrides": overrides, **own})


def _options_of(launcher: str | None) -> str:
    """Return the config field for the launcher's own options."""
    if launcher not in LAUNCHER_OPTIONS:
        raise UsageError(
            f"launcher_options are given, and launcher is {launcher or 'empty'}; choose "
            f"{', '.join(LAUNCHER_OPTIONS)}, or leave them empty"
        )
    return LAUNCHER_OPTIONS[launcher]


def _by_section(given: Mapping[str, Any], reference: str) -> dict[str, Any]:
    """Map keys to the config's sections: `pretrain`, or if the config lacks it, all its phases."""
    sections = dict.fromkeys(node.section for node in configs.load(reference).nodes.values())
    found: dict[str, Any] = {}
    for key, value in given.items():
        stage, _, field = key.partition(".")
        named = (
            [stage]
            if stage in sections or stage == "run"
            else [name for name in sections if name.partition("@")[0] == stage]
        )
        if not named:
            raise UsageError(
                f"{field} ({value}) is a field of stage {stage}, which config {reference!r} has "
                f"not; leave it empty"
            )
        found |= {f"{name}.{field}": value for name in named}
    return found
