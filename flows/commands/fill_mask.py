"""The command `fill-mask`."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cloze.flows.commands.base.inference_command import Answer, InferenceCommand


def _show_candidates(answer: Answer) -> RenderableType:
    """Return a table per [MASK]: probability, token, and the filled text."""
    tables = []
    for candidates in answer["predictions"]:
        table = Table(box=None, show_header=False, pad_edge=False)
        for candidate in candidates:
            table.add_row(
                f"{candidate['score']:.3f}",
                Text(candidate["token"], style="bold"),
                Text(candidate["sequence"]),
            )
        tables.append(table)
    return Group(*tables)


FILL_MASK = InferenceCommand(
    "fill-mask",
    help="Predict the [MASK] tokens of a text.",
    text="Text with at least one [MASK].",
    show=_show_candidates,
    gather=lambda answers: {
        "predictions": [mask for answer in answers for mask in answer["predictions"]]
    },
)
