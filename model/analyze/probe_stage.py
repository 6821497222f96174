"""The stage probe: a frozen checkpoint and labelled words -> scores of probes by layer.

A probe is a classifier of the states of one layer. What it can tell, the layer has made easy to
read. Files: `metrics.json`. The command line imports this module; torch is imported when the stage
runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from cloze.core.config import InputPath, StageConfig
from cloze.core.errors import UsageError, did_you_mean
from cloze.core.humanize import format_number
from cloze.core.stages.execution import CostEstimate, CostModel, Execution, MachineSpec, Metadata
from cloze.core.stages.stage import BuildContext, InputSpec, Stage, StageResult
from cloze.model.tasks.cost import measure_forward, previous_tokens
from cloze.model.tasks.files import data_fingerprint, missing_split
from cloze.model.tasks.options import TaggingOptions
from cloze.model.tasks.table import TASKS, task_options
from cloze.model.train.plan.cost import device_of, pass_cost, source_model

SPLITS = ("train", "dev")
TAGGING = tuple(name for name, spec in TASKS.items() if spec.kind == "tagging")
WORD_TOKENS = 1.4  # tokens of a word, about


class ProbeConfig(StageConfig):
    """Options of probe.

    The recipe of the training is fixed, so that layers and checkpoints can be compared: Adam at
    0.001 in batches of 128, at most 30 epochs, stopped after 3 without a lower loss on dev.
    """

    task: str = "conll2003"
    """Tagging task, such as conll2003 (entities), conll2003-pos, conll2003-chunk or ud-pos."""

    data: InputPath | None = None
    """Directory with the task's files, or its parent."""

    options: dict[str, Any] = Field(default_factory=dict)
    """Task options that differ from the registered ones, such as the columns and files of your own
    data."""

    target: Literal["words", "entities", "arcs"] = "words"
    """What is classified: the tag of each word; the type of each entity, by its span; or the
    relation of each word to its head, by both words (CoNLL-U files)."""

    hidden: int | None = Field(default=None, ge=1)
    """Width of additional probes with one hidden layer. Default: linear probes only."""

    limit: int = Field(default=20_000, ge=1)
    """Maximum words per split, in whole sentences drawn by the seed. Their states in all layers
    take 4 bytes per number on the disk while the stage runs."""

    max_length: int | None = Field(default=None, ge=4)
    """Maximum tokens per sequence, special tokens included. Default: 128, at most what the model
    supports."""

    baselines: bool = True
    """Also score the most frequent label, and the same encoder with random weights."""

    seed: int = Field(default=1, ge=0, lt=1 << 63)
    """Seed of the sentences, the control task, the probes and the random encoder."""

    precision: Literal["fp32", "bf16"] = "fp32"
    """Precision of the encoder."""

    @field_validator("task")
    @classmethod
    def _tagging_task(cls, value: str) -> str:
        if value not in TASKS:
            raise ValueError(f"no such task; {did_you_mean(value, TAGGING)}")
        if value not in TAGGING:
            raise ValueError(
                f"is of kind {TASKS[value].kind}, and probes read tags of words; use a task such "
                f"as conll2003, conll2003-pos or ud-pos"
            )
        return value

    @model_validator(mode="after")
    def _known_options(self) -> ProbeConfig:
        try:
            options = self.task_options
        except UsageError as error:
            raise ValueError(str(error)) from error
        if options.context == "document":
            raise ValueError("options.context (document) is not for probes; use sentence")
        if self.target == "entities" and options.scheme == "plain":
            raise ValueError(
                f"target (entities) needs tags such as B-PER, {self.task} has plain labels; use "
                f"target words"
            )
        return self

    @property
    def task_options(self) -> TaggingOptions:
        """Options of the task, with those of the config."""
        options = task_options(self.task, self.options)
        assert isinstance(options, TaggingOptions)
        return options

    def external_fingerprints(self) -> dict[str, str]:
        """Return the fingerprint of the files that the task reads."""
        if self.data is None:
            return {}
        return {"data": data_fingerprint(self.data, self.task_options, SPLITS)}

    def missing(self) -> str:
        """Return a clause about missing files of the task; empty if all exist."""
        return missing_split(self.data, self.task_options, SPLITS) if self.data else ""


def _run(config: ProbeConfig, build: BuildContext) -> StageResult:
    from cloze.model.analyze import probe

    return probe.run(config, build)


def _headline(summary: Mapping[str, Any]) -> str:
    metrics, metric = summary["metrics"], summary["metric"]
    parts = [f"{metric} {metrics[metric]:.3f} at layer {metrics['best_layer']} of"]
    parts.append(f"{len(summary['layers']) - 1}, centre of gravity")
    parts.append(format_number(metrics["center_of_gravity"]))
    return " ".join(parts)


def _estimate(
    config: ProbeConfig,
    inputs: Mapping[str, Metadata],
    execution: Execution,
    computer: MachineSpec,
    before: Metadata | None,
) -> CostEstimate:
    """Estimate the forward passes over both splits, and the states on the disk."""
    _, model, weights = source_model(inputs["checkpoint"])
    tokens = previous_tokens(before, data=config.data, limit=config.limit)
    tokens = tokens or 2 * WORD_TOKENS * config.limit
    layers, size = (model.num_hidden_layers, model.hidden_size) if model else (12, 768)
    width = size * (2 if config.target == "arcs" else 1)
    return pass_cost(
        tokens=tokens * (2 if config.baselines else 1),
        weights=weights,
        device=device_of(execution, computer),
        computer=computer,
        forward=True,
        disk_bytes=2 * 4 * config.limit * (layers + 1) * width,
        makes={"tokens": tokens},
    )


STAGE = Stage(
    name="probe",
    version=1,
    config=ProbeConfig,
    run=_run,
    inputs={
        "checkpoint": InputSpec(
            kinds=("pretrain",), explicit_kinds=("finetune", "merge"), required=True
        )
    },
    worker="cloze.model",
    on_gpu=True,
    headline=_headline,
    cost_model=CostModel(estimate=_estimate, measure=measure_forward),
    comparison_metrics=("metrics",),
)
