"""Config of the stage evaluate."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from cloze.core.config import InputPath, StageConfig
from cloze.model.tasks.files import missing_split
from cloze.model.tasks.options import TaskOptions
from cloze.model.tasks.table import TASKS, TaskName, task_options


class EvaluateConfig(StageConfig):
    """Options of evaluate; task options and lengths are those of the fine-tuning.

    Several checkpoints of one task are an ensemble, which averages their probabilities, numbers or
    span logits.

    All of `data` counts in the fingerprint, as the checkpoint's options may name the files.
    """

    data: InputPath | None = None
    """Directory with the task's files, or the file of the split. Not needed for tasks built from a
    corpus."""

    task: str | None = None
    """Task of the checkpoint; needed if it was fine-tuned on several. Default: the checkpoint's
    only task."""

    test_on: TaskName | None = None
    """Another task whose data to score on, of the same kind: rte for a model of mnli. Default: the
    checkpoint's own task."""

    label_map: dict[str, str] = Field(default_factory=dict)
    """New names for labels, of the model and of the data; labels with one name are one label:
    {neutral: not_entailment, contradiction: not_entailment}. Repeatable."""

    options: dict[str, Any] = Field(default_factory=dict)
    """Task options that differ from those of the fine-tuning; with test_on, from those of that
    task."""

    split: str = Field(default="dev", min_length=1)
    """Split to score: train, dev, test, or another split of the task. A split without labels is
    only predicted."""

    resamples: int = Field(default=1000, ge=1)
    """Number of bootstrap resamples for the confidence interval."""

    seed: int = Field(default=1, ge=0, lt=1 << 63)
    """Seed of the bootstrap."""

    precision: Literal["auto", "fp32", "bf16", "int8"] = "auto"
    """Precision of matrix products, over fp32 weights. auto: bf16 if native. int8: for CPUs."""

    def reads(self) -> list[tuple[str, TaskOptions, str | None]]:
        """Return name, options and data of the task; the checkpoint has what is missing."""
        task = self.test_on or self.task or ""
        options = task_options(task, self.options) if task in TASKS else TaskOptions()
        return [(task, options, self.data)]

    def missing(self) -> str:
        """Return a clause about missing files of the split; empty if all exist."""
        ((task, options, data),) = self.reads()
        if task not in TASKS or data is None:
            return super().missing()
        return missing_split(data, options, (self.split,))
