"""The stage pretrain: a dataset in, or several, and perhaps weights to begin with (checkpoint) or a training to go on with (continue); a trained
encoder out. Heavy imports wait until it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model.train.config import VERSION, PretrainConfig
from model.train.cost import COSTS
from pipeline.core.humanize import si
from pipeline.core.stage import Build, Input, Outcome, Stage


def run(config: PretrainConfig, build: Build) -> Outcome:
    """Train on this rank; see `model.train.pretraining.run`."""
    from model.train import pretraining

    return pretraining.run(config, build)


def headline(summary: Mapping[str, Any]) -> str:
    """What it learned, and how fast."""
    return f"{_learned(summary)}; {si(summary['tokens_per_second'])} tokens/s"


def _learned(summary: Mapping[str, Any]) -> str:
    """The held-out loss beside that of a model which knows only how often each piece occurs."""
    averaged = summary.get("heldout_ema_loss")  # of the weights' average, which is the checkpoint's model where there is one
    loss, entropy = summary.get("heldout_loss") if averaged is None else averaged, summary.get("unigram_entropy")
    name = summary.get("objectives", ["mlm"])[0].upper() + (" of the average" if averaged is not None else "")
    if loss is None:
        return f"loss {summary['loss']:.3f}, nothing held out"
    if entropy is None:
        return f"held-out {name} {loss:.3f} nats"
    side = "below" if loss <= entropy else "above"
    return f"held-out {name} {loss:.3f} nats, {abs(entropy - loss):.2f} {side} the unigram entropy {entropy:.3f}"


STAGE = Stage(
    name="pretrain",
    version=VERSION,
    config=PretrainConfig,
    run=run,
    inputs={
        "dataset": Input(kinds=("dataset",), required=True, several=True),
        "checkpoint": Input(kinds=("pretrain",), also=("merge",), named=True),
        "continue": Input(kinds=("pretrain",), named=True),
        "teacher": Input(kinds=("pretrain",), named=True),
    },
    # a training state names the build and its packages, and checkpoint.json holds its hash
    volatile=(
        "metrics.jsonl",
        "skipped.jsonl",
        "pace.jsonl",
        "checkpoints/*/checkpoint.json",
        "checkpoints/*/training/state.json",
    ),
    worker="model",
    parallel=True,
    outputs=("checkpoint",),
    headline=headline,
    costs=COSTS,
    compared=("heldout_loss", "heldout_accuracy", "heldout_perplexity", "loss", "tokens_per_second"),
)
