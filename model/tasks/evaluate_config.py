"""Config of the stage evaluate: fine-tuned checkpoint + a set in its task's format -> metrics and predictions."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipeline.core.config import InputPath, StageConfig

VERSION = 1


class EvaluateConfig(StageConfig):
    """What is evaluated. The task, its labels and its lengths are those that the checkpoint was fine-tuned with."""

    data: InputPath | None = None  # directory of the task's files; None where the task reads the corpus
    split: Literal["train", "dev", "test"] = "dev"
    resamples: int = Field(default=1000, ge=1)  # of the bootstrap interval
    seed: int = Field(default=1, ge=0, lt=1 << 63)  # of the bootstrap
    precision: Literal["auto", "fp32", "bf16"] = "auto"
