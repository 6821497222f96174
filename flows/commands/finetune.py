"""`cloze finetune`: a pretrained encoder and a task in, a fine-tuned checkpoint and its scores out."""

from __future__ import annotations

import click

from flows.commands.stage_command import Given, StageCommand, run_stage


@click.command(
    cls=StageCommand,
    stage="finetune",
    inputs={
        "checkpoint": (
            "--checkpoint",
            "A pretrain artifact, a checkpoint directory, or another fine-tuning, whose head stays behind.",
        ),
        "corpus": ("--corpus", "A corpus artifact, for tasks made from one."),
        "vocab": ("--tokenizer", "The tokenizer of a model that starts from random weights."),
    },
)
def finetune(given: Given) -> None:
    """Fine-tune a pretrained encoder on a task."""
    run_stage(given)
