"""Commands that measure the states of a frozen encoder: `probe` and `layers`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cloze.flows.commands.base.stage_command import StageArguments, StageCommand, run_stage

if TYPE_CHECKING:
    pass


@click.command(
    cls=StageCommand, name="probe", stage="probe", positional=("checkpoint",), transient=True
)
def probe(arguments: StageArguments) -> None:
    """Score probes of each layer of a frozen checkpoint.

    A probe is a small classifier of one layer's states. CHECKPOINT is a pretrained or fine-tuned
    checkpoint, or an artifact that contains one.
    """
    run_stage(arguments)
