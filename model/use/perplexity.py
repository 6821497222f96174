"""Stage perplexity: a pretrained checkpoint and a dataset in; the loss on the dataset's held-out rows out.

Training measures it, too, but on fewer rows the more often it looks; here every checkpoint is scored on the same ones, with mask copy 0.
Models of different vocabularies predict different pieces, so their figures cannot be compared.

The command line imports this module at every start; torch comes in when the stage runs.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipeline.core.config import StageConfig
from pipeline.core.humanize import short
from pipeline.core.stage import Build, Input, Outcome, Stage

VERSION = 1


class PerplexityConfig(StageConfig):
    """What is scored."""

    rows: int = Field(default=2048, ge=1)
    """The most held-out rows; the first ones, which are a fair sample."""

    batch_size: int = Field(default=32, ge=1)
    """Rows at once."""

    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Of matrix products; bf16 is autocast over fp32 weights, auto takes it where the hardware multiplies it natively."""


def run(config: PerplexityConfig, build: Build) -> Outcome:
    """Score; see `model.use.held_out.run`."""
    from model.use import held_out

    return held_out.run(build, rows=config.rows, batch_size=config.batch_size, precision=config.precision)


STAGE = Stage(
    name="perplexity",
    version=VERSION,
    config=PerplexityConfig,
    run=run,
    inputs={
        "checkpoint": Input(kinds=("pretrain",), also=("merge",), required=True),
        "dataset": Input(kinds=("dataset",), required=True),
    },
    worker="model",
    headline=lambda summary: ", ".join(f"{name} {short(value)}" for name, value in summary["metrics"].items()),
)
