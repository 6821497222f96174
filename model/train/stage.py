"""The stage pretrain: a dataset in, and perhaps a checkpoint to go on from; a trained encoder out. Heavy imports wait until it runs."""

from __future__ import annotations

from model.train.config import VERSION, PretrainConfig
from pipeline.core.stage import Build, Outcome, Stage


def run(config: PretrainConfig, build: Build) -> Outcome:
    """Train on this rank; see `model.train.loop.run`."""
    from model.train import loop

    return loop.run(config, build)


STAGE = Stage(
    name="pretrain",
    version=VERSION,
    config=PretrainConfig,
    run=run,
    inputs=("dataset",),
    optional_inputs=("checkpoint", "teacher"),
    volatile=("metrics.jsonl", "skipped.jsonl"),
)
