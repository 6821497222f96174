"""Config of the stage finetune: pretrained checkpoint + labelled set -> fine-tuned checkpoint, metrics, predictions.

Imported by the command line at every start, so it knows only pydantic and the table of tasks.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from model.tasks.table import TASKS
from pipeline.core.config import InputPath, StageConfig
from pipeline.core.errors import did_you_mean

VERSION = 2


class FinetuneConfig(StageConfig):
    """What is fine-tuned on, and with which budget.

    The defaults are those of BERT (Devlin et al. 2019, appendix A.3: batch 16 or 32, 2e-5 to 5e-5, 2 to 4 epochs;
    `run_classifier.py`: warm-up over a tenth of the steps, weight decay 0.01, clipping at 1.0). The learning rate
    of small models is higher: google-research/bert tuned its miniatures (Turc et al. 2019) over 3e-5 to 3e-4.
    """

    task: str = "sst2"  # a row of model.tasks.table.TASKS
    data: InputPath | None = None  # directory of the task's files; None where the task reads the corpus
    epochs: int = Field(default=3, ge=1)
    batch_size: int = Field(default=32, ge=1)
    learning_rate: float | None = Field(default=None, gt=0)  # None: 3e-4 for hidden sizes below 512, else 5e-5
    warmup: float = Field(default=0.1, ge=0, lt=1)  # share of the steps
    weight_decay: float = Field(default=0.01, ge=0)
    clip: float = Field(default=1.0, gt=0)  # the gradient's greatest norm
    dropout: float | None = Field(default=None, ge=0, lt=1)  # before the classifier; None: the model's hidden_dropout
    max_length: int = Field(default=128, ge=4)  # pieces, special tokens included
    limit_per_class: int | None = Field(default=None, ge=1)  # the most examples of a class; None: all of them
    seed: int = Field(default=1, ge=0, lt=1 << 63)
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    baselines: bool = True  # also score the majority class, and the same model from random weights
    bilstm: bool = False  # a bidirectional LSTM on a left-to-right encoder (Devlin et al. 2019, Table 5)
    from_scratch: bool = False  # random weights instead of the checkpoint's
    model: str | None = None  # with from_scratch and no checkpoint: a preset's name; the tokenizer is the input vocab

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
