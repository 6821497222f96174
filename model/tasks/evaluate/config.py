"""Config of the stage evaluate: fine-tuned checkpoint + a set in its task's format -> metrics and predictions."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from model.tasks.files_read import absent, data_fingerprint
from model.tasks.options import TaskOptions
from model.tasks.table import TASKS, task_options
from pipeline.core.config import InputPath, StageConfig

VERSION = 3


class EvaluateConfig(StageConfig):
    """What is evaluated. The task, its labels and its lengths are those that the checkpoint was fine-tuned with."""

    data: InputPath | None = None
    """Directory of the task's files, or the file of the split; none where the task reads a corpus."""

    task: str | None = None
    """The checkpoint's task; of a checkpoint of several, which of them. By default the only one."""

    options: dict[str, Any] = Field(default_factory=dict)
    """What is to be read or decoded otherwise than the checkpoint was fine-tuned with."""

    split: str = Field(default="dev", min_length=1)
    """Which split: train, dev, test, or another one that the task has; one without labels is only predicted."""

    resamples: int = Field(default=1000, ge=1)
    """Resamples of the bootstrap interval."""

    seed: int = Field(default=1, ge=0, lt=1 << 63)
    """Of the bootstrap."""

    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Of matrix products; bf16 is autocast over fp32 weights, auto takes it where the hardware multiplies it natively."""

    def _task_options(self) -> TaskOptions | None:
        """What is said of the task's files; None: the checkpoint alone knows the task."""
        return task_options(self.task, self.options) if self.task in TASKS else None

    def reads(self) -> list[tuple[str, TaskOptions, str | None]]:
        """The task's name, options and data; what is not said of it is the checkpoint's."""
        return [(self.task or "", self._task_options() or TaskOptions(), self.data)]

    def external_fingerprints(self) -> dict[str, str]:
        """Of the data, only the split's files, where the task is said."""
        found = self._task_options()
        if found is None or self.data is None:
            return super().external_fingerprints()
        return {"data": data_fingerprint(self.data, found, (self.split,))}

    def missing(self) -> str:
        """Which of the split's files is not there, as a clause; empty where all are."""
        found = self._task_options()
        if found is None or self.data is None:
            return super().missing()
        return absent(self.data, found, (self.split,))
