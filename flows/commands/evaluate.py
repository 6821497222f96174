"""`cloze evaluate`: a fine-tuned checkpoint and labelled data in, metrics and predictions out."""

from __future__ import annotations

import click

from flows.commands.stage_command import Given, StageCommand, run_stage


@click.command(
    cls=StageCommand,
    stage="evaluate",
    inputs={
        "checkpoint": ("--checkpoint", "A finetune artifact or its checkpoint."),
        "corpus": ("--corpus", "A corpus artifact, for tasks made from one."),
    },
)
def evaluate(given: Given) -> None:
    """Evaluate a fine-tuned checkpoint: metrics and a prediction file."""
    run_stage(given)
