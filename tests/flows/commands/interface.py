"""What each command can be given, as text: arguments and options, their types and defaults.

    python -m tests.flows.commands.interface     writes interface.txt beside it

Options of a stage's fields are named only: `tests/contracts.txt` says what they take.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from cloze.flows import cli
from cloze.flows.commands.base.options import GroupedOption

FILE = Path(__file__).with_suffix(".txt")
USUAL: dict[str, Any] = {
    "nargs": 1, "multiple": False, "required": False, "is_flag": False, "flag_value": None, "count": False,
    "hidden": False, "envvar": None, "default": None, "prompt": None, "secondary_opts": [], "is_eager": False,
}  # fmt: skip
# what differs by the version of click, or says no more than others
UNSAID = {"type_param_type", "type_min_open", "type_max_open", "type_clamp", "type_exists", "type_file_okay",
          "type_dir_okay", "type_writable", "type_readable", "type_allow_dash", "flag_value"}  # fmt: skip


def _parameter(parameter: click.Parameter) -> str:
    if isinstance(parameter, GroupedOption):
        return "/".join([*parameter.opts, *parameter.secondary_opts])
    facts = {name: getattr(parameter, name, usual) for name, usual in USUAL.items()}
    facts |= {f"type_{name}": value for name, value in parameter.type.to_info_dict().items()}
    own = {
        name: value
        for name, value in facts.items()
        if value != USUAL.get(name) and name not in UNSAID and type(value).__name__ != "Sentinel"
    }
    return f"{'/'.join(parameter.opts)} {json.dumps(own, default=str)}"


def _command(command: click.Command, context: click.Context) -> Iterator[str]:
    grouped = []
    command.get_params(context)  # those of fields are added when they are first asked for
    for parameter in command.params:
        line = _parameter(parameter)
        if isinstance(parameter, GroupedOption):
            grouped.append(line)
        else:
            yield f"    {line}"
    if grouped:
        yield f"    of fields: {' '.join(grouped)}"


def lines() -> Iterator[str]:
    """Yield the commands, each above what it can be given."""
    root = click.Context(cli.cloze, info_name="cloze")
    yield from ("cloze", *_command(cli.cloze, root))
    for name in cli.cloze.list_commands(root):
        command = cli.cloze.get_command(root, name)
        assert command is not None
        yield name
        yield from _command(command, click.Context(command, info_name=name, parent=root))


if __name__ == "__main__":
    FILE.write_text("".join(f"{line}\n" for line in lines()), encoding="utf-8")
