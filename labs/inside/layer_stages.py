"""The stages that measure a frozen encoder's layers: probe and layers. No torch until they run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from cloze.core.config import InputPath, StageConfig
from cloze.core.errors import UsageError, did_you_mean
from cloze.core.humanize import format_number
from cloze.core.stages.stage import InputSpec, Stage, deferred
from cloze.model.tasks.files import NOTES, data_fingerprint, missing_split
from cloze.model.tasks.options import TaggingOptions
from cloze.model.tasks.table import TASKS, task_options

SPLITS = ("train", "dev")
PRETRAINED = InputSpec(kinds=("pretrain",), explicit_kinds=("finetune", "merge"), required=True)


class ProbeConfig(StageConfig):
    """Options of probe.

    The training recipe is fixed, so that layers and checkpoints can be compared: Adam at 0.001 in
    batches of 128, at most 30 epochs (of 6,400 examples or more), stopped after 3 epochs without a
    lower loss on dev.
    """

    task: str = "conll2003"
    """Tagging task, such as conll2003 (entities), conll2003-pos, conll2003-chunk or ud-pos."""

    data: InputPath | None = None
    """Directory with the task's files, or its parent."""

    options: dict[str, Any] = Field(default_factory=dict)
    """Task options that differ from the registered ones, such as the columns and files of your own
    data."""

    target: Literal["words", "entities", "arcs"] = "words"
    """Classified units: the tag of each word, the type of each entity by its span, or the relation
    of each word to its head by both words (CoNLL-U files)."""

    hidden: int | None = Field(default=None, ge=1)
    """Width of additional probes with one hidden layer. Default: linear probes only."""

    limit: int = Field(default=20_000, ge=1)
    """Maximum words per split, in whole sentences drawn by the seed. Their states are in memory: 4
    bytes per word, layer and unit of width (base models: 0.8 GB per split)."""

    baselines: bool = True
    """Also score the most frequent label, and the same encoder with random weights."""

    seed: int = Field(default=1, ge=0, lt=1 << 63)
    """Seed of the sentences, the control task, the probes and the random encoder."""

    @field_validator("task")
    @classmethod
    def _tagging_task(cls, value: str) -> str:
        tagging = [name for name, spec in TASKS.loaded().items() if spec.kind == "tagging"]
        if value not in tagging:
            raise ValueError(f"no task with tags of words; {did_you_mean(value, tagging)}")
        return value

    @model_validator(mode="after")
    def _check_options(self) -> ProbeConfig:
        try:
            options = self.task_options
        except UsageError as error:
            raise ValueError(str(error)) from error
        if options.context == "document":
            raise ValueError("options.context (document) is not for probes; use sentence")
        if self.target == "entities" and options.scheme != "entities":
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


class LayersConfig(StageConfig):
    """Options of layers."""

    texts: InputPath
    """File with a text per line."""

    tokens: int = Field(default=4096, ge=2)
    """Number of tokens whose states are compared, special tokens included. CKA needs several times
    as many as the model is wide."""


def _headline(summary: Mapping[str, Any]) -> str:
    figures = ", ".join(
        f"{name.replace('_', ' ')} {format_number(value)}"
        for name, value in summary["metrics"].items()
        if value is not None
    )
    return "; ".join([figures, *summary.get(NOTES, ())])


# Scores of probes by layer, with control tasks, scalar mixes and baselines. File: `metrics.json`.
PROBE = Stage(
    name="probe",
    version=1,
    config=ProbeConfig,
    run=deferred("cloze.labs.inside.probe:run"),
    inputs={"checkpoint": PRETRAINED},
    worker="cloze.model",
    on_gpu=True,
    headline=_headline,
    comparison_metrics=("metrics",),
)

# How far each layer moves its input (ALBERT, figure 1), and how similar layers are: linear CKA.
# File: `metrics.json`.
LAYERS = Stage(
    name="layers",
    version=1,
    config=LayersConfig,
    run=deferred("cloze.labs.inside.layers:run"),
    inputs={
        "checkpoint": PRETRAINED,
        "other": InputSpec(kinds=("pretrain", "finetune", "merge"), explicit_only=True),
    },
    worker="cloze.model",
    on_gpu=True,
    headline=_headline,
    comparison_metrics=("metrics",),
)
