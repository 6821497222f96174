"""`cloze merge`: the last checkpoints of a pretraining in, their mean out."""

from __future__ import annotations

import click

from flows.commands.stage_command import Given, StageCommand, run_stage


@click.command(cls=StageCommand, stage="merge", inputs={"checkpoint": None})
@click.argument("checkpoint")
def merge(given: Given, checkpoint: str) -> None:
    """Average the weights of the last checkpoints that the pretraining CHECKPOINT keeps."""
    given.inputs["checkpoint"] = checkpoint
    run_stage(given)
