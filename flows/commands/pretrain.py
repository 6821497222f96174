"""`cloze pretrain`: a dataset in, a trained encoder out."""

from __future__ import annotations

import click

from flows.commands.spelling import Spelled, comma_separated, weights
from flows.commands.stage_command import Given, StageCommand, run_stage


@click.command(
    cls=StageCommand,
    stage="pretrain",
    inputs={
        "dataset": ("--dataset", "A dataset artifact; several, as in --dataset wiki=A --dataset books=B, are mixed."),
        "checkpoint": ("--checkpoint", "Begin with these weights: an imported or pretrained checkpoint."),
        "continue": (
            "--continue",
            "Go on as a new phase: a pretrain artifact, or a checkpoint in one, with its optimizer and step numbers.",
        ),
        "teacher": ("--teacher", "What a distilbert learns from: a checkpoint or a Hugging Face directory."),
    },
    spelled={
        "model": Spelled("--model", str, {"metavar": "PRESET"}),
        "mixture": Spelled("--mixture", weights, {"metavar": "NAME=WEIGHT,…"}),
        "objectives": Spelled("--objective", comma_separated, {"metavar": "NAME,…", "multiple": False}),
    },
)
def pretrain(given: Given) -> None:
    """Pretrain an encoder; goes on from the newest checkpoint in --out, if there is one."""
    run_stage(given)
