"""A dataset's row on the terminal: masks highlighted, the label named, the segments apart.

Enters the summary of the stage inspect: a `pipeline.dataset.row_view.RowView` as JSON, and the `texts` of its pieces.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

Row = Mapping[str, Any]
MASKED, RANDOM, KEPT = "masked", "random", "kept"  # the kinds of predictions

STYLES = {MASKED: "bold black on yellow", RANDOM: "bold white on red", KEPT: "bold black on green"}
MARKS = "Ġ▁"  # of a space in a piece's name
MEANINGS = {MASKED: "the model sees [MASK]", RANDOM: "it sees the piece after the arrow", KEPT: "it sees the piece itself"}


def render(view: Row) -> RenderableType:
    """The row's facts, its text by segment or packed sequence, and what the colours mean."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold cyan", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, value in _facts(view):
        facts.add_row(name, value)
    return Group(facts, Text(), *_segments(view), Text(), _legend(view))


def _facts(view: Row) -> list[tuple[str, str]]:
    special = len(view["special"])
    facts = [
        ("row", f"{view['row']:,} of {view['rows']:,}, {view['split']}, recipe {view['recipe']}"),
        ("file", view["file"]),
        ("source", f"document {int(view['document']):#018x}, from its sentence {view['offset']}"),
        ("length", f"{view['lengths']['row']} tokens: A {view['lengths']['A']}, B {view['lengths']['B']}, special {special}"),
        ("mask", f"copy {view['copy']} of {view['copies']}: {len(view['predictions'])} predictions, {_share(view)}"),
    ]
    if view["pair_task"] is not None:
        facts.insert(2, (view["pair_task"].upper(), view["pair_label"] or "no label"))
    if view["boundaries"] is not None:
        facts.append(
            ("packed", f"sequences: {len(view['boundaries'])}, which begin at {', '.join(map(str, view['boundaries']))}")
        )
    return facts


def _share(view: Row) -> str:
    return f"{len(view['predictions']) / max(1, view['lengths']['row']):.1%} of the tokens"


def _segments(view: Row) -> list[RenderableType]:
    """One paragraph a segment, or a packed sequence."""
    length = len(view["pieces"])
    if view["boundaries"] is not None:
        begins = [(at, f"sequence {number + 1}") for number, at in enumerate(view["boundaries"])]
    elif view["segment_start"] < length:
        begins = [(0, "segment A"), (view["segment_start"], "segment B")]
    else:
        begins = [(0, "segment A")]
    ends = [at for at, _ in begins[1:]] + [length]
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold cyan", no_wrap=True)
    grid.add_column(overflow="fold")
    for (begin, name), end in zip(begins, ends, strict=True):
        grid.add_row(name, _text(view, begin, end))
    return [grid]


def _text(view: Row, begin: int, end: int) -> Text:
    predicted = {found["position"]: found for found in view["predictions"]}
    special, text = set(view["special"]), Text()
    for at in range(begin, end):
        words = view["texts"][at]
        found = predicted.get(at)
        if at in special:
            text.append(f"{'' if at == begin else ' '}{words.strip()} ", style="dim magenta")
        elif found is None:
            text.append(words)
        else:
            text.append(words[: len(words) - len(words.lstrip())])
            arrow = f"→{found['shown'].lstrip(MARKS) or found['shown']}" if found["kind"] == RANDOM else ""
            text.append(f"{words.lstrip()}{arrow}", style=STYLES[found["kind"]])
    return text


def _legend(view: Row) -> Text:
    text = Text()
    for kind, style in STYLES.items():
        count = sum(found["kind"] == kind for found in view["predictions"])
        text.append(f" {kind} ", style=style)
        text.append(f" {count}, {MEANINGS[kind]}   ", style="dim")
    return text
