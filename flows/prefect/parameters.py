"""The parameters of the flows, as the form of Prefect's UI offers them: choices, bounds, and a field for what people change.

Each type says its JSON schema itself. An optional number is a number in it, which may be left empty: `int | None` by itself would be a
choice between a number and "None". What is left empty stays as the config says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from flows.graph import config as configs
from flows.graph import overrides as nested
from flows.graph import stages
from flows.session import RunParameters
from pipeline.core.errors import UsageError


def _number(kind: str, description: str, **bounds: float) -> WithJsonSchema:
    return WithJsonSchema({"type": kind, "description": f"{description}. Empty: as the config says.", **bounds})


def _config(presets: list[str], description: str) -> WithJsonSchema:
    return WithJsonSchema(
        {
            "anyOf": [
                {"title": "Preset", "type": "string", "enum": presets},
                {"title": "YAML file", "type": "string", "minLength": 1},
            ],
            "description": description,
        }
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
                {"title": "Nodes or patterns", "type": "array", "items": {"type": "string", "minLength": 1}},
            ],
            "description": description,
        }
    )


ABLATIONS = [name for name in configs.preset_names() if name.startswith("ablation")]

Config = Annotated[
    str, _config(configs.preset_names(), "What is run: a preset, or the path of a YAML file on the worker's machine.")
]
Ablation = Annotated[
    str,
    _config(ABLATIONS, "A table of a paper, a row a node; or the path of a YAML file with a matrix on the worker's machine."),
]
Steps = Annotated[int | None, Field(ge=1), _number("integer", "Optimizer steps of pretraining", minimum=1)]
GlobalBatch = Annotated[
    int | None, Field(ge=1), _number("integer", "Sequences a step of pretraining, over all processes", minimum=1)
]
LearningRate = Annotated[
    float | None, Field(gt=0), _number("number", "The highest learning rate of pretraining", exclusiveMinimum=0)
]
Seed = Annotated[int | None, Field(ge=0), _number("integer", "Seed of pretraining: weights, order, dropout", minimum=0)]
VocabSize = Annotated[int | None, Field(ge=1), _number("integer", "Entries of the vocabulary", minimum=1)]
Length = Annotated[int | None, Field(ge=8), _number("integer", "Tokens a row of the dataset", minimum=8)]
Copies = Annotated[int | None, Field(ge=1), _number("integer", "Mask copies of each row", minimum=1)]
Epochs = Annotated[float | None, Field(gt=0), _number("number", "Epochs of fine-tuning", exclusiveMinimum=0)]
TaskRate = Annotated[
    float | None, Field(gt=0), _number("number", "The highest learning rate of fine-tuning", exclusiveMinimum=0)
]
TaskSeed = Annotated[
    int | None, Field(ge=0), _number("integer", "Seed of fine-tuning: the head's weights, order, dropout", minimum=0)
]
Workers = Annotated[int | None, Field(ge=1), _number("integer", "Beam workers of a data stage; changes no result", minimum=1)]
Processes = Annotated[
    int | None, Field(ge=1), _number("integer", "Training processes, one a GPU; changes no result", minimum=1)
]
StartFrom = Annotated[list[str], _nodes("Run these and all that need them, whatever is there. Counts once: a retry goes on.")]
Only = Annotated[list[str], _nodes("Run these alone; their inputs must be there.")]
Until = Annotated[list[str], _nodes("Run these and what they need, and nothing else.")]
Force = Annotated[list[str], _nodes("Run these again, whatever is there. Counts once: a retry goes on.")]
Overrides = Annotated[
    dict[str, Any],
    WithJsonSchema(
        {
            "type": "object",
            "description": 'Any other value of the config by its dotted key, such as {"dataset.copies": 4}. No secrets: Prefect shows this.',
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
            "description": "How often a node is tried again after a failure that may pass by itself, unless its config says;"
            " bad input and bad config are not tried again.",
        }
    ),
]

NO_NODES: list[str] = []
NO_OVERRIDES: dict[str, Any] = {}

# Where a field of a form goes in the config.
KEYS = {
    "steps": "pretrain.steps", "global_batch": "pretrain.global_batch", "learning_rate": "pretrain.learning_rate",
    "seed": "pretrain.seed", "vocab_size": "vocab.size", "length": "dataset.length", "copies": "dataset.copies",
    "epochs": "finetune.epochs", "task_learning_rate": "finetune.learning_rate", "task_seed": "finetune.seed",
    "workers": "run.workers", "processes": "run.processes",
}  # fmt: skip


def parameters_of(values: Mapping[str, Any], until: tuple[str, ...] = ()) -> RunParameters:
    """What a flow's parameters come to. `overrides` wins over the form's fields.

    Args:
        values: a flow's arguments by name.
        until: the stages that the flow goes up to.

    Raises:
        UsageError: a field is filled in whose stage the config has not.
    """
    given = {KEYS[name]: value for name, value in values.items() if name in KEYS and value is not None}
    own = {name: values[name] for name in ("start_from", "only", "force", "until") if values.get(name)}
    if until and not own.get("until"):
        own["until"] = list(until)
    overrides = nested.nest(values.get("overrides") or {})
    if given:
        for section, fields in nested.nest(_by_section(given, str(values["config"]))).items():
            mine = overrides.get(section, {})
            overrides[section] = {**fields, **mine} if isinstance(mine, Mapping) else mine
    return RunParameters.model_validate({"config": values["config"], "overrides": overrides, **own})


def _by_section(given: Mapping[str, Any], reference: str) -> dict[str, Any]:
    """The keys with the sections that the config has: `pretrain`, or where there is none by that name, all its phases."""
    sections = dict.fromkeys(node.section for node in configs.load(reference).nodes.values())
    found: dict[str, Any] = {}
    for key, value in given.items():
        stage, _, field = key.partition(".")
        named = (
            [stage] if stage in sections or stage == "run" else [name for name in sections if name.partition("@")[0] == stage]
        )
        if not named:
            raise UsageError(
                f"{field} ({value}) is a field of stage {stage}, which config {reference!r} has not; leave it empty"
            )
        found |= {f"{name}.{field}": value for name in named}
    return found
