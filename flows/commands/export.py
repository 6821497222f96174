"""`cloze export`: a checkpoint in, a Hugging Face directory out."""

from __future__ import annotations

import click

from flows.commands.stage_command import Given, StageCommand, run_stage


@click.command(cls=StageCommand, stage="export", inputs={"checkpoint": None}, out="--to")
@click.argument("checkpoint")
def export(given: Given, checkpoint: str) -> None:
    """Export CHECKPOINT as a Hugging Face directory, and check that nothing changed on the way."""
    given.inputs["checkpoint"] = checkpoint
    run_stage(given)
