"""What `cloze status` shows: all runs in a line each, or one run in a line a node, the instances of a section together where there are many."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from flows.graph.estimate import off_of
from flows.views.instances import together
from flows.views.plan_tree import off_lines
from flows.views.terminal import cut, table_of
from pipeline.core.humanize import duration, short, si

STYLES = {
    "running": "bold cyan",
    "finished": "green",
    "cached": "dim",
    "failed": "bold red",
    "crashed": "bold red",
    "cancelled": "yellow",
}
FIGURES = 2  # shown of a running node
TELLING = ("running", "failed", "crashed", "stopped")  # nodes in these states have a line of their own in any run
WORDS = ("note", "step", "warning", "device", "precision", "engine")  # figures that are no measurements


def state(name: str) -> str:
    """A state in its colour."""
    style = STYLES.get(name)
    return f"[{style}]{name}[/]" if style else name


def when(seconds: float | None) -> str:
    """A moment of Unix seconds as the clock and the calendar here show it."""
    return "" if seconds is None else time.strftime("%m-%d %H:%M", time.localtime(seconds))


def show_runs(out: Console, records: Mapping[str, Mapping[str, Any]]) -> None:
    """A line a run: its state, how many nodes are done, what runs just now."""
    table = table_of(("run", "state", "nodes", "started", "took", "now"), right=("nodes", "took"), whole=True)
    for name, found in sorted(records.items(), key=lambda item: -item[1]["started"]):
        nodes = found["nodes"]
        done = sum(node["state"] in ("finished", "cached") for node in nodes.values())
        ended = found["ended"] or time.time()
        table.add_row(
            name,
            state(found["state"]),
            f"{done}/{len(nodes)}",
            when(found["started"]),
            duration(ended - found["started"]),
            cut(_now(nodes)),
        )
    out.print(table)


def _now(nodes: Mapping[str, Mapping[str, Any]]) -> str:
    by_state = {
        wanted: [name for name, node in nodes.items() if node["state"] == wanted] for wanted in ("failed", "crashed", "running")
    }
    return "; ".join(f"{wanted}: {', '.join(names)}" for wanted, names in by_state.items() if names)


def show_run(out: Console, place: str, found: Mapping[str, Any]) -> None:
    """A line a node."""
    ended = found["ended"] or time.time()
    out.print(
        f"[bold]{escape(found['run'])}[/] {state(found['state'])}  started {when(found['started'])}, {duration(ended - found['started'])}"
        f"  process {found['pid']} on {found['host']}"
    )
    table = table_of(("node", "state", "took", "left", "what"), right=("took", "left"), title=place, whole=True)
    nodes = found["nodes"]
    telling = [name for name, node in nodes.items() if node["state"] in TELLING]
    for line, names in together(nodes, {name: node.get("section", name) for name, node in nodes.items()}, telling).items():
        if len(names) > 1:
            table.add_row(line, *_of_several([nodes[name] for name in names]))
            continue
        name, node = line, nodes[names[0]]
        started = node.get("started")
        took = duration((node.get("ended") or time.time()) - started) if started else ""
        left = duration(node["seconds_left"]) if node.get("seconds_left") is not None else ""
        table.add_row(name, state(node["state"]), took, left, cut(_what(node)))
    out.print(table)
    for told in off_lines(off_of(found), "Estimates"):
        out.print(f"[dim]{told}[/]")
    for name, node in found["nodes"].items():
        if node.get("error") and node["state"] in ("failed", "crashed", "stopped"):
            out.print(f"[red]{name}:[/] {escape(node['error'])}")
    if found.get("error") and found["state"] != "finished" and not any(node.get("error") for node in found["nodes"].values()):
        out.print(f"[red]{escape(found['error'])}[/]")


def _of_several(nodes: Sequence[Mapping[str, Any]]) -> tuple[str, str, str, Text]:
    """State, time together, nothing left, and how many are in which state."""
    states = Counter(node["state"] for node in nodes)
    took = sum((node.get("ended") or time.time()) - node["started"] for node in nodes if node.get("started"))
    told = ", ".join(f"{count} {name}" for name, count in states.most_common())
    return state(states.most_common()[0][0]) if len(states) == 1 else "", duration(took) if took else "", "", cut(told)


def _what(node: Mapping[str, Any]) -> str:
    if node["state"] == "running" and "done" in node:
        total = f"/{si(node['total'])}" if node.get("total") else ""
        numbers = [(k, v) for k, v in node.get("figures", {}).items() if isinstance(v, float) and k not in WORDS]
        figures = "  ".join(f"{key} {short(value)}" for key, value in numbers[:FIGURES])
        return f"{si(node['done'])}{total} {node.get('unit', '')}  {figures}".rstrip()
    if node["state"] in ("finished", "cached"):
        return Path(node["artifact"]).name
    return str(node.get("why") or "")
