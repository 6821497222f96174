"""`cloze import`: a Hugging Face directory in, a checkpoint out."""

from __future__ import annotations

import click

from flows.commands.spelling import Spelled
from flows.commands.stage_command import Given, StageCommand, run_stage


@click.command(
    "import",
    cls=StageCommand,
    stage="import",
    inputs={"directory": None},
    spelled={"family": Spelled("--as", settings={"metavar": "FAMILY"})},
)
@click.argument("directory")
def import_(given: Given, directory: str) -> None:
    """Make a checkpoint of the Hugging Face DIRECTORY, to pretrain further, fine-tune or distill."""
    given.inputs["directory"] = directory
    run_stage(given)
