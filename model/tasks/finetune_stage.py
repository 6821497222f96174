"""Stage finetune: a pretrained checkpoint and a task's labelled set in; a fine-tuned checkpoint and its scores out.

Files: `checkpoint/` (encoder, pooler and classifier; config.json's `task` says what its outputs mean), `metrics.json`,
`predictions.tsv` (the dev split), `metrics.jsonl` (the training's log lines); `checkpoints/` while it runs.

The command line imports this module at every start; torch comes in when the stage runs.
"""

from __future__ import annotations

from model.tasks.finetune_config import VERSION, FinetuneConfig
from pipeline.core.humanize import figures
from pipeline.core.stage import Build, Outcome, Stage


def run(config: FinetuneConfig, build: Build) -> Outcome:
    """Fine-tune; see `model.tasks.finetune.finetune`."""
    from model.tasks.finetune import finetune

    return finetune(config, build)


STAGE = Stage(
    name="finetune",
    version=VERSION,
    config=FinetuneConfig,
    run=run,
    optional_inputs=("pretrain", "corpus", "vocab"),  # no checkpoint is needed with from_scratch and model
    volatile=("metrics.jsonl", "skipped.jsonl"),
    worker="model",
    parallel=True,
    outputs=("checkpoint", "predictions"),
    headline=lambda summary: figures(summary["metrics"]),
)
