"""The stage evaluate: a fine-tuned checkpoint and a split -> metrics and predictions."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from cloze.core.config import InputPath, StageConfig
from cloze.core.humanize import format_metrics
from cloze.core.stages.stage import BuildContext, InputSpec, Stage, StageResult
from cloze.model.tasks.cost import EVALUATE_COSTS
from cloze.model.tasks.files import data_fingerprint, missing_split
from cloze.model.tasks.options import TaskOptions
from cloze.model.tasks.table import TASKS, task_options

VERSION = 3


class EvaluateConfig(StageConfig):
    """Options of evaluate; task options and lengths are those of the fine-tuning."""

    data: InputPath | None = None
    """Directory with the task's files, or the file of the split. Not needed for tasks built from a
    corpus."""

    task: str | None = None
    """Task of the checkpoint; needed if it was fine-tuned on several. Default: the checkpoint's
    only task."""

    options: dict[str, Any] = Field(default_factory=dict)
    """Task options that differ from those of the fine-tuning."""

    split: str = Field(default="dev", min_length=1)
    """Split to score: train, dev, test, or another split of the task. A split without labels is
    only predicted."""

    resamples: int = Field(default=1000, ge=1)
    """Number of bootstrap resamples for the confidence interval."""

    seed: int = Field(default=1, ge=0, lt=1 << 63)
    """Seed of the bootstrap."""

    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Precision of matrix products, over fp32 weights. auto: bf16 if the hardware has it."""

    def _task_options(self) -> TaskOptions | None:
        """Return the options of the configured task; None if only the checkpoint knows the task."""
        return task_options(self.task, self.options) if self.task in TASKS else None

    def reads(self) -> list[tuple[str, TaskOptions, str | None]]:
        """Return name, options and data of the task; the checkpoint has what is missing."""
        return [(self.task or "", self._task_options() or TaskOptions(), self.data)]

    def external_fingerprints(self) -> dict[str, str]:
        """Return the fingerprint of the split's files, or of all data without a configured task."""
        options = self._task_options()
        if options is None or self.data is None:
            return super().external_fingerprints()
        return {"data": data_fingerprint(self.data, options, (self.split,))}

    def missing(self) -> str:
        """Return a clause about missing files of the split; empty if all exist."""
        options = self._task_options()
        if options is None or self.data is None:
            return super().missing()
        return missing_split(self.data, options, (self.split,))


def run(config: EvaluateConfig, build: BuildContext) -> StageResult:
    """Evaluate; see `cloze.model.tasks.evaluate.run.run`."""
    from cloze.model.tasks.evaluate import run as evaluate

    return evaluate.run(config, build)


STAGE = Stage(
    name="evaluate",
    version=VERSION,
    config=EvaluateConfig,
    run=run,
    inputs={
        "checkpoint": InputSpec(
            kinds=("finetune",), required=True, inherited_fields=("data", "task")
        ),
        "corpus": InputSpec(kinds=("corpus", "semdedup")),
    },
    worker="cloze.model",
    on_gpu=True,
    outputs=("predictions",),
    headline=lambda summary: format_metrics(summary["metrics"]),
    cost_model=EVALUATE_COSTS,
    comparison_metrics=("metrics",),
)
