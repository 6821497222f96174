"""Command `prune`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from cloze.flows.commands.base.stage_command import StageArguments, StageCommand, run_stage

if TYPE_CHECKING:
    from cloze.core.stages.execute import BuildResult


@click.command(
    "prune",
    cls=StageCommand,
    stage="prune",
    positional=("checkpoint",),
    inputs={
        "rewind": (
            "--rewind",
            "With --sparsity: write this earlier checkpoint's weights, with the same zeros.",
        )
    },
)
def prune(arguments: StageArguments) -> None:
    """Remove layers, attention heads or weights of a checkpoint.

    The heads are those that matter least for the checkpoint's task. Prints the score by number of
    heads.
    """
    run_stage(arguments, None if arguments.as_json else _show_curve)


def _show_curve(result: BuildResult) -> dict[str, Any]:
    """Print the score by number of attention heads, if heads were removed."""
    from cloze.flows.views import terminal

    summary = result.manifest.summary
    if curve := summary.get("curve"):
        metric = next(iter(summary["metrics"]))
        table = terminal.table_of(("heads", metric), right=("heads", metric))
        for row in curve:
            table.add_row(str(row["heads"]), f"{row[metric]:.4f}")
        terminal.output().print(table)
    return {}
