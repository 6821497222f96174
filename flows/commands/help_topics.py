"""The command `help` and its topics."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import click
from click.shell_completion import get_completion_class

from cloze.core.errors import UsageError, did_you_mean
from cloze.flows.commands.base.options import HELP_ALL, complete_from, emit, json_option


def _models() -> str:
    """Return a table of the model presets and their sizes."""
    presets = resolve_name("cloze.model.families.registry:presets")
    rows: list[tuple[str, ...]] = [("preset", "family", "layers", "width", "heads", "length")]
    for name, config in presets().items():
        sizes = (
            config.num_hidden_layers,
            config.hidden_size,
            config.num_attention_heads,
            config.max_position_embeddings,
        )
        rows.append((name, config.family, *map(str, sizes)))
    return _columns(rows)


def _tasks() -> str:
    tasks = resolve_name("cloze.model.tasks.table:TASKS")
    return _columns([("task", "kind"), *((name, task.kind) for name, task in tasks.items())])


def _columns(rows: list[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


SHELLS = ("bash", "zsh", "fish")

TEXTS = Path(__file__).with_name("topics")
WRITTEN = "config targets files environment exit-codes json completion"  # files in TEXTS


def _read(name: str) -> str:
    return (TEXTS / f"{name}.txt").read_text(encoding="utf-8").rstrip("\n")


TOPICS: dict[str, Callable[[], str]] = {
    "models": _models,
    "tasks": _tasks,
    **{name: functools.partial(_read, name) for name in WRITTEN.split()},
}


def _subjects(ctx: click.Context) -> list[str]:
    group = ctx.find_root().command
    return [*(group.list_commands(ctx) if isinstance(group, click.Group) else ()), *TOPICS]


@click.command("help")
@click.argument(
    "subject", required=False, metavar="[COMMAND|TOPIC]", shell_complete=complete_from(_subjects)
)
@click.argument("option", required=False, metavar="[OPTION]")
@json_option
@click.pass_context
def help_(ctx: click.Context, subject: str | None, option: str | None, as_json: bool) -> None:
    """Show help on a command, option or topic.

    All options of a COMMAND are shown, or those that contain OPTION. The topic completion takes
    bash, zsh or fish, and prints the script of that shell.
    """
    root = ctx.find_root()
    if subject is None:
        text = root.get_help()
    elif subject == "completion" and option is not None:
        completion = get_completion_class(option) if option in SHELLS else None
        if completion is None:
            raise UsageError(f"shell ({option}) has no completion; name one of {', '.join(SHELLS)}")
        click.echo(completion(root.command, {}, "cloze", "_CLOZE_COMPLETE").source())
        return
    elif subject in TOPICS:
        text = TOPICS[subject]()
    else:
        command: Any = root.command
        subcommand = command.get_command(ctx, subject)
        if subcommand is None:
            near = did_you_mean(subject, _subjects(ctx), "`cloze --help` lists them")
            raise UsageError(f"no command or topic {subject!r}; {near}")
        context = click.Context(subcommand, info_name=subject, parent=root)
        context.meta[HELP_ALL] = option or ""
        text = subcommand.get_help(context)
    if as_json:
        emit({"help": text})
    else:
        click.echo_via_pager(f"{text}\n")
