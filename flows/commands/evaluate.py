"""`cloze evaluate`: a fine-tuned checkpoint and labelled data in, metrics and predictions out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from flows.commands.spelling import GroupedOption
from flows.commands.stage_command import Given, StageCommand, run_stage

if TYPE_CHECKING:
    from pipeline.core.execute import Result


@click.command(
    cls=StageCommand,
    stage="evaluate",
    inputs={
        "checkpoint": ("--checkpoint", "A finetune artifact or its checkpoint."),
        "corpus": ("--corpus", "A corpus artifact, for tasks made from one."),
    },
    transient=True,
)
@click.option(
    "--predictions",
    cls=GroupedOption,
    metavar="FILE",
    help="Also write the predictions, in the task's official format, to this file.",
)
def evaluate(given: Given, predictions: str | None) -> None:
    """Evaluate a fine-tuned checkpoint: metrics and a prediction file."""

    def copy(result: Result) -> dict[str, Any]:
        from pipeline.core import storage

        if predictions is None:
            return {}
        made = storage.join(result.artifact, str(result.manifest.summary["predictions"]))
        with storage.open_input(made) as handle:
            storage.write_bytes(predictions, handle.read())
        return {"predictions": predictions}

    run_stage(given, copy)
