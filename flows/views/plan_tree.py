"""What `cloze plan` shows: the graph as a tree, what would run and why, and what it will take. Fits 80 columns.

A node stands below the input that comes last; the other inputs follow from that one, or are named in its line. In a graph of many nodes
the instances of a section share a line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from flows.graph.estimate import Estimate
from flows.graph.plan import Step
from flows.views.instances import MOST_LINES
from flows.views.terminal import table_of
from pipeline.core.humanize import duration, size

ROUGH = "~"  # before what nobody has measured
MOST_NAMED = 24  # letters of further inputs that are named; of more, how many there are


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A line: a node, or the instances of a section. Attributes: inputs: the rows that it needs."""

    name: str
    steps: tuple[Step, ...]
    inputs: tuple[str, ...]


def rows(steps: Sequence[Step]) -> list[Row]:
    """The lines in the plan's order, each after those that it needs."""
    gather = len(steps) > MOST_LINES
    instances: dict[str, list[Step]] = {}
    for step in steps:
        instances.setdefault(step.node.section if gather else step.name, []).append(step)
    names = {key: _name(found) for key, found in instances.items()}
    line_of = {step.name: names[key] for key, found in instances.items() for step in found}
    found = []
    for key, members in instances.items():
        inputs = (line_of[parent] for step in members for parent in step.node.after if parent in line_of)
        found.append(Row(name=names[key], steps=tuple(members), inputs=tuple(dict.fromkeys(inputs))))
    return _ordered(found)


def _ordered(found: list[Row]) -> list[Row]:
    """Rows after those that they need: a section of many instances may begin before another ends."""
    placed: dict[str, Row] = {}
    waiting = list(found)
    while waiting:
        ready = [row for row in waiting if all(parent in placed or parent == row.name for parent in row.inputs)] or waiting[:1]
        placed |= {row.name: row for row in ready}
        waiting = [row for row in waiting if row.name not in placed]
    return list(placed.values())


def _name(members: Sequence[Step]) -> str:
    """A node's own name, or that of a section's instances: `finetune@{task}-{seed}`."""
    if len(members) == 1:
        return members[0].name
    node = members[0].node
    label = node.section.partition("@")[2]
    words = [*([label] if label else []), *(f"{{{axis}}}" for axis in node.values)]
    return f"{node.stage}@{'-'.join(words)}"


def tree(steps: Sequence[Step], estimates: Mapping[str, Estimate], width: int) -> Table:
    """The lines of all nodes as a table whose first column is the tree."""
    place = str(Path(steps[0].artifact).parent) if steps else None
    gpus = any(found.gpu_memory_bytes for found in estimates.values())
    columns = ["node", "what", "time", "disk", "memory", *(["GPU"] if gpus else [])]
    table = table_of(columns, right=columns[2:], title=place)
    for column in (table.columns[0], *table.columns[2:]):
        column.no_wrap = True
    lines = rows(steps)
    parents = {row.name: _parent(row, lines) for row in lines}
    children: dict[str | None, list[Row]] = {}
    for row in lines:
        children.setdefault(parents[row.name], []).append(row)
    above = _ancestors(lines)

    def add(row: Row, lead: str, last: bool, top: bool) -> None:
        mark = "" if top else "└ " if last else "├ "
        others = [
            name for name in row.inputs if name != parents[row.name] and name not in above.get(parents[row.name] or "", ())
        ]
        table.add_row(_branch(lead, mark, row.name, width // 2 - 4), _what(row, others), *_taken(row, estimates, gpus))
        below = children.get(row.name, [])
        deeper = lead if top else lead + ("  " if last else "│ ")
        for number, child in enumerate(below):
            add(child, deeper, number == len(below) - 1, False)

    for row in children.get(None, []):
        add(row, "", True, True)
    return table


def _branch(lead: str, mark: str, name: str, room: int) -> Text:
    """The name at its place in the tree, in several lines where it is longer than there is room."""
    room = max(8, room - len(lead) - len(mark))
    text = Text(no_wrap=True)
    for at in range(0, len(name), room):
        text.append(f"{lead}{mark}" if not at else f"\n{lead}{' ' * len(mark)}")
        text.append(name[at : at + room], style="bold")
    return text


def _parent(row: Row, lines: Sequence[Row]) -> str | None:
    order = [line.name for line in lines]
    return max((name for name in row.inputs if name != row.name), key=order.index, default=None)


def _ancestors(lines: Sequence[Row]) -> dict[str, set[str]]:
    """All that each row needs, near and far."""
    found: dict[str, set[str]] = {}
    for row in lines:
        found[row.name] = {*row.inputs, *(far for name in row.inputs for far in found.get(name, ()))}
    return found


def _what(row: Row, others: Sequence[str]) -> str:
    todo = [step for step in row.steps if not step.cached]
    if len(row.steps) == 1:
        told = f"[yellow]run:[/] {escape(todo[0].why)}" if todo else "[dim]cached[/]"
    else:
        cached, count = len(row.steps) - len(todo), f"{len(row.steps)} instances"
        told = f"{count} [dim]cached[/]"
        if todo and cached:
            told = f"{count}: {cached} cached, {len(todo)} [yellow]run:[/] {_reasons(todo)}"
        elif todo:
            told = f"{count} [yellow]run:[/] {_reasons(todo)}"
    if others:
        names = ", ".join(others)
        told += f" [dim]← {escape(names if len(names) <= MOST_NAMED else f'{len(others)} more')}[/]"
    return told


def _reasons(todo: Iterable[Step]) -> str:
    whys = list(dict.fromkeys(step.why for step in todo))
    return escape(whys[0]) + (f" and {len(whys) - 1} more reasons" if len(whys) > 1 else "")


def _taken(row: Row, estimates: Mapping[str, Estimate], gpus: bool) -> list[str]:
    found = [estimates[step.name] for step in row.steps if not step.cached]
    if not found:
        return [""] * (4 if gpus else 3)
    each = ([one.disk_bytes for one in found], [one.memory_bytes for one in found], [one.gpu_memory_bytes for one in found])
    known = [[value for value in values if value] for values in each]
    bytes_told = [size(sum(known[0])) if known[0] else "–", *(size(max(values)) if values else "–" for values in known[1:])]
    return [seconds_told(found), *bytes_told[: 3 if gpus else 2]]


def seconds_told(found: Sequence[Estimate]) -> str:
    """Their seconds together."""
    known = [one.seconds for one in found if one.seconds is not None]
    if len(known) < len(found) or not known:
        return "–"
    mark = ROUGH if any(one.basis == "rough" for one in found) else ""
    return f"{mark}{duration(sum(known))}"


def left_out_lines(left_out: Mapping[str, str]) -> list[str]:
    """A line a reason: the nodes that are left out for it, and why."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in left_out.items():
        by_reason.setdefault(reason, []).append(name)
    return [
        f"{names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: {reason}" for reason, names in by_reason.items()
    ]


def show(
    out: Console,
    steps: Sequence[Step],
    estimates: Mapping[str, Estimate],
    together: float | None,
    last: Mapping[str, Any] | None,
    left_out: Mapping[str, str] | None = None,
) -> None:
    """The tree, and below it what is left out, the sums and how far the last estimate was off.

    Args:
        left_out: nodes that are not made, and why.
        together: seconds until all is made, independent nodes beside each other.
        last: see `flows.graph.estimate.last_time`.
    """
    out.print(tree(steps, estimates, out.width))
    for line in left_out_lines(left_out or {}):
        out.print(f"[yellow]left out:[/] {escape(line)}")
    todo = [step for step in steps if not step.cached]
    for step in todo:
        if note := estimates[step.name].note:
            out.print(f"[dim]{escape(step.name)}: {escape(note)}[/]")
    out.print()
    if not todo:
        out.print("Nothing to do.")
        return
    found = [estimates[step.name] for step in todo]
    parts = [f"{len(todo)} of {len(steps)} nodes would run"]
    if together is not None:
        parts.append(f"{seconds_told(found)} of work, {duration(together)} until all is made")
    disk, memory = sum(one.disk_bytes or 0 for one in found), max((one.memory_bytes or 0 for one in found), default=0)
    parts.append(f"{size(disk)} of disk, at most {size(memory)} of memory a node")
    out.print("; ".join(parts) + ".")
    unknown = sum(one.seconds is None for one in found)
    bases = {basis: sum(one.basis == basis for one in found) for basis in ("measured", "scaled", "rough")}
    told = {
        "measured": "as measured here",
        "scaled": "scaled from measured runs",
        "rough": f"rough ({ROUGH}): nothing like it was measured yet",
    }
    parts = [f"{count} {told[basis]}" for basis, count in bases.items() if count]
    out.print(f"[dim]Times: {', '.join([*parts, *([f'{unknown} not known'] if unknown else [])])}.[/]")
    for line in off_lines(last):
        out.print(f"[dim]{line}[/]")


def off_lines(last: Mapping[str, Any] | None, when: str = "Last time") -> Iterator[str]:
    """How far estimates were off. Args: last: see `flows.graph.estimate.off_of`."""
    if last is None:
        return
    side = "longer" if last["off"] >= 0 else "shorter"
    yield f"{when}: {duration(last['expected'])} expected, {duration(last['took'])} taken: {abs(last['off']):.0%} {side}."
    for name, told in (("memory", "of memory"), ("gpu_memory", "of a GPU's memory")):
        found = last.get(name)
        if found:
            side = "more" if found["off"] >= 0 else "less"
            yield (
                f"{found['node']}: {size(found['expected'])} {told} expected, {size(found['took'])} taken:"
                f" {abs(found['off']):.0%} {side}."
            )
