"""Parameters of the flows, with the JSON schemas for the forms of Prefect's UI.

An optional number is declared as a number: the schema of `int | None` would be a choice between a
number and "None". `cloze.flows.prefect.deploy` removes the null defaults, so the form does not send
a field that is left empty. Descriptions of numbers come from the docstring of the flow.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from cloze.core.errors import UsageError
from cloze.flows.graph import config as configs
from cloze.flows.graph import overrides as nested
from cloze.flows.graph import stages
from cloze.flows.graph.sections import NEVER, inherit, parse_when
from cloze.flows.launch.protocol import LAUNCHERS
from cloze.flows.run.session import RunParameters


def _schema(description: str, **schema: Any) -> WithJsonSchema:
    return WithJsonSchema({**schema, "description": description})


def _nodes_schema(description: str) -> WithJsonSchema:
    stage, name = {"type": "string", "enum": list(stages.TABLE)}, {"type": "string", "minLength": 1}
    by_stage = {"title": "Stages", "type": "array", "uniqueItems": True, "items": stage}
    by_name = {"title": "Nodes or patterns", "type": "array", "items": name}
    return _schema(description, anyOf=[by_name, by_stage])  # see `Config`


Config = Annotated[
    str,
    _schema(
        "A preset, or the path of a YAML file on the worker's machine.",
        # Prefect's first UI shows any text in the first alternative of its type: a list would
        # replace a path after its first letter.
        anyOf=[
            {"title": "Preset or YAML file", "type": "string", "minLength": 1},
            {"title": "Preset", "type": "string", "enum": configs.preset_names()},
        ],
    ),
]
Count = Annotated[int | None, Field(ge=1), WithJsonSchema({"type": "integer", "minimum": 1})]
Length = Annotated[int | None, Field(ge=8), WithJsonSchema({"type": "integer", "minimum": 8})]
Seed = Annotated[int | None, Field(ge=0), WithJsonSchema({"type": "integer", "minimum": 0})]
LearningRate = Annotated[
    float | None, Field(gt=0), WithJsonSchema({"type": "number", "exclusiveMinimum": 0})
]
Launcher = Annotated[
    str | None,
    _schema(
        "What starts the processes of all stages, on this host or on others; a section's own in "
        "the config counts more. Empty: as in the config.",
        anyOf=[
            {"title": "Launcher", "type": "string", "enum": list(LAUNCHERS)},
            {"title": "As in the config", "type": "null"},
        ],
    ),
]
OptionalText = Annotated[str | None, WithJsonSchema({"type": "string"})]
StartFrom = Annotated[
    list[str],
    _nodes_schema(
        "Run these nodes and all that depend on them, even if they are cached. Counts once: a "
        "retry continues."
    ),
]
Only = Annotated[list[str], _nodes_schema("Run these nodes alone; their inputs must exist.")]
Until = Annotated[
    list[str], _nodes_schema("Run these nodes and those that they depend on, and no others.")
]
Force = Annotated[
    list[str],
    _nodes_schema(
        "Run these nodes even if they are cached; those that read them only if their content "
        "differs. Counts once: a retry continues."
    ),
]
Overrides = Annotated[
    dict[str, Any],
    _schema(
        "Any other value of the config by its dotted key, such as "
        '{"dataset.shards": 4} or {"run.slurm_options": ["--partition=gpu"]}. No secrets: Prefect '
        "shows them.",
        type="object",
    ),
]
Retries = Annotated[
    int,
    Field(ge=0, le=10),
    _schema(
        "Number of retries of a node after a failure that may be temporary, unless its config sets"
        " it. Bad input and bad config are not retried.",
        type="integer",
        minimum=0,
        maximum=10,
    ),
]

NO_NODES: list[str] = []
NO_OVERRIDES: dict[str, Any] = {}

KEYS = {  # key in the config by form field
    "steps": "pretrain.steps",
    "global_batch": "pretrain.global_batch",
    "learning_rate": "pretrain.learning_rate",
    "seed": "pretrain.seed",
    "vocab_size": "vocab.size",
    "length": "dataset.length",
    "mask_copies": "dataset.mask_copies",
    "epochs": "finetune.epochs",
    "task_learning_rate": "finetune.learning_rate",
    "task_seed": "finetune.seed",
    "workers": "run.workers",
    "processes": "run.processes",
    "launcher": "run.launcher",
    "nodes": "run.nodes",
    "hostfile": "run.hostfile",
}
STAGES = {name: key.partition(".")[0] for name, key in KEYS.items()}


def fields_of(until: Collection[str]) -> set[str] | None:
    """Return the form fields of a deployment that runs up to the stages `until`. None: all fields.

    These are the fields of those stages and the fields of every run.
    """
    if not until:
        return None
    names = {name for name, stage in STAGES.items() if stage in (*until, "run")}
    return names | {"config", "start_from", "force", "overrides", "retries"}


def parameters_of(values: Mapping[str, Any]) -> RunParameters:
    """Return the run's parameters for a flow's arguments. `overrides` takes precedence.

    Raises:
        UsageError: the config lacks the stage of a field that is filled in.
    """
    filled = {key: values[name] for name, key in KEYS.items() if values.get(name) is not None}
    overrides = nested.nest(values.get("overrides") or {})
    if filled:
        by_section = _by_section(filled, str(values["config"]), overrides)
        overrides = _complete(overrides, nested.nest(by_section))
    nodes = {
        name: values[name] for name in ("start_from", "only", "force", "until") if values.get(name)
    }
    if until := nodes.get("until"):  # a deployment names stages that not every config has
        sections = configs.stage_sections(configs.read(str(values["config"]), overrides))
        absent = set(stages.TABLE) - {name.partition("@")[0] for name in sections}
        nodes["until"] = [name for name in until if name not in absent] or until
    return RunParameters.model_validate(
        {"config": values["config"], "overrides": overrides, **nodes}
    )


def left_out(values: Mapping[str, Any], parameters: RunParameters) -> str:
    """Return a sentence about the deployment's stages that the config lacks; empty: none."""
    absent = [name for name in values.get("until") or () if name not in parameters.until]
    stages_of = f"stage{'s' * (len(absent) > 1)} {', '.join(absent)}"
    return f"config {values['config']!r} does not have {stages_of}: left out" if absent else ""


def _complete(overrides: Any, fields: Any) -> Any:
    """Return the nested overrides, with the fields that they do not set."""
    is_nested = isinstance(overrides, Mapping) and isinstance(fields, Mapping)
    if not is_nested or nested.WHOLE in overrides:
        return overrides
    both = overrides.keys() & fields.keys()
    return {**fields, **overrides, **{key: _complete(overrides[key], fields[key]) for key in both}}


def _by_section(
    filled: Mapping[str, Any], reference: str, overrides: Mapping[str, Any]
) -> dict[str, Any]:
    """Map keys to the config's sections: `pretrain`, or if the config lacks it, all its phases."""
    below = configs.stage_sections(configs.read(reference, overrides))
    sections = [name for name in below if parse_when(name, inherit(below, name)) != NEVER]
    values: dict[str, Any] = {}
    for key, value in filled.items():
        stage, _, field = key.partition(".")
        if stage in sections or stage == "run":
            names = [stage]
        else:
            names = [name for name in sections if name.partition("@")[0] == stage]
        if not names:
            raise UsageError(
                f"{field} ({value}) is a field of stage {stage}, which config {reference!r} does "
                f"not have; leave the field empty"
            )
        values |= {f"{name}.{field}": value for name in names}
    return values
