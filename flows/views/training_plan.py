"""What `cloze plan --model` shows: memory by ZeRO stage and micro-batch, the ways that fit, the choice, and what is taken for granted.

Fits 80 columns. It is given the plan's plain values (`model.train.scale.plan.planned`).
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flows.views.terminal import table_of
from pipeline.core.humanize import duration, si, size

Plan = Mapping[str, Any]
WIDEST = 100


def show(out: Console, plan: Plan) -> None:
    """The whole plan."""
    out.print(f"[bold]{escape(plan['model'])}[/], {si(plan['parameters'])} parameters, on {_hardware(plan)}")
    tokens = f"{plan['steps']:,} steps of {plan['global_batch']:,} sequences of {plan['length']:,} tokens: {si(plan['tokens'])} tokens"
    out.print(tokens)
    out.print()
    out.print(_memory(plan))
    out.print()
    out.print(_ways(plan))
    out.print()
    for line in _chosen(plan):
        _wrapped(out, line)
    out.print()
    out.print(f"    {_command(plan['chosen']['command'], min(out.width, WIDEST) - 8)}", soft_wrap=True, markup=False)
    for warning in plan["warnings"]:
        out.print()
        _wrapped(out, warning, "[yellow]careful:[/] ")
    out.print()
    out.print("[dim]Taken for granted:[/]")
    for sentence in plan["assumptions"]:
        for line in textwrap.wrap(sentence, min(out.width, WIDEST) - 2, initial_indent="- ", subsequent_indent="  "):
            out.print(f"[dim]{escape(line)}[/]")


def _wrapped(out: Console, text: str, mark: str = "") -> None:
    out.print(mark + escape(text), width=min(out.width, WIDEST))


def _hardware(plan: Plan) -> str:
    there = plan["hardware"]
    if not there["gpus"]:
        return f"this machine's {there['name']} ({size(there['memory'])})"
    machines = f" in {plan['nodes']:,} machines" if plan["nodes"] > 1 else ""
    return f"{there['gpus']:,} {there['name']}{machines} ({size(there['memory'])} each)"


def _how(way: Plan) -> list[str]:
    return [str(way["zero"]), "yes" if way["activation_checkpointing"] else "no"]


def _memory(plan: Plan) -> Table:
    """A line a stage, with and without checkpointing; what does not fit is red."""
    sizes = sorted({row["micro_batch"] for row in plan["memory"] if not row["most"] or row["micro_batch"] in (1, 8, 32)})
    columns = ["ZeRO", "again", *(f"{rows:,} rows" for rows in sizes), "most that fits"]
    title = f"memory of a {'GPU' if plan['hardware']['gpus'] else 'process'} by sequences at once (again: layers are computed again for the gradient)"
    table = table_of(columns, right=columns, title=title)
    lines: dict[tuple[int, bool], list[Plan]] = {}
    for row in plan["memory"]:
        lines.setdefault((row["zero"], row["activation_checkpointing"]), []).append(row)
    for found in lines.values():
        by_rows = {row["micro_batch"]: row for row in found}
        most = next((row for row in found if row["most"]), None)
        cells = [_bytes(by_rows[rows]) if rows in by_rows else "" for rows in sizes]
        table.add_row(*_how(found[0]), *cells, "none" if most is None else f"{most['micro_batch']:,}: {size(most['total'])}")
    return table


def _bytes(row: Plan) -> str:
    told = size(row["total"])
    return told if row["fits"] else f"[red]{told}[/]"


def _ways(plan: Plan) -> Table:
    """A line for each stage, with and without checkpointing, that fits."""
    gpus = plan["hardware"]["gpus"]
    columns = [
        "ZeRO",
        "again",
        "rows",
        "memory",
        "step",
        "tokens/s",
        "hours",
        *(["GPU-h"] if gpus else []),
        "kWh",
        "net",
        "waits",
    ]
    title = "as few passes a step as fit (net: the network's share of the time; waits: what is not beside computing)"
    table = table_of(columns, right=columns, title=title)
    for way in plan["ways"]:
        chosen = _how(way) == _how(plan["chosen"])
        cells = [
            *_how(way),
            f"{way['micro_batch']}x{way['accumulation']}",
            size(way["memory"]["total"]),
            _brief(way["step_seconds"]),
            si(way["tokens_per_second"]),
            _hours(way["hours"]),
            *([_hours(way["gpu_hours"])] if gpus else []),
            _hours(way["energy_kwh"]),
            f"{way['network']['share']:.0%}",
            f"{way['network']['waiting_share']:.0%}",
        ]
        table.add_row(*(f"[bold]{cell}[/]" for cell in cells) if chosen else cells)
    return table


def _brief(seconds: float) -> str:
    return duration(seconds) if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def _hours(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _chosen(plan: Plan) -> Iterator[str]:
    way, failures, sizes = plan["chosen"], plan["failures"], plan["bytes"]
    network = way["network"]
    again = ", layers computed again," if way["activation_checkpointing"] else ""
    yield (
        f"It would take ZeRO {way['zero']}{again} with {way['micro_batch']} sequences at once, {way['accumulation']} times a step:"
        f" {duration(3600 * way['hours'])} of training, {way['mfu']:.0%} of the peak."
    )
    if network["bytes_per_step"]:
        yield (
            f"Each GPU sends {size(network['bytes_per_rank'])} a step, all of them {size(network['bytes_per_step'])}, which takes"
            f" {_brief(network['seconds'])} of a step's {_brief(way['step_seconds'])} ({network['share']:.0%}); it waits for"
            f" {network['waiting_share']:.0%} of the step."
        )
    yield (
        f"A checkpoint takes {size(sizes['checkpoint'])} ({size(sizes['exported'])} exported), the dataset {size(sizes['dataset'])}."
    )
    yield (
        f"An interruption is expected every {duration(3600 * failures['hours_between'])}; saving every"
        f" {duration(failures['save_every_seconds'])}, {failures['goodput']:.1%} of the time is progress:"
        f" {duration(3600 * way['hours'] / max(failures['goodput'], 1e-9))} in all."
    )


def _command(command: str, width: int) -> str:
    """The command in lines that a shell takes as one."""
    options: list[str] = []
    for word in command.split():
        if word.startswith("--") or not options:
            options.append(word)
        else:
            options[-1] += f" {word}"
    lines: Sequence[str] = _filled(options, width)
    return " \\\n        ".join(lines)


def _filled(words: Sequence[str], width: int) -> list[str]:
    lines = [words[0]]
    for word in words[1:]:
        if len(lines[-1]) + 1 + len(word) > width:
            lines.append(word)
        else:
            lines[-1] += f" {word}"
    return lines
