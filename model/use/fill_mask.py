"""Stage fill-mask: a checkpoint and texts in; for each [MASK] the likeliest pieces out. It writes no files.

The command line imports this module at every start; torch comes in when the stage runs.
"""

from __future__ import annotations

from pydantic import Field

from pipeline.core.config import StageConfig
from pipeline.core.stage import Build, Input, Outcome, Stage

VERSION = 1


class FillMaskConfig(StageConfig):
    """What is asked of the model."""

    texts: tuple[str, ...] = Field(min_length=1)
    """Texts with at least one mask each, written [MASK] or as the tokenizer calls it."""

    top_k: int = Field(default=5, ge=1)
    """How many answers to give for each mask."""


def run(config: FillMaskConfig, build: Build) -> Outcome:
    """Fill the masks; see `model.use.masks.fill`."""
    from model.use.masks import fill

    return Outcome(summary={"predictions": fill(build.inputs["checkpoint"], config.texts, config.top_k)})


STAGE = Stage(
    name="fill-mask",
    version=VERSION,
    config=FillMaskConfig,
    run=run,
    inputs={"checkpoint": Input(required=True)},
    worker="model",
)
