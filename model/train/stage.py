"""The stage pretrain: from datasets, and optionally weights, to a trained encoder.

Heavy imports wait until it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cloze.core.humanize import format_count
from cloze.core.stages.stage import InputSpec, Stage, deferred
from cloze.model.train.config import VERSION, PretrainConfig
from cloze.model.train.plan.cost import COSTS
from cloze.model.train.spec.companions import companion_inputs

MOST_EPOCHS = 100  # more than twice BERT's forty


def headline(summary: Mapping[str, Any]) -> str:
    """Return held-out loss and speed, with a warning if a few rows were read many times."""
    text = f"{_learned(summary)}; {format_count(summary['tokens_per_second'])} tokens/s"
    if summary.get("epochs", 0) <= MOST_EPOCHS:
        return text
    return (
        f"{text}; warning: its {summary['rows']:,} rows were read {summary['epochs']:,.0f} times: "
        f"give the dataset more text"
    )


def _learned(summary: Mapping[str, Any]) -> str:
    """Return the held-out loss compared with the unigram entropy."""
    loss, entropy = summary.get("heldout_loss"), summary.get("unigram_entropy")
    name = summary.get("objectives", ["mlm"])[0].upper()
    if loss is None and summary["loss"] is None:
        return "the last steps were skipped, nothing held out"
    if loss is None:
        return f"loss {summary['loss']:.3f}, nothing held out"
    if entropy is None:
        return f"held-out {name} {loss:.3f} nats"
    relation = "below" if loss <= entropy else "above"
    return (
        f"held-out {name} {loss:.3f} nats, {abs(entropy - loss):.2f} {relation} the unigram "
        f"entropy {entropy:.3f}"
    )


STAGE = Stage(
    name="pretrain",
    version=VERSION,
    config=PretrainConfig,
    run=deferred("cloze.model.train.pretraining:run"),
    inputs={
        "dataset": InputSpec(kinds=("dataset",), required=True, multiple=True),
        "checkpoint": InputSpec(
            kinds=("pretrain",), explicit_kinds=("import", "merge"), explicit_only=True
        ),
        "continue": InputSpec(kinds=("pretrain",), explicit_only=True),
        "teacher": InputSpec(kinds=("pretrain",), explicit_only=True),
        **companion_inputs(),
    },
    # A training state names the build and its packages, and checkpoint.json contains its hash.
    unhashed_files=(
        "metrics.jsonl",
        "skipped.jsonl",
        "cost.jsonl",
        "checkpoints/*/checkpoint.json",
        "checkpoints/*/training/state.json",
    ),
    worker="cloze.model",
    on_gpu=True,
    parallel=True,
    outputs=("checkpoint",),
    headline=headline,
    cost_model=COSTS,
    comparison_metrics=(
        "heldout_loss",
        "heldout_accuracy",
        "heldout_perplexity",
        "loss",
        "tokens_per_second",
    ),
)
