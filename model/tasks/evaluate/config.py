"""Config of the stage evaluate: fine-tuned checkpoint + a set in its task's format -> metrics and predictions."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipeline.core.config import InputPath, StageConfig

VERSION = 2


class EvaluateConfig(StageConfig):
    """What is evaluated. The task, its labels and its lengths are those that the checkpoint was fine-tuned with."""

    data: InputPath | None = None
    """Directory of the task's files; none where the task reads a corpus."""

    split: Literal["train", "dev", "test"] = "dev"
    """Which split; one without labels is only predicted."""

    resamples: int = Field(default=1000, ge=1)
    """Resamples of the bootstrap interval."""

    seed: int = Field(default=1, ge=0, lt=1 << 63)
    """Of the bootstrap."""

    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Of matrix products; bf16 is autocast over fp32 weights, auto takes it where the hardware multiplies it natively."""
