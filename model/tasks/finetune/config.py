"""Config of the stage finetune: pretrained checkpoint + labelled set -> fine-tuned checkpoint, metrics, predictions.

Imported by the command line at every start, so it knows only pydantic and the table of tasks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from model.tasks.files_read import absent, data_fingerprint
from model.tasks.options import FrozenLayers, TaskOptions
from model.tasks.table import TASKS, task_options
from model.tasks.together_options import TOGETHER, Part
from model.train.optimizers import known_optimizer, optimizer_help
from pipeline.core import fingerprints
from pipeline.core.artifact import canonical_json
from pipeline.core.config import InputPath, StageConfig
from pipeline.core.errors import UsageError, did_you_mean

VERSION = 4
SMALL, SMALL_RATE, USUAL_RATE, FROZEN_RATE = 512, 3e-4, 5e-5, 1e-3
SPLITS = ("train", "dev")


class FinetuneConfig(StageConfig):
    """What is fine-tuned on, for how long, and how hard.

    The defaults are those of BERT (Devlin et al. 2019, appendix A.3: batch 16 or 32, 2e-5 to 5e-5, 2 to 4 epochs;
    `run_classifier.py`: warm-up over a tenth of the steps, weight decay 0.01, clipping at 1.0). The learning rate
    of small models is higher: google-research/bert tuned its miniatures (Turc et al. 2019) over 3e-5 to 3e-4.
    """

    task: str = "sst2"
    """A row of the table of tasks, such as sst2 or package."""

    data: InputPath | None = None
    """Directory of the task's files, or the one above it; none where the task reads a corpus."""

    options: dict[str, Any] = Field(default_factory=dict)
    """What is not as the table of tasks says: columns and files of a task of your own, a window's stride …"""

    tasks: dict[str, Part] = Field(default_factory=dict)
    """With task together: the tasks that share the encoder, by name, such as {mrpc: {}, rte: {data: DIR}}; each gets a head of its own."""

    sampling: float = Field(default=1.0, ge=0, le=1)
    """With task together: a task's share of the steps goes with this power of its size: 1 by size, 0.5 by its square root, 0 alike."""

    epochs: int = Field(default=3, ge=1)
    """How often training goes over the train split."""

    batch_size: int = Field(default=32, ge=1)
    """Samples a step, over all processes and micro-batches."""

    learning_rate: float | None = Field(default=None, gt=0)
    """The peak; by default 1e-3 with frozen, 3e-4 for hidden sizes below 512, else 5e-5."""

    optimizer: str = Field(default="adamw", description=optimizer_help())

    layer_decay: float = Field(default=1.0, gt=0, le=1)
    """A layer's learning rate is this share of that of the layer above it, the head's is whole; 1: all are alike. ELECTRA's are 0.8 and 0.9."""

    embedding_rate: float = Field(default=1.0, gt=0)
    """What the embeddings' learning rate is of the others': those of a small pretrained encoder are large, and steps of the usual size
    hardly move them."""

    warmup: float = Field(default=0.1, ge=0, lt=1)
    """Share of the steps over which the learning rate rises; afterwards it falls to 0 in a straight line."""

    weight_decay: float = Field(default=0.01, ge=0)
    """Decoupled, on matrices alone: not on biases and norms."""

    clip: float = Field(default=1.0, ge=0)
    """The gradient's greatest norm; 0 never clips."""

    dropout: float | None = Field(default=None, ge=0, lt=1)
    """Dropout before the task's head; by default the model's hidden_dropout."""

    max_length: int | None = Field(default=None, ge=4)
    """The most pieces of a sequence, special tokens included; without it what suits the task, at most what the model reads."""

    limit_per_class: int | None = Field(default=None, ge=1)
    """The most training examples of a class; by default all of them."""

    class_weights: Literal["none", "balanced"] = "none"
    """Balanced: in the loss every class of the train split counts alike, however few examples it has."""

    seed: int = Field(default=1, ge=0, lt=1 << 63)
    """Of the head's weights, the order of the examples and dropout."""

    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Of matrix products; bf16 is autocast over fp32 weights, auto takes it where the hardware multiplies it natively."""

    baselines: bool = True
    """Also score what knows no inputs (such as the most frequent class), and the same model from random weights."""

    patience: int | None = Field(default=None, ge=1)
    """Stop early: after so many scores of the dev split in a row, one an epoch as a rule, that are no better than the best one."""

    keep: Literal["last", "best"] | None = None
    """Which step's weights are saved and scored: the last one's, or those that were best on dev; by default the best with patience."""

    frozen: FrozenLayers | None = None
    """Train no weight of the encoder: read these states of it, a row of BERT's table 7, with a BiLSTM below the task's head."""

    lstm_size: int = Field(default=768, ge=1)
    """With frozen: the BiLSTM's width in each direction; the paper's is 768."""

    lstm_layers: int = Field(default=2, ge=1)
    """With frozen: the BiLSTM's layers."""

    pooling: Literal["cls", "mean"] | None = None
    """What a text's vector is made of, in families that leave it open (modern): the state of its first token, or the mean of all; without
    it what the checkpoint says."""

    bilstm: bool = False
    """Put a bidirectional LSTM on a left-to-right encoder (Devlin et al. 2019, Table 5)."""

    from_scratch: bool = False
    """Begin with random weights instead of the checkpoint's."""

    model: str | None = None
    """With from_scratch and without a checkpoint: a preset's name; the tokenizer is the input vocab."""

    @field_validator("optimizer")
    @classmethod
    def _known_optimizer(cls, value: str) -> str:
        return known_optimizer(value)

    @field_validator("task")
    @classmethod
    def _known_task(cls, value: str) -> str:
        if value not in TASKS:
            raise ValueError(f"no such task; {did_you_mean(value, TASKS)}")
        return value

    @model_validator(mode="after")
    def _known_options(self) -> FinetuneConfig:
        try:
            task_options(self.task, self.options)
            for name, part in self.tasks.items():
                task_options(part.task or name, part.options, f"tasks.{name}.options")
        except UsageError as error:
            raise ValueError(str(error)) from error
        return self

    @model_validator(mode="after")
    def _several_only_together(self) -> FinetuneConfig:
        if self.tasks and self.task != TOGETHER:
            raise ValueError(f"tasks names several, task is {self.task}; use task: {TOGETHER}")
        if self.task == TOGETHER and not self.tasks:
            raise ValueError(f"task {TOGETHER} needs tasks (found none); name them: --set 'tasks={{mrpc: {{}}, rte: {{}}}}'")
        if self.tasks and self.frozen is not None:
            raise ValueError(f"frozen ({self.frozen}) is for one task; leave it out, or fine-tune each alone")
        wrong = [
            name for name in self.tasks if not name.isidentifier() or (self.tasks[name].task or name) in (TOGETHER, "package")
        ]
        if wrong:
            raise ValueError(
                f"tasks.{wrong[0]} cannot be one of several; use a word as its name, and a task that is read from data"
            )
        return self

    @model_validator(mode="after")
    def _model_only_from_scratch(self) -> FinetuneConfig:
        if self.model is not None and not self.from_scratch:
            raise ValueError(
                f"model ({self.model!r}) is only read with from_scratch: true; the checkpoint says which model it is"
            )
        return self

    def peak_learning_rate(self, hidden_size: int) -> float:
        """`learning_rate`, or what suits a model of that width; on a frozen one all that is trained is new."""
        if self.frozen is not None:
            return self.learning_rate or FROZEN_RATE
        return self.learning_rate or (SMALL_RATE if hidden_size < SMALL else USUAL_RATE)

    @property
    def keeps_best(self) -> bool:
        """Whether it is the best step's weights that are saved."""
        return self.keep == "best" or (self.keep is None and self.patience is not None)

    @property
    def some_data(self) -> str | None:
        """`data`; of several tasks that name their own, that of the first."""
        return self.data or next((part.data for part in self.tasks.values()), None)

    def given_options(self) -> dict[str, Any]:
        """What the task is told: `options`; of several tasks `tasks`, too."""
        return {**self.options, **({"tasks": self.model_dump(mode="json")["tasks"]} if self.tasks else {})}

    def reads(self) -> Iterator[tuple[str, TaskOptions, str | None]]:
        """Of each task that is read its name, options and data."""
        for _, task, path, options in self._read():
            yield task, task_options(task, options), path

    def _read(self) -> Iterator[tuple[str, str, str | None, dict[str, Any]]]:
        """What is read: the field, the task, the path and the options of each."""
        if not self.tasks:
            yield "data", self.task, self.data, self.options
        for name, part in self.tasks.items():
            yield f"tasks.{name}", part.task or name, part.data or self.data, part.options

    def external_fingerprints(self) -> dict[str, str]:
        """Of the data, only what the task reads of it: another task's files in the same archive may change."""
        prints = [
            (field, task, options, None if path is None else data_fingerprint(path, task_options(task, options), SPLITS))
            for field, task, path, options in self._read()
        ]
        if self.tasks:  # counts with all it holds, as a field that names paths does
            return {"tasks": fingerprints.combine([("", canonical_json(prints))])}
        return {field: found for field, _, _, found in prints if found is not None}

    def missing(self) -> str:
        """Which of the task's files is not there, as a clause; empty where all are."""
        for _, task, path, options in self._read():
            if path is not None and (told := absent(path, task_options(task, options), SPLITS)):
                return told
        return ""
