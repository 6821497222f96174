"""Config of the stage finetune: pretrained checkpoint + labelled set -> fine-tuned checkpoint, metrics, predictions.

Imported by the command line at every start, so it knows only pydantic and the table of tasks.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from model.tasks.table import TASKS
from pipeline.core.config import InputPath, StageConfig
from pipeline.core.errors import did_you_mean

VERSION = 3
SMALL, SMALL_RATE, USUAL_RATE = 512, 3e-4, 5e-5


class FinetuneConfig(StageConfig):
    """What is fine-tuned on, for how long, and how hard.

    The defaults are those of BERT (Devlin et al. 2019, appendix A.3: batch 16 or 32, 2e-5 to 5e-5, 2 to 4 epochs;
    `run_classifier.py`: warm-up over a tenth of the steps, weight decay 0.01, clipping at 1.0). The learning rate
    of small models is higher: google-research/bert tuned its miniatures (Turc et al. 2019) over 3e-5 to 3e-4.
    """

    task: str = "sst2"
    """A row of the table of tasks, such as sst2 or package."""

    data: InputPath | None = None
    """Directory of the task's files; none where the task reads a corpus."""

    epochs: int = Field(default=3, ge=1)
    """How often training goes over the train split."""

    batch_size: int = Field(default=32, ge=1)
    """Samples a step, over all processes and micro-batches."""

    learning_rate: float | None = Field(default=None, gt=0)
    """The peak; by default 3e-4 for hidden sizes below 512, else 5e-5."""

    warmup: float = Field(default=0.1, ge=0, lt=1)
    """Share of the steps over which the learning rate rises; afterwards it falls to 0 in a straight line."""

    weight_decay: float = Field(default=0.01, ge=0)
    """Decoupled, on matrices alone: not on biases and norms."""

    clip: float = Field(default=1.0, gt=0)
    """The gradient's greatest norm."""

    dropout: float | None = Field(default=None, ge=0, lt=1)
    """Dropout before the task's head; by default the model's hidden_dropout."""

    max_length: int = Field(default=128, ge=4)
    """The most pieces of a sequence, special tokens included."""

    limit_per_class: int | None = Field(default=None, ge=1)
    """The most training examples of a class; by default all of them."""

    seed: int = Field(default=1, ge=0, lt=1 << 63)
    """Of the head's weights, the order of the examples and dropout."""

    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Of matrix products; bf16 is autocast over fp32 weights, auto takes it where the hardware multiplies it natively."""

    baselines: bool = True
    """Also score what knows no inputs (such as the most frequent class), and the same model from random weights."""

    bilstm: bool = False
    """Put a bidirectional LSTM on a left-to-right encoder (Devlin et al. 2019, Table 5)."""

    from_scratch: bool = False
    """Begin with random weights instead of the checkpoint's."""

    model: str | None = None
    """With from_scratch and without a checkpoint: a preset's name; the tokenizer is the input vocab."""

    @field_validator("task")
    @classmethod
    def _known_task(cls, value: str) -> str:
        if value not in TASKS:
            raise ValueError(f"no such task; {did_you_mean(value, TASKS)}")
        return value

    @model_validator(mode="after")
    def _model_only_from_scratch(self) -> FinetuneConfig:
        if self.model is not None and not self.from_scratch:
            raise ValueError(
                f"model ({self.model!r}) is only read with from_scratch: true; the checkpoint says which model it is"
            )
        return self

    def peak_learning_rate(self, hidden_size: int) -> float:
        """`learning_rate`, or what suits a model of that width."""
        return self.learning_rate or (SMALL_RATE if hidden_size < SMALL else USUAL_RATE)
