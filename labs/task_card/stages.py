"""Config and stage of the lab. No torch: the command line imports it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, ValidationInfo, model_validator

from cloze.core.config import InputPath, StageConfig, within
from cloze.core.errors import UsageError
from cloze.core.stages.stage import InputSpec, Stage, deferred
from cloze.model.tasks.files import data_fingerprint, missing_split
from cloze.model.tasks.table import KINDS, TASKS, TaskName, task_options

SPLITS = ("train", "dev")


class TaskCardConfig(StageConfig):
    """Options of task-card."""

    task: TaskName = "sst2"
    """Task, such as rte or squad; `cloze help tasks` lists them."""

    data: InputPath | None = None
    """Directory with the task's files, or its parent."""

    options: dict[str, Any] = Field(default_factory=dict)
    """Task options that differ from the registered ones, such as the columns and files of your own
    data."""

    max_length: int | None = Field(default=None, ge=4)
    """Maximum tokens per sequence, special tokens included. Default: by task, at most what the
    checkpoint's model supports."""

    @model_validator(mode="after")
    def _known_options(self, info: ValidationInfo) -> TaskCardConfig:
        try:
            task_options(self.task, self.options, within(info, "options"))
        except UsageError as error:
            raise ValueError(str(error)) from error
        if not KINDS[TASKS[self.task].kind].combines:
            raise ValueError(f"task {self.task} has no files of its own; name a task that has")
        return self

    def splits(self) -> tuple[str, ...]:
        """Return the splits that exist of train, dev and test."""
        options = task_options(self.task, self.options)
        is_there = self.data and not missing_split(self.data, options, ("test",))
        return (*SPLITS, "test") if is_there and not getattr(options, "folds", 0) else SPLITS

    def external_fingerprints(self) -> dict[str, str]:
        if self.data is None:
            return {}
        options = task_options(self.task, self.options)
        return {"data": data_fingerprint(self.data, options, self.splits())}

    def missing(self) -> str:
        options = task_options(self.task, self.options)
        return missing_split(self.data, options, SPLITS) if self.data else ""


def _headline(summary: Mapping[str, Any]) -> str:
    splits = summary["splits"].items()
    counts = ", ".join(f"{split['examples']:,} {name}" for name, split in splits)
    return "; ".join([counts, *(summary["findings"] or ["nothing odd found"])])


# File: `card.json`, the summary with an example of each finding about texts that splits share.
STAGE = Stage(
    name="task-card",
    version=1,
    config=TaskCardConfig,
    run=deferred("cloze.labs.task_card.card:run"),
    inputs={
        "checkpoint": InputSpec(
            kinds=("pretrain",), explicit_kinds=("finetune", "import", "merge")
        ),
        "vocab": InputSpec(kinds=("vocab",)),
    },
    worker="cloze.model",
    headline=_headline,
)
