"""Commands that measure the layers of a frozen encoder: `probe` and `layers`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from cloze.flows.commands.base.options import GroupedOption
from cloze.flows.commands.base.stage_command import StageArguments, StageCommand, run_stage

if TYPE_CHECKING:
    from cloze.core.stages.execute import BuildResult

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
    _run(arguments, svg)


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
    _run(arguments, svg)


def _run(arguments: StageArguments, svg: str | None) -> None:
    """Build the artifact, draw its summary, and print a row per layer."""

    def show(result: BuildResult) -> dict[str, Any]:
        from rich.console import Console

        from cloze.core import storage
        from cloze.flows.report.layer_plots import draw
        from cloze.flows.views import terminal

        rows = result.manifest.summary["layers"]
        if svg is not None:
            storage.write_bytes(svg, draw(result.manifest.summary).encode())
        if not arguments.as_json:
            columns = ["layer", *(name for name in rows[0] if name != "layer")]
            table = terminal.table_of([name.replace("_", " ") for name in columns])
            for row in rows:
                table.add_row(str(row["layer"]), *(f"{row[name]:.3f}" for name in columns[1:]))
            Console(highlight=False).print(table)
        return {} if svg is None else {"svg": svg}

    run_stage(arguments, show)
