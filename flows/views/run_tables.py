"""Tables of `cloze plan` and `cloze status`.

The plan is a tree: a node is below its last input; other inputs are its ancestors, or its line
names them. In a graph of many nodes the instances of a section share a line.
"""

from __future__ import annotations

import posixpath
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from cloze.core.humanize import (
    elapsed,
    format_bytes,
    format_count,
    format_duration,
    labelled,
    on_one_line,
)
from cloze.flows.graph.estimate import THIS_HOST, Estimate, place
from cloze.flows.graph.plan import PlannedNode
from cloze.flows.views.terminal import MAX_LINES, ellipsized, group_instances, table_of

ROUGH = "~"  # prefix of estimates without a measurement
MAX_INPUTS_WIDTH = (
    24  # maximum characters of further inputs' names; beyond that their number is shown
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A line of the plan: a node or a section's instances; `inputs` are the rows it needs."""

    name: str
    steps: tuple[PlannedNode, ...]
    inputs: tuple[str, ...]


def rows(steps: Sequence[PlannedNode]) -> list[Row]:
    """Return the plan's lines; each follows the lines that it needs."""
    by_section = len(steps) > MAX_LINES
    instances: dict[str, list[PlannedNode]] = {}
    for step in steps:
        instances.setdefault(step.node.section if by_section else step.name, []).append(step)
    row_of = {step.name: _name(members) for members in instances.values() for step in members}
    unordered = []
    for members in instances.values():
        parents = (parent for step in members for parent in step.node.depends_on)
        inputs = dict.fromkeys(row_of[parent] for parent in parents if parent in row_of)
        unordered.append(Row(name=_name(members), steps=tuple(members), inputs=tuple(inputs)))
    return _ordered(unordered)


def _ordered(waiting: list[Row]) -> list[Row]:
    """Sort rows after those that they need: instances of sections may interleave."""
    placed: dict[str, Row] = {}
    while waiting:
        ready = [row for row in waiting if {*row.inputs} <= {*placed, row.name}] or waiting[:1]
        placed |= {row.name: row for row in ready}
        waiting = [row for row in waiting if row.name not in placed]
    return list(placed.values())


def _name(members: Sequence[PlannedNode]) -> str:
    """Return a node's name, or a pattern for a section's instances: `finetune@{task}-{seed}`."""
    if len(members) == 1:
        return members[0].name
    node = members[0].node
    parts = [node.section.partition("@")[2], *(f"{{{axis}}}" for axis in node.values)]
    return f"{node.stage}@{'-'.join(filter(None, parts))}"


def tree(steps: Sequence[PlannedNode], estimates: Mapping[str, Estimate], width: int) -> Table:
    """Return the plan as a table whose first column is the tree."""
    directory = posixpath.dirname(steps[0].artifact) if steps else None
    gpus = any(estimate.gpu_memory_bytes for estimate in estimates.values())
    columns = ["node", "time", "disk", "memory", *(["GPU"] if gpus else []), "what"]
    table = table_of(columns, right=columns[1:-1], title=directory, whole=True)
    tree_rows = rows(steps)
    order = [row.name for row in tree_rows]
    ancestors: dict[str | None, set[str]] = {None: set()}  # direct and indirect inputs
    children: dict[str | None, list[Row]] = {}
    for row in tree_rows:
        ancestors[row.name] = {*row.inputs}.union(
            *(ancestors.get(parent, ()) for parent in row.inputs)
        )
        children.setdefault(_parent(row, order), []).append(row)

    def add(row: Row, lead: str, last: bool, top: bool) -> None:
        mark, parent = "" if top else "└ " if last else "├ ", _parent(row, order)
        known = {parent, *ancestors[parent]}
        table.add_row(
            _branch(lead, mark, row.name, width // 2 - 4),
            *_cost_cells(row, estimates)[: 4 if gpus else 3],
            _what(row, [name for name in row.inputs if name not in known]),
        )
        row_children = children.get(row.name, [])
        child_lead = lead if top else lead + ("  " if last else "│ ")
        for number, child in enumerate(row_children):
            add(child, child_lead, number == len(row_children) - 1, False)

    for row in children.get(None, []):
        add(row, "", True, True)
    return table


def _branch(lead: str, mark: str, name: str, room: int) -> Text:
    """Return the name at its position in the tree, wrapped to the available width."""
    room = max(8, room - len(lead) - len(mark))
    text = Text(no_wrap=True)
    for start in range(0, len(name), room):
        text.append(f"{lead}{mark}" if not start else f"\n{lead}{' ' * len(mark)}")
        text.append(name[start : start + room], style="bold")
    return text


def _parent(row: Row, order: Sequence[str]) -> str | None:
    return max((name for name in row.inputs if name != row.name), key=order.index, default=None)


def _what(row: Row, others: Sequence[str]) -> str:
    pending = [step for step in row.steps if not step.cached]
    total, cached = len(row.steps), len(row.steps) - len(pending)
    reasons = list(dict.fromkeys(step.reason for step in pending))
    more = f" and {len(reasons) - 1} more" if len(reasons) > 1 else ""
    why = f"[yellow]run:[/] {escape(reasons[0])}{more}" if pending else "[dim]cached[/]"
    if pending and cached:
        text = f"{total} instances: {cached} cached, {len(pending)} {why}"
    else:
        text = why if total == 1 else f"{total} instances {why}"
    if others:
        names = ", ".join(others)
        shown = names if len(names) <= MAX_INPUTS_WIDTH else f"{len(others)} more"
        text += f" [dim]← {escape(shown)}[/]"
    return text


def _cost_cells(row: Row, estimates: Mapping[str, Estimate]) -> list[str]:
    """Return time, disk, memory and GPU memory of a row's nodes that are not cached."""
    pending = [estimates[step.name] for step in row.steps if not step.cached]
    if not pending:
        return [""] * 4
    disk, *memories = (
        [amount for estimate in pending if (amount := getattr(estimate, name))]
        for name in ("disk_bytes", "memory_bytes", "gpu_memory_bytes")
    )
    amounts = [sum(disk), *(max(memory, default=0) for memory in memories)]
    return [
        format_total_seconds(pending),
        *(format_bytes(amount) if amount else "–" for amount in amounts),
    ]


def format_total_seconds(estimates: Sequence[Estimate]) -> str:
    """Return the sum of the estimated seconds as text; "–" if any is unknown."""
    seconds = [estimate.seconds for estimate in estimates if estimate.seconds is not None]
    if len(seconds) < len(estimates) or not seconds:
        return "–"
    mark = ROUGH if any(estimate.basis == "rough" for estimate in estimates) else ""
    return f"{mark}{format_duration(sum(seconds))}"


def _places(
    steps: Sequence[PlannedNode], estimates: Mapping[str, Estimate]
) -> dict[str, list[str]]:
    """Return the plan's lines by where they run; nothing if all is on this host.

    Of a section's instances, the one that takes longest is asked.
    """
    places: dict[str, list[str]] = {}
    for row in rows(steps):
        if pending := [step for step in row.steps if not step.cached]:
            longest = max(pending, key=lambda step: estimates[step.name].seconds or 0.0)
            where = place(longest, estimates[longest.name])
            places.setdefault(where, []).append(row.name)
    return {} if places.keys() <= {THIS_HOST} else places


def left_out_lines(left_out: Mapping[str, str]) -> list[str]:
    """Return one line per reason, with the nodes that are left out."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in left_out.items():
        by_reason.setdefault(reason, []).append(name)
    return [
        f"{names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: {reason}"
        for reason, names in by_reason.items()
    ]


def show(
    out: Console,
    steps: Sequence[PlannedNode],
    estimates: Mapping[str, Estimate],
    total_seconds: float | None,
    left_out: Mapping[str, str] | None = None,
) -> None:
    """Print the plan: tree, left-out nodes, totals.

    `total_seconds`: seconds for the whole run, with independent nodes in parallel.
    """
    out.print(tree(steps, estimates, out.width))
    for line in left_out_lines(left_out or {}):
        out.print(f"[yellow]left out:[/] {escape(line)}")
    pending = [step for step in steps if not step.cached]
    for step in pending:
        if note := estimates[step.name].note:
            out.print(f"[dim]{escape(step.name)}: {escape(note)}[/]")
    for where, names in _places(steps, estimates).items():
        out.print(f"[dim]on {escape(where)}: {escape(', '.join(names))}[/]")
    forced = {step.name for step in pending if step.forced}
    if any(step.cached and forced.intersection(step.depends_on) for step in steps):
        out.print("[dim]Cached nodes that read a forced one run, too, if its content differs.[/]")
    out.print()
    if not pending:
        out.print("Nothing to do.")
        return
    costs = [estimates[step.name] for step in pending]
    phrases = [f"{len(pending)} of {len(steps)} nodes would run"]
    if total_seconds is not None:
        total = format_duration(total_seconds)
        phrases.append(f"{format_total_seconds(costs)} of work, {total} until all is made")
    if disk := sum(cost.disk_bytes or 0 for cost in costs):  # 0: not known
        phrases.append(f"{format_bytes(disk)} of disk")
        memory = format_bytes(max(cost.memory_bytes or 0 for cost in costs))
        phrases[-1] += f", at most {memory} of memory a node"
    out.print("; ".join(phrases) + ".")
    bases = Counter("unknown" if cost.seconds is None else cost.basis for cost in costs)
    meanings = {
        "measured": "as measured here",
        "scaled": "scaled from measured runs",
        "rough": f"rough ({ROUGH}): nothing like it was measured yet",
        "unknown": "not known",
    }
    phrases = [f"{bases[basis]} {text}" for basis, text in meanings.items() if bases[basis]]
    out.print(f"[dim]Times: {', '.join(phrases)}.[/]")


# Tables of `cloze status`: one line per run, or one line per node of a run.

STYLES = {
    "running": "bold cyan",
    "retrying": "yellow",
    "stopped": "yellow",
    "queued": "yellow",
    "finished": "green",
    "cached": "dim",
    "failed": "bold red",
    "crashed": "bold red",
    "lost": "bold red",
    "unreadable": "bold red",
    "cancelled": "yellow",
}
FIGURES = 2  # number of metrics shown for a running node
# states with a line of their own
DETAILED = ("running", "retrying", "queued", "failed", "crashed", "stopped")


def state(name: str) -> str:
    """Return a state with its colour."""
    style = STYLES.get(name)
    return f"[{style}]{name}[/]" if style else name


def when(seconds: float | None) -> str:
    """Return a Unix time as local date and time."""
    return "" if seconds is None else time.strftime("%m-%d %H:%M", time.localtime(seconds))


def show_runs(out: Console, records: Mapping[str, Mapping[str, Any]]) -> None:
    owners = [record.get("owner") or "" for record in records.values()]
    are_several = len(set(owners)) > 1
    table = table_of(
        ("run", *["owner"] * are_several, "state", "nodes", "started", "took", "now"),
        right=("nodes", "took"),
        whole=True,
    )
    for name, record in sorted(records.items(), key=lambda item: -item[1]["started"]):
        nodes = record["nodes"]
        done_count = sum(node["state"] in ("finished", "cached") for node in nodes.values())
        table.add_row(
            name,
            *[record.get("owner") or ""] * are_several,
            state(record["state"]),
            f"{done_count}/{len(nodes)}",
            when(record["started"]),
            describe_duration(record),
            ellipsized(_now(nodes) or _error(record)),
        )
    out.print(table)


def describe_duration(record: Mapping[str, Any]) -> str:
    """Return how long the newest start of a run took; a rerun of finished work takes no time."""
    states = {node["state"] for node in record["nodes"].values()}
    return "cached" if states == {"cached"} else format_duration(elapsed(record))


def _now(nodes: Mapping[str, Mapping[str, Any]]) -> str:
    by_state = {
        node_state: [name for name, node in nodes.items() if node["state"] == node_state]
        for node_state in ("failed", "crashed", "retrying", "running", "queued")
    }
    return "; ".join(
        f"{node_state}: {', '.join(names)}" for node_state, names in by_state.items() if names
    )


def show_run(out: Console, directory: str, record: Mapping[str, Any]) -> None:
    out.print(
        f"[bold]{escape(on_one_line(record['run']))}[/] {state(record['state'])}  started "
        f"{when(record['started'])}, {format_duration(elapsed(record))}"
        f"{'  process {pid} on {host}'.format(**record) if record['host'] else ''}"
        f"{escape(_whose(record))}"
    )
    columns = ("node", "state", "took", "left", "what")
    table = table_of(columns, right=columns[2:4], title=directory, whole=True)
    nodes = record["nodes"]
    detailed = [name for name, node in nodes.items() if node["state"] in DETAILED]
    sections = {name: node.get("section", name) for name, node in nodes.items()}
    for label, names in group_instances(nodes, sections, detailed).items():
        members = [nodes[name] for name in names]
        states = Counter(node["state"] for node in members).most_common()
        started = [node for node in members if node.get("started")]
        took = sum(map(elapsed, started))
        left = members[0].get("seconds_left") if len(members) == 1 else None
        text = ", ".join(f"{count} {name}" for name, count in states)
        table.add_row(
            label,
            state(states[0][0]) if len(states) == 1 else "",
            format_duration(took) if started else "",
            "" if left is None else format_duration(left),
            ellipsized(_node_summary(members[0]) if len(members) == 1 else text),
        )
    out.print(table)
    said, error = "", _error(record)
    for name, node in nodes.items():
        if node.get("error") and node["state"] in ("failed", "crashed", "stopped"):
            out.print(f"[red]{escape(name)}:[/] {escape(node['error'])}")
            said += f"{name}: {node['error']}\n"
            error = error.replace(f": {node['error']}", "")
    if error.partition(";")[0] not in said:  # such as "suspended in Prefect"
        out.print(f"[red]{escape(error)}[/]")


def _whose(record: Mapping[str, Any]) -> str:
    """Return the owner of a run, and who else started it last."""
    owner, account = record.get("owner"), record.get("account")
    other = f", started by {account}" if account != owner else ""
    return f"  owner {owner}{other}" if owner else ""


def _error(record: Mapping[str, Any]) -> str:
    return "" if record["state"] == "finished" else str(record.get("error") or "")


def _node_summary(node: Mapping[str, Any]) -> str:
    if node["state"] in ("finished", "cached"):
        return Path(node["artifact"]).name
    if node["state"] in ("running", "failed", "stopped", "crashed") and "done" in node:
        total = f"/{format_count(node['total'])}" if node.get("total") else ""
        numbers = [
            (name, amount)
            for name, amount in node.get("figures", {}).items()
            if isinstance(amount, float)  # a measurement; notes, devices and the like are words
        ]
        figures = "  ".join(labelled(key, value) for key, value in numbers[:FIGURES])
        return f"{format_count(node['done'])}{total} {node.get('unit', '')}  {figures}".rstrip()
    has_ended = node["state"] in ("failed", "stopped", "crashed")  # its error is below the table
    return "" if has_ended else str(node.get("why") or "")
