"""Tables of `cloze plan` and `cloze status`, in 80 columns.

The plan is a tree: a node is below its last input; other inputs are its ancestors, or its line
names them. In a graph of many nodes the instances of a section share a line.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from cloze.core.humanize import format_bytes, format_count, format_duration, labelled
from cloze.flows.graph.estimate import Estimate, estimate_error
from cloze.flows.graph.plan import PlannedNode
from cloze.flows.views.terminal import MOST_LINES, ellipsized, group_instances, table_of

ROUGH = "~"  # prefix of estimates without a measurement
MOST_NAMED = 24  # maximum characters of further inputs' names; beyond that their number is shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A line of the plan: a node or a section's instances; `inputs` are the rows it needs."""

    name: str
    steps: tuple[PlannedNode, ...]
    inputs: tuple[str, ...]


def rows(steps: Sequence[PlannedNode]) -> list[Row]:
    """Return the plan's lines; each follows the lines that it needs."""
    by_section = len(steps) > MOST_LINES
    instances: dict[str, list[PlannedNode]] = {}
    for step in steps:
        instances.setdefault(step.node.section if by_section else step.name, []).append(step)
    names = {key: _name(found) for key, found in instances.items()}
    line_of = {step.name: names[key] for key, found in instances.items() for step in found}
    found = []
    for key, members in instances.items():
        inputs = (
            line_of[parent]
            for step in members
            for parent in step.node.depends_on
            if parent in line_of
        )
        found.append(
            Row(name=names[key], steps=tuple(members), inputs=tuple(dict.fromkeys(inputs)))
        )
    return _ordered(found)


def _ordered(found: list[Row]) -> list[Row]:
    """Sort rows after those that they need: instances of sections may interleave."""
    placed: dict[str, Row] = {}
    waiting = list(found)
    while waiting:
        ready = [
            row
            for row in waiting
            if all(parent in placed or parent == row.name for parent in row.inputs)
        ] or waiting[:1]
        placed |= {row.name: row for row in ready}
        waiting = [row for row in waiting if row.name not in placed]
    return list(placed.values())


def _name(members: Sequence[PlannedNode]) -> str:
    """Return a node's name, or a pattern for a section's instances: `finetune@{task}-{seed}`."""
    if len(members) == 1:
        return members[0].name
    node = members[0].node
    label = node.section.partition("@")[2]
    name_parts = [*([label] if label else []), *(f"{{{axis}}}" for axis in node.values)]
    return f"{node.stage}@{'-'.join(name_parts)}"


def tree(steps: Sequence[PlannedNode], estimates: Mapping[str, Estimate], width: int) -> Table:
    """Return the plan as a table whose first column is the tree."""
    directory = str(Path(steps[0].artifact).parent) if steps else None
    gpus = any(estimate.gpu_memory_bytes for estimate in estimates.values())
    columns = ["node", "what", "time", "disk", "memory", *(["GPU"] if gpus else [])]
    table = table_of(columns, right=columns[2:], title=directory)
    for column in (table.columns[0], *table.columns[2:]):
        column.no_wrap = True
    tree_rows = rows(steps)
    parents = {row.name: _parent(row, tree_rows) for row in tree_rows}
    children: dict[str | None, list[Row]] = {}
    for row in tree_rows:
        children.setdefault(parents[row.name], []).append(row)
    ancestors = _ancestors(tree_rows)

    def add(row: Row, lead: str, last: bool, top: bool) -> None:
        mark = "" if top else "└ " if last else "├ "
        other_inputs = [
            name
            for name in row.inputs
            if name != parents[row.name] and name not in ancestors.get(parents[row.name] or "", ())
        ]
        table.add_row(
            _branch(lead, mark, row.name, width // 2 - 4),
            _what(row, other_inputs),
            *_taken(row, estimates, gpus),
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


def _parent(row: Row, lines: Sequence[Row]) -> str | None:
    order = [candidate.name for candidate in lines]
    return max((name for name in row.inputs if name != row.name), key=order.index, default=None)


def _ancestors(lines: Sequence[Row]) -> dict[str, set[str]]:
    """Return the direct and indirect inputs of each row."""
    ancestors: dict[str, set[str]] = {}
    for row in lines:
        ancestors[row.name] = {
            *row.inputs,
            *(ancestor for name in row.inputs for ancestor in ancestors.get(name, ())),
        }
    return ancestors


def _what(row: Row, others: Sequence[str]) -> str:
    pending = [step for step in row.steps if not step.cached]
    if len(row.steps) == 1:
        text = f"[yellow]run:[/] {escape(pending[0].reason)}" if pending else "[dim]cached[/]"
    else:
        cached, count = len(row.steps) - len(pending), f"{len(row.steps)} instances"
        text = f"{count} [dim]cached[/]"
        if pending and cached:
            text = f"{count}: {cached} cached, {len(pending)} [yellow]run:[/] {_reasons(pending)}"
        elif pending:
            text = f"{count} [yellow]run:[/] {_reasons(pending)}"
    if others:
        names = ", ".join(others)
        text += f" [dim]← {escape(names if len(names) <= MOST_NAMED else f'{len(others)} more')}[/]"
    return text


def _reasons(todo: Iterable[PlannedNode]) -> str:
    reasons = list(dict.fromkeys(step.reason for step in todo))
    return escape(reasons[0]) + (
        f" and {len(reasons) - 1} more reasons" if len(reasons) > 1 else ""
    )


def _taken(row: Row, estimates: Mapping[str, Estimate], gpus: bool) -> list[str]:
    pending_estimates = [estimates[step.name] for step in row.steps if not step.cached]
    if not pending_estimates:
        return [""] * (4 if gpus else 3)
    amounts = (
        [estimate.disk_bytes for estimate in pending_estimates],
        [estimate.memory_bytes for estimate in pending_estimates],
        [estimate.gpu_memory_bytes for estimate in pending_estimates],
    )
    known_amounts = [[value for value in values if value] for values in amounts]
    size_texts = [
        format_bytes(sum(known_amounts[0])) if known_amounts[0] else "–",
        *(format_bytes(max(values)) if values else "–" for values in known_amounts[1:]),
    ]
    return [seconds_told(pending_estimates), *size_texts[: 3 if gpus else 2]]


def seconds_told(found: Sequence[Estimate]) -> str:
    """Return the sum of the estimated seconds as text; "–" if any is unknown."""
    known_seconds = [estimate.seconds for estimate in found if estimate.seconds is not None]
    if len(known_seconds) < len(found) or not known_seconds:
        return "–"
    mark = ROUGH if any(estimate.basis == "rough" for estimate in found) else ""
    return f"{mark}{format_duration(sum(known_seconds))}"


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
    together: float | None,
    last: Mapping[str, Any] | None,
    left_out: Mapping[str, str] | None = None,
) -> None:
    """Print the plan: tree, left-out nodes, totals, accuracy of the last estimate.

    Args:
        left_out: reasons by node.
        together: seconds for the whole run, with independent nodes in parallel.
        last: see `cloze.flows.run.status_file.last_estimate_error`.
    """
    out.print(tree(steps, estimates, out.width))
    for line in left_out_lines(left_out or {}):
        out.print(f"[yellow]left out:[/] {escape(line)}")
    pending = [step for step in steps if not step.cached]
    for step in pending:
        if note := estimates[step.name].note:
            out.print(f"[dim]{escape(step.name)}: {escape(note)}[/]")
    out.print()
    if not pending:
        out.print("Nothing to do.")
        return
    pending_estimates = [estimates[step.name] for step in pending]
    phrases = [f"{len(pending)} of {len(steps)} nodes would run"]
    if together is not None:
        phrases.append(
            f"{seconds_told(pending_estimates)} of work, "
            f"{format_duration(together)} until all is made"
        )
    disk, memory = (
        sum(estimate.disk_bytes or 0 for estimate in pending_estimates),
        max((estimate.memory_bytes or 0 for estimate in pending_estimates), default=0),
    )
    phrases.append(f"{format_bytes(disk)} of disk, at most {format_bytes(memory)} of memory a node")
    out.print("; ".join(phrases) + ".")
    unknown = sum(estimate.seconds is None for estimate in pending_estimates)
    bases = {
        basis: sum(estimate.basis == basis for estimate in pending_estimates)
        for basis in ("measured", "scaled", "rough")
    }
    meanings = {
        "measured": "as measured here",
        "scaled": "scaled from measured runs",
        "rough": f"rough ({ROUGH}): nothing like it was measured yet",
    }
    phrases = [f"{count} {meanings[basis]}" for basis, count in bases.items() if count]
    out.print(
        f"[dim]Times: {', '.join([*phrases, *([f'{unknown} not known'] if unknown else [])])}.[/]"
    )
    for line in estimate_error_lines(last):
        out.print(f"[dim]{line}[/]")


def estimate_error_lines(last: Mapping[str, Any] | None, when: str = "Last time") -> Iterator[str]:
    """Yield lines with the error of past estimates, from `estimate_error`."""
    if last is None:
        return
    side = "longer" if last["off"] >= 0 else "shorter"
    yield (
        f"{when}: {format_duration(last['expected'])} expected, {format_duration(last['took'])} "
        f"taken: {abs(last['off']):.0%} {side}."
    )
    for name, quantity in (("memory", "of memory"), ("gpu_memory", "of a GPU's memory")):
        error = last.get(name)
        if error:
            side = "more" if error["off"] >= 0 else "less"
            yield (
                f"{error['node']}: {format_bytes(error['expected'])} {quantity} expected, "
                f"{format_bytes(error['took'])} taken:"
                f" {abs(error['off']):.0%} {side}."
            )


# Tables of `cloze status`: one line per run, or one line per node of a run.

STYLES = {
    "running": "bold cyan",
    "queued": "yellow",
    "finished": "green",
    "cached": "dim",
    "failed": "bold red",
    "crashed": "bold red",
    "cancelled": "yellow",
}
FIGURES = 2  # number of metrics shown for a running node
TELLING = (
    "running",
    "queued",
    "failed",
    "crashed",
    "stopped",
)  # states with a line of their own
WORDS = (
    "note",
    "step",
    "warning",
    "device",
    "precision",
    "engine",
)  # entries that are not measurements


def state(name: str) -> str:
    """Return a state with its colour."""
    style = STYLES.get(name)
    return f"[{style}]{name}[/]" if style else name


def when(seconds: float | None) -> str:
    """Return a Unix time as local date and time."""
    return "" if seconds is None else time.strftime("%m-%d %H:%M", time.localtime(seconds))


def show_runs(out: Console, records: Mapping[str, Mapping[str, Any]]) -> None:
    """Print one line per run: state, finished nodes, current nodes."""
    table = table_of(
        ("run", "state", "nodes", "started", "took", "now"), right=("nodes", "took"), whole=True
    )
    for name, record in sorted(records.items(), key=lambda item: -item[1]["started"]):
        nodes = record["nodes"]
        done_count = sum(node["state"] in ("finished", "cached") for node in nodes.values())
        end_time = record["ended"] or time.time()
        table.add_row(
            name,
            state(record["state"]),
            f"{done_count}/{len(nodes)}",
            when(record["started"]),
            format_duration(end_time - record["started"]),
            ellipsized(_now(nodes)),
        )
    out.print(table)


def _now(nodes: Mapping[str, Mapping[str, Any]]) -> str:
    by_state = {
        node_state: [name for name, node in nodes.items() if node["state"] == node_state]
        for node_state in ("failed", "crashed", "running", "queued")
    }
    return "; ".join(
        f"{node_state}: {', '.join(names)}" for node_state, names in by_state.items() if names
    )


def show_run(out: Console, place: str, found: Mapping[str, Any]) -> None:
    """Print one line per node."""
    end_time = found["ended"] or time.time()
    out.print(
        f"[bold]{escape(found['run'])}[/] {state(found['state'])}  started "
        f"{when(found['started'])}, {format_duration(end_time - found['started'])}"
        f"  process {found['pid']} on {found['host']}"
    )
    table = table_of(
        ("node", "state", "took", "left", "what"), right=("took", "left"), title=place, whole=True
    )
    nodes = found["nodes"]
    detailed = [name for name, node in nodes.items() if node["state"] in TELLING]
    for label, names in group_instances(
        nodes, {name: node.get("section", name) for name, node in nodes.items()}, detailed
    ).items():
        if len(names) > 1:
            table.add_row(label, *_of_several([nodes[name] for name in names]))
            continue
        name, node = label, nodes[names[0]]
        started = node.get("started")
        elapsed = format_duration((node.get("ended") or time.time()) - started) if started else ""
        time_left = (
            format_duration(node["seconds_left"]) if node.get("seconds_left") is not None else ""
        )
        table.add_row(
            name, state(node["state"]), elapsed, time_left, ellipsized(_node_summary(node))
        )
    out.print(table)
    for label in estimate_error_lines(estimate_error(found), "Estimates"):
        out.print(f"[dim]{escape(label)}[/]")
    for name, node in found["nodes"].items():
        if node.get("error") and node["state"] in ("failed", "crashed", "stopped"):
            out.print(f"[red]{escape(name)}:[/] {escape(node['error'])}")
    if (
        found.get("error")
        and found["state"] != "finished"
        and not any(node.get("error") for node in found["nodes"].values())
    ):
        out.print(f"[red]{escape(found['error'])}[/]")


def _of_several(nodes: Sequence[Mapping[str, Any]]) -> tuple[str, str, str, Text]:
    """Return state, total time, empty time left, and the number of nodes in each state."""
    states = Counter(node["state"] for node in nodes)
    total_seconds = sum(
        (node.get("ended") or time.time()) - node["started"]
        for node in nodes
        if node.get("started")
    )
    counts = ", ".join(f"{count} {name}" for name, count in states.most_common())
    return (
        state(states.most_common()[0][0]) if len(states) == 1 else "",
        format_duration(total_seconds) if total_seconds else "",
        "",
        ellipsized(counts),
    )


def _node_summary(node: Mapping[str, Any]) -> str:
    if node["state"] == "running" and "done" in node:
        total = f"/{format_count(node['total'])}" if node.get("total") else ""
        numbers = [
            (name, amount)
            for name, amount in node.get("figures", {}).items()
            if isinstance(amount, float) and name not in WORDS
        ]
        figures = "  ".join(labelled(key, value) for key, value in numbers[:FIGURES])
        return f"{format_count(node['done'])}{total} {node.get('unit', '')}  {figures}".rstrip()
    if node["state"] in ("finished", "cached"):
        return Path(node["artifact"]).name
    return str(node.get("why") or "")
