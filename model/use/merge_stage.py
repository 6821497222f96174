"""Stage merge: the last checkpoints of a pretraining in; one whose weights are their mean out.

Averaging the end of a training (Izmailov et al., "Averaging Weights Leads to Wider Optima and Better Generalization", 2018; mmBERT and
Llama 3 average their last checkpoints) does some of what a decay of the learning rate does, without one. It needs checkpoints that are
kept: `keep_last` and `milestone_every` of the pretraining.

The command line imports this module at every start; torch comes in when the stage runs.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from pipeline.core.config import StageConfig
from pipeline.core.stage import Build, Input, Outcome, Stage

VERSION = 1


class MergeConfig(StageConfig):
    """Which checkpoints, and how they are weighted."""

    last: int | None = Field(default=None, ge=2)
    """The newest so many; 3 where no steps are named."""

    steps: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """Those after these steps, instead of the newest."""

    decay: float = Field(default=1.0, gt=0, le=1)
    """What each one before the newest is weighted with, of the next: 1 is the plain mean, less an exponential one."""

    @model_validator(mode="after")
    def _one_way(self) -> MergeConfig:
        if self.steps and self.last is not None:
            raise ValueError("last and steps exclude each other: both say which checkpoints; give one of them")
        if len(set(self.steps)) == 1:
            raise ValueError(f"steps {list(self.steps)} is one checkpoint, whose mean is itself; name several")
        return self


def run(config: MergeConfig, build: Build) -> Outcome:
    """Merge; see `model.use.merge.run`."""
    from model.use import merge

    return merge.run(build, config.last, config.steps, config.decay)


STAGE = Stage(
    name="merge",
    version=VERSION,
    config=MergeConfig,
    run=run,
    inputs={"checkpoint": Input(kinds=("pretrain",), required=True)},
    worker="model",
    outputs=("checkpoint",),
    headline=lambda summary: f"the mean of steps {', '.join(f'{step:,}' for step in summary['merged'])}",
)
