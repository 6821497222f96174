"""Stage finetune: a pretrained checkpoint and a task's labelled set in; a fine-tuned checkpoint and its scores out.

Files: `checkpoint/` (encoder and the task's head; config.json's `task` says what its outputs mean), `metrics.json`,
the task's predictions for the dev split, `metrics.jsonl` (the log lines, with times), `from_scratch.jsonl` (those of the baseline).
`checkpoints/` is there while it trains.

The command line imports this module at every start; torch comes in when the stage runs.
"""

from __future__ import annotations

from model.tasks.cost import FINETUNE_COSTS
from model.tasks.finetune.config import VERSION, FinetuneConfig
from pipeline.core.humanize import figures
from pipeline.core.stage import Build, Input, Outcome, Stage


def run(config: FinetuneConfig, build: Build) -> Outcome:
    """Fine-tune on this rank; see `model.tasks.finetune.run.run`."""
    from model.tasks.finetune import run as finetune

    return finetune.run(config, build)


STAGE = Stage(
    name="finetune",
    version=VERSION,
    config=FinetuneConfig,
    run=run,
    inputs={  # no checkpoint is needed with from_scratch and model
        "checkpoint": Input(kinds=("pretrain",), also=("finetune", "merge")),
        "corpus": Input(kinds=("corpus", "semdedup")),
        "vocab": Input(kinds=("vocab",)),
    },
    volatile=("metrics.jsonl", "skipped.jsonl", "from_scratch.jsonl"),
    worker="model",
    parallel=True,
    outputs=("checkpoint", "predictions"),
    headline=lambda summary: figures(summary["metrics"]),
    costs=FINETUNE_COSTS,
    compared=("metrics",),
)
