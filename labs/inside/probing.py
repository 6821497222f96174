"""Commands that measure the layers of a frozen encoder: `probe` and `layers`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import click

from cloze.flows.commands.base.options import GroupedOption
from cloze.flows.commands.base.stage_command import StageArguments, StageCommand, run_stage

if TYPE_CHECKING:
    from cloze.core.stages.execute import BuildResult

LAYER_PLOT = "cloze.labs.inside.layer_plots:draw"
svg_option = click.option(
    "--svg", cls=GroupedOption, metavar="FILE", help="Also draw the results to this SVG file."
)


@click.command("probe", cls=StageCommand, stage="probe", positional=("checkpoint",), transient=True)
@svg_option
def probe(arguments: StageArguments, svg: str | None) -> None:
    """Score probes of each layer of a frozen checkpoint.

    A probe is a small classifier of a layer's states; layer 0 is the embeddings. CHECKPOINT is a
    checkpoint, or an artifact that contains one.
    """
    run_and_draw(arguments, svg, LAYER_PLOT, _print_layers)


@click.command(
    "layers",
    cls=StageCommand,
    stage="layers",
    positional=("checkpoint", "texts"),
    inputs={"other": ("--other", "Checkpoint with the same tokenizer, to compare layers with.")},
    transient=True,
)
@svg_option
def layers(arguments: StageArguments, svg: str | None) -> None:
    """Measure how layers change states, and their similarity.

    CHECKPOINT is a checkpoint, or an artifact that contains one; TEXTS a file with a text per line.
    """
    run_and_draw(arguments, svg, LAYER_PLOT, _print_layers)


def run_and_draw(
    arguments: StageArguments,
    svg: str | None,
    draw: str,
    print_summary: Callable[[Mapping[str, Any]], None],
) -> None:
    """Build the artifact, draw its summary, and print it unless the output is JSON.

    Args:
        svg: file to draw to; None: draw nothing.
        draw: name of the function that draws a summary as SVG.
    """

    def show(result: BuildResult) -> dict[str, Any]:
        from cloze.core import storage

        summary = result.manifest.summary
        if svg is not None:
            storage.write_bytes(svg, resolve_name(draw)(summary).encode())
        if not arguments.as_json:
            print_summary(summary)
        return {} if svg is None else {"svg": svg}

    run_stage(arguments, show)


def _print_layers(summary: Mapping[str, Any]) -> None:
    """Print a row per layer."""
    from cloze.flows.views import terminal

    rows = summary["layers"]
    columns = ["layer", *(name for name in rows[0] if name != "layer")]
    table = terminal.table_of([name.replace("_", " ") for name in columns])
    for row in rows:
        table.add_row(str(row["layer"]), *(f"{row[name]:.3f}" for name in columns[1:]))
    terminal.output().print(table)
