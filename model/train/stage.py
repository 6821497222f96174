"""The stage pretrain: a dataset in, and perhaps a checkpoint to go on from; a trained encoder out. Heavy imports wait until it runs."""

from __future__ import annotations

from model.train.config import VERSION, PretrainConfig
from pipeline.core.stage import Build, Outcome, Stage


def run(config: PretrainConfig, build: Build) -> Outcome:
    """Train on this rank; see `model.train.pretraining.run`."""
    from model.train import pretraining

    return pretraining.run(config, build)


STAGE = Stage(
    name="pretrain",
    version=VERSION,
    config=PretrainConfig,
    run=run,
    inputs=("dataset",),
    optional_inputs=("checkpoint", "teacher"),
    # a training state names the build and its packages, and checkpoint.json holds its hash
    volatile=("metrics.jsonl", "skipped.jsonl", "checkpoints/*/checkpoint.json", "checkpoints/*/training/state.json"),
)
