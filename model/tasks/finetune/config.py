"""Config of the stage finetune; it imports only pydantic and the task table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, model_validator

from cloze.core.artifacts import fingerprints
from cloze.core.artifacts.artifact import canonical_json
from cloze.core.config import InputPath, StageConfig, within
from cloze.core.errors import UsageError
from cloze.core.options import known
from cloze.model.objectives.distill_options import DistillOptions
from cloze.model.tasks.files import data_fingerprint, missing_split
from cloze.model.tasks.options import MULTITASK, FrozenLayers, SubTask, TaskOptions
from cloze.model.tasks.table import KINDS, TASKS, TaskName, task_options
from cloze.model.train.optimizers import OptimizerName
from cloze.model.train.spec.schedules import SCHEDULES

SMALL, SMALL_RATE, USUAL_RATE, FROZEN_RATE = 512, 3e-4, 5e-5, 1e-3
SPLITS = ("train", "dev")


ASSUMED = " (task {} is the default; name yours with --task)"


class FinetuneConfig(StageConfig):
    """Options of finetune.

    Defaults are those of BERT (Devlin et al. 2019, appendix A.3: batch 16 or 32, 2e-5 to 5e-5, 2 to
    4 epochs; `run_classifier.py`: warm-up over a tenth of the steps, weight decay 0.01, clipping at
    1.0). Small models have a higher learning rate: google-research/bert tuned its miniatures (Turc
    et al. 2019) over 3e-5 to 3e-4.
    """

    task: TaskName = "sst2"
    """Task, such as sst2 or squad; `cloze help tasks` lists them."""

    data: InputPath | None = None
    """Directory with the task's files, or its parent. Not needed for tasks built from a corpus."""

    options: dict[str, Any] = Field(default_factory=dict)
    """Task options that differ from the registered ones, such as the columns and files of your own
    data."""

    tasks: dict[str, SubTask] = Field(default_factory=dict)
    """With task multitask: tasks that share the encoder, by name, such as {mrpc: {}, rte: {data:
    DIR}}. Each has its own head."""

    task_sampling_power: float = Field(default=1.0, ge=0, le=1)
    """With task multitask: exponent of the task size in sampling. 1: by size; 0: uniform."""

    auxiliary: dict[Literal["mlm", "lm"], Annotated[float, Field(gt=0)]] = Field(
        default_factory=dict
    )
    """Language modelling on the task's texts, by the checkpoint's pretraining head, with the weight
    of its loss: {mlm: 0.1}, or {lm: 0.5} for left-to-right models (GPT)."""

    distill: DistillOptions | None = None
    """With --teacher: weights of the losses, such as {labels: 0.5, soft: 0.5, hidden: 1,
    temperature: 2}, which are the defaults but hidden: 0."""

    epochs: int = Field(default=3, ge=1)
    """Passes over the train split."""

    global_batch: int = Field(default=32, ge=1)
    """Examples per optimizer step, over all processes."""

    learning_rate: float | None = Field(default=None, gt=0)
    """Peak learning rate. Default: 5e-5; 3e-4 for hidden sizes below 512; 1e-3 with --frozen."""

    optimizer: OptimizerName = "adamw"
    """Optimizer of all weights."""

    layer_decay: float = Field(default=1.0, gt=0, le=1)
    """Learning-rate multiplier from each layer to the one below; the head has the full rate."""

    embedding_lr_multiplier: float = Field(default=1.0, gt=0)
    """Learning-rate multiplier of the embeddings."""

    unfreeze_layers: int | None = Field(default=None, ge=1)
    """Gradual unfreezing: the first epoch trains the head, each later one this many layers more,
    from the top (ULMFiT: 1). Default: all layers from the start."""

    warmup_share: float = Field(default=0.1, ge=0, lt=1)
    """Share of the steps with linear warmup; the schedule's decay follows."""

    schedule: Annotated[str, known(SCHEDULES, "there is no such schedule")] = "linear"
    """Decay of the learning rate after warmup."""

    decay_share: float = Field(default=0.2, gt=0, le=1)
    """Share of the steps used by the final decay of wsd."""

    weight_decay: float = Field(default=0.01, ge=0)
    """Decoupled weight decay of weight matrices; biases and norms have none."""

    grad_clip: float = Field(default=1.0, ge=0)
    """Maximum gradient norm; 0 disables clipping."""

    dropout: float | None = Field(default=None, ge=0, lt=1)
    """Dropout before the task's head. Default: the model's hidden_dropout."""

    max_length: int | None = Field(default=None, ge=4)
    """Maximum tokens per sequence, special tokens included. Default: by task, at most what the
    model supports."""

    limit_per_class: int | None = Field(default=None, ge=1)
    """Maximum number of training examples per class. Default: all."""

    class_weights: Literal["none", "balanced"] = "none"
    """balanced: weight the loss so that all classes count equally."""

    seed: int = Field(default=1, ge=0, lt=1 << 63)
    """Seed of the head's weights, the order of examples and dropout."""

    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Precision of matrix products, over fp32 weights. auto: bf16 if the hardware has it."""

    baselines: bool = True
    """Also score trivial baselines and the same model from random weights."""

    patience: int | None = Field(default=None, ge=1)
    """Stop early after this many dev evaluations, one per epoch, without improvement."""

    select_checkpoint: Literal["last", "best"] | None = None
    """Weights to save: last step, or best on dev. Default: best with --patience, else last."""

    frozen: FrozenLayers | None = None
    """Freeze the encoder and train a BiLSTM and the head on these hidden states (BERT, table 7)."""

    lstm_size: int = Field(default=768, ge=1)
    """With --frozen: width of the BiLSTM per direction."""

    lstm_layers: int = Field(default=2, ge=1)
    """With --frozen: number of BiLSTM layers."""

    pooling: Literal["cls", "mean"] | None = None
    """Vector of a text, for families that leave it open (modern): first token or mean. Default: the
    checkpoint's."""

    bilstm: bool = False
    """Add a BiLSTM on top of a left-to-right encoder (BERT, table 5)."""

    keep_zeros: bool = False
    """Keep zero the weights of layers that are zero, as `cloze prune --sparsity` leaves them."""

    from_scratch: bool = False
    """Start from random weights instead of the checkpoint's."""

    model: str | None = None
    """Model preset, with --from-scratch and without --checkpoint; needs --tokenizer."""

    @model_validator(mode="after")
    def _known_options(self, info: ValidationInfo) -> FinetuneConfig:
        try:
            task_options(self.task, self.options, within(info, "options"))
            for name, subtask in self.tasks.items():
                where = within(info, f"tasks.{name}.options")
                task_options(subtask.task or name, subtask.options, where)
        except UsageError as error:
            raise ValueError(str(error)) from error
        return self

    @model_validator(mode="after")
    def _check_multitask(self) -> FinetuneConfig:
        if self.tasks and self.task != MULTITASK:
            raise ValueError(f"tasks names several, task is {self.task}; use task: {MULTITASK}")
        if self.task == MULTITASK and not self.tasks:
            raise ValueError(
                f"task {MULTITASK} needs tasks (found none); name them: --set 'tasks={{mrpc: {{}}, "
                f"rte: {{}}}}'"
            )
        if self.tasks and self.frozen is not None:
            raise ValueError(
                f"frozen ({self.frozen}) is for one task; leave it out, or fine-tune each alone"
            )
        tasks = {name: subtask.task or name for name, subtask in self.tasks.items()}
        invalid = [
            name
            for name, task in tasks.items()
            if not name.isidentifier() or (task in TASKS and not KINDS[TASKS[task].kind].combines)
        ]
        if invalid:
            raise ValueError(
                f"tasks.{invalid[0]} cannot be one of several; use a word as its name, and a task "
                f"that is read from data"
            )
        return self

    @model_validator(mode="after")
    def _classes_of_tasks(self) -> FinetuneConfig:
        weights = self.class_weights.replace("none", "")
        given = {"limit_per_class": self.limit_per_class, "class_weights": weights}
        for field, value in given.items():
            for _, task, _, _ in self._read() if value else ():
                if task in TASKS and not KINDS[TASKS[task].kind].classes:
                    raise ValueError(
                        f"{field} ({value}) means nothing to task {task}, whose examples have not "
                        f"one class each; leave it out"
                    )
        return self

    @model_validator(mode="after")
    def _check_training(self) -> FinetuneConfig:
        if SCHEDULES[self.schedule].needs_warmup and not self.warmup_share:
            raise ValueError(
                f"schedule {self.schedule} begins to fall where the warm-up ends, and there is "
                f"none; set warmup_share above 0"
            )
        if self.unfreeze_layers and self.frozen is not None:
            raise ValueError(
                f"unfreeze_layers ({self.unfreeze_layers}) is not for a frozen encoder; leave out "
                f"one of them"
            )
        if len(self.auxiliary) > 1 or (self.auxiliary and self.frozen is not None):
            raise ValueError(
                f"auxiliary ({self.auxiliary}) takes one objective, and an encoder that is not "
                f"frozen; leave out the other"
            )
        return self

    @model_validator(mode="after")
    def _model_only_from_scratch(self) -> FinetuneConfig:
        if self.model is not None and not self.from_scratch:
            raise ValueError(
                f"model ({self.model!r}) is only read with from_scratch: true; the checkpoint says "
                f"which model it is"
            )
        return self

    def peak_learning_rate(self, hidden_size: int) -> float:
        """Return `learning_rate`, or the default for the model's width or a frozen encoder."""
        usual = SMALL_RATE if hidden_size < SMALL else USUAL_RATE
        return self.learning_rate or (usual if self.frozen is None else FROZEN_RATE)

    @property
    def selects_best(self) -> bool:
        """True if the best step's weights are saved."""
        return self.select_checkpoint == "best" or (
            self.select_checkpoint is None and self.patience is not None
        )

    @property
    def some_data(self) -> str | None:
        """`data`, or the first data path among several tasks."""
        return self.data or next((subtask.data for subtask in self.tasks.values()), None)

    def given_options(self) -> dict[str, Any]:
        """Return `options`, with `tasks` if there are several."""
        tasks = {"tasks": self.model_dump(mode="json")["tasks"]} if self.tasks else {}
        return {**self.options, **tasks}

    def reads(self) -> Iterator[tuple[str, TaskOptions, str | None]]:
        """Iterate over name, options and data path of each task."""
        for _, task, path, options in self._read():
            yield task, task_options(task, options), path

    def _read(self) -> Iterator[tuple[str, str, str | None, dict[str, Any]]]:
        """Iterate over field, task, path and options of each task."""
        if not self.tasks:
            yield "data", self.task, self.data, self.options
        for name, subtask in self.tasks.items():
            yield f"tasks.{name}", subtask.task or name, subtask.data or self.data, subtask.options

    def external_fingerprints(self) -> dict[str, str]:
        """Return the fingerprint of the files that the task reads; others are ignored.

        Raises:
            DataError: files are missing, or one is two splits.
        """
        hashes = {
            field: data_fingerprint(path, task_options(task, options), SPLITS)
            for field, task, path, options in self._read()
            if path is not None
        }
        if not self.tasks:
            return hashes
        records: list[object] = [
            (field, task, options, hashes.get(field)) for field, task, _, options in self._read()
        ]
        records += [
            (name, task.weight) for name, task in self.tasks.items() if task.weight != 1
        ]  # only these, so that a new field changes no fingerprint
        return {"tasks": fingerprints.combine_hashes([("", canonical_json(records))])}

    def check_data(self) -> None:
        """Check the columns of the tasks' tables; see `check_columns`."""
        from cloze.model.tasks.formats.first_rows import check_columns

        for _, task, path, options in self._read():
            if path is not None:
                hint = "" if self.tasks or "task" in self.model_fields_set else ASSUMED
                check_columns(path, task_options(task, options), SPLITS, hint.format(task))

    def missing(self) -> str:
        """Return a clause about missing files of the task; empty if all exist."""
        problems = (
            missing_split(path, options, SPLITS) for _, options, path in self.reads() if path
        )
        return next(filter(None, problems), "")
