"""How options stand on the command line: under which heading, and in which words where the general rule does not suit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import click

INPUTS, CONFIG, EXECUTION, GENERAL = "Inputs", "Config", "Execution", "General"
GROUPS = (INPUTS, CONFIG, EXECUTION, GENERAL)
LONGEST_DEFAULT = 40  # characters that `--help` shows


class GroupedOption(click.Option):
    """An option under a heading of `--help`. It may show the default of the field that it fills, and sets none itself."""

    def __init__(self, *names: Any, group: str = GENERAL, field_default: Any = None, **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.group, self.field_default = group, field_default

    def get_help_extra(self, ctx: click.Context) -> Any:
        extra = super().get_help_extra(ctx)
        default = self.field_default
        if default not in (None, "", ()) and not isinstance(default, (bool, dict)):
            told = " ".join(map(str, default)) if isinstance(default, tuple) else str(default)
            if len(told) <= LONGEST_DEFAULT:
                extra["default"] = told
        return extra


@dataclass(frozen=True, slots=True)
class Spelled:
    """How a verb spells a field's option where the general rule does not suit its users.

    Attributes:
        name: the option.
        parse: makes the field's value of the text (or, with `multiple`, of the tuple of texts); ValueError tells what is wanted.
        settings: of the click option, in place of those that follow from the field.
    """

    name: str
    parse: Callable[[Any], Any] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


def parsing(parse: Callable[[Any], Any]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """`parse` as the callback of an option that may be absent."""

    def callback(ctx: click.Context, parameter: click.Parameter, value: Any) -> Any:
        if value is None or value == ():
            return None
        try:
            return parse(value)
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, parameter) from None

    return callback


def named_values(example: str, names: str = "NAME=VALUE") -> Callable[[tuple[str, ...]], dict[str, str]]:
    """The parser of `NAME=VALUE` texts; `example` is of what is wanted."""

    def parse(texts: tuple[str, ...]) -> dict[str, str]:
        found = {}
        for text in texts:
            name, _, value = text.partition("=")
            if not name or not value:
                raise ValueError(f"{text!r} must look like {names}, such as {example}")
            found[name] = value
        return found

    return parse


def weights(text: str) -> dict[str, float]:
    """`wiki=2,books=1` -> each name's number."""
    found: dict[str, float] = {}
    for name, value in named_values("wiki=2,books=1", "NAME=WEIGHT,…")(tuple(text.split(","))).items():
        try:
            found[name] = float(value)
        except ValueError:
            raise ValueError(f"{name} has the weight {value!r}, which is no number; write it as wiki=2,books=1") from None
    return found


def comma_separated(text: str) -> list[str]:
    """`mlm,nsp` -> mlm and nsp."""
    return text.split(",")
