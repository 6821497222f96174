"""The command plan-training."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from cloze.flows.commands.base.field_options import Count, FiniteRange, NameOf
from cloze.flows.commands.base.options import (
    Command,
    GroupedCommand,
    GroupedOption,
    emit,
    json_option,
)

if TYPE_CHECKING:
    from rich.console import Console

WIDEST = 100


def _option(
    flag: str, text: str, kind: Any = str, metavar: str = "N", **settings: Any
) -> Callable[[Command], Command]:
    return click.option(flag, cls=GroupedOption, type=kind, help=text, metavar=metavar, **settings)


@click.command("plan-training", cls=GroupedCommand)
@click.argument(
    "models",
    nargs=-1,
    required=True,
    metavar="PRESET...",
    type=NameOf("cloze.model.families.registry:presets", "PRESET"),
)
@_option(
    "--tokens", "Tokens to train on, without padding, such as 300e9.", Count(min=1), required=True
)
@_option(
    "--gpus", "Number of GPUs. Default: this machine's CPU, or 1 with --gpu-type.", Count(min=1)
)
@_option("--gpu-type", "GPU model, such as h100 or a100-80.", metavar="NAME")
@_option("--length", "Tokens per row. Default: 512, at most what the model reads.", Count(min=1))
@_option("--global-batch", "Sequences per optimizer step. Default: the paper's.", Count(min=1))
@_option("--vocab-size", "Vocabulary size. Default: the paper's.", Count(min=1))
@_option(
    "--mfu",
    "Model FLOP utilization, as a share of the GPU's peak. Default: 0.4.",
    FiniteRange(min=0, min_open=True),
    metavar="X",
)
@json_option
def plan_training(models: tuple[str, ...], as_json: bool, **values: Any) -> None:
    """Estimate the memory and hours of a pretraining.

    PRESET is a model preset, or a size such as 17m. The plan prints each of its assumptions.
    Several are one table, each with its speed-up over the first.
    """
    from cloze.flows.machine import slots
    from cloze.flows.views import terminal
    from cloze.labs.planning import training_plan

    cpus = slots.machine().cpus
    plans = [training_plan.plan_training(cpus, model=model, **values) for model in models]
    if as_json:
        emit(plans[0] if len(plans) == 1 else {"plans": plans})
    elif len(plans) == 1:
        show(terminal.output(), plans[0])
    else:
        show_beside(terminal.output(), plans)


def show(out: Console, plan: Mapping[str, Any]) -> None:
    """Print a training plan in at most 100 columns."""
    from rich.markup import escape

    from cloze.core.humanize import agree, format_bytes, format_count, format_duration
    from cloze.flows.views.terminal import table_of

    hardware, recommended = plan["hardware"], plan["chosen"]
    gpus = f"{hardware['gpus']:,}" if hardware["gpus"] else "this machine's"
    size = f"{format_count(plan['parameters'])} parameters"
    out.print(f"[bold]{escape(plan['model'])}[/], {size}, on {gpus} {hardware['name']}")
    rows = f"{plan['global_batch']:,} sequences of {plan['length']:,} tokens"
    amount = f"{plan['steps']:,} steps of {rows}: {format_count(plan['tokens'])} tokens\n"
    out.print(agree(amount))
    columns = ["ZeRO", "recomputed", "rows x passes", "memory", "hours", "GPU-hours"]
    table = table_of(columns, right=columns, title="largest micro-batch that fits, by ZeRO stage")
    for alternative in plan["ways"]:
        cells = [
            str(alternative["zero"]),
            "yes" if alternative["activation_checkpointing"] else "no",
            f"{alternative['micro_batch']:,} x {alternative['accumulation']:,}",
            format_bytes(alternative["memory"]["total"]),
            _hours(alternative["hours"]),
            _hours(alternative["gpu_hours"]),
        ]
        is_recommended = all(alternative[name] == recommended[name] for name in alternative)
        table.add_row(*(f"[bold]{cell}[/]" for cell in cells) if is_recommended else cells)
    out.print(table)
    time = f"{format_duration(3600 * recommended['hours'])} at {recommended['mfu']:.0%} of the peak"
    out.print(f"\n{time}; a checkpoint takes {format_bytes(plan['checkpoint_bytes'])}.\n")
    width = min(out.width, WIDEST)
    # keep an option and its value on one line
    options = re.sub(" (?!--)", "\N{NO-BREAK SPACE}", recommended["command"])
    lines = textwrap.wrap(options, width - 10, break_on_hyphens=False)
    command = " \\\n        ".join(lines).replace("\N{NO-BREAK SPACE}", " ")
    out.print(f"    {command}\n", soft_wrap=True, markup=False)
    for mark, name in (("careful: ", "warnings"), ("- ", "assumptions")):
        for sentence in plan[name]:
            out.print(textwrap.fill(mark + sentence, width, subsequent_indent="  "), markup=False)


def show_beside(out: Console, plans: Sequence[Mapping[str, Any]]) -> None:
    """Print a row for each plan: sizes, the recommended way, and the speed-up over the first."""
    from cloze.core.humanize import format_bytes, format_count
    from cloze.flows.views.terminal import table_of

    hardware = plans[0]["hardware"]
    gpus = f"{hardware['gpus']:,}" if hardware["gpus"] else "this machine's"
    title = f"{format_count(plans[0]['tokens'])} tokens on {gpus} {hardware['name']}"
    columns = ["model", "size", "length", "batch", "ZeRO", "memory", "hours", "GPU-hours"]
    table = table_of([*columns, "speed-up"], right=[*columns[1:], "speed-up"], title=title)
    for plan in plans:
        chosen = plan["chosen"]
        table.add_row(
            plan["model"],
            format_count(plan["parameters"]),
            str(plan["length"]),
            f"{plan['global_batch']:,}",
            f"{chosen['zero']}{'*' if chosen['activation_checkpointing'] else ''}",
            format_bytes(chosen["memory"]["total"]),
            _hours(chosen["hours"]),
            _hours(chosen["gpu_hours"]),
            f"{plans[0]['chosen']['hours'] / chosen['hours']:.2g}x",
        )
    out.print(table)
    recomputed = any(plan["chosen"]["activation_checkpointing"] for plan in plans)
    makers: dict[str, list[str]] = {}
    for plan in plans:
        for text in plan["assumptions"]:
            makers.setdefault(text, []).append(plan["model"])
    for line in (
        *(("* layers are computed again in the backward pass.",) if recomputed else ()),
        *(f"careful: {plan['model']}: {text}" for plan in plans for text in plan["warnings"]),
        *(f"- {', '.join(own)}: {text}" for text, own in makers.items() if len(own) < len(plans)),
        *(f"- {text}" for text, own in makers.items() if len(own) == len(plans)),
    ):  # fmt: skip
        out.print(textwrap.fill(line, min(out.width, WIDEST), subsequent_indent="  "), markup=False)


def _hours(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
