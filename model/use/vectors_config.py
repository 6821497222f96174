"""The options of stage vectors. No torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipeline.core.config import StageConfig


class VectorsConfig(StageConfig):
    """What a document's vector is."""

    pooling: Literal["mean", "first", "pooler"] | None = None
    """Mean of the last states, the first one, or the pooler's output; by default the checkpoint's own, else mean."""

    max_length: int | None = Field(default=None, ge=3)
    """The most pieces of a window, special tokens included; by default as the checkpoint was tuned, else what the model reads."""

    windows: int = Field(default=4, ge=1)
    """The most windows of a document; what comes after them is not looked at."""

    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Of matrix products; bf16 is autocast over fp32 weights, auto takes it where the hardware multiplies it natively."""
