"""Options under headings: where `--help` shows them, how they are spelled, parsed and completed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click
from click.shell_completion import CompletionItem

from cloze.core.plugins import Table

Command = TypeVar("Command", bound=Callable[..., Any])

JSON_HELP = "Print one JSON object on standard output, also for an error."

json_option = click.option("--json", "as_json", is_flag=True, help=JSON_HELP)


def emit(value: Mapping[str, Any]) -> None:
    """Print the `--json` object on one line."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def complete_from(names: Callable[[click.Context], Iterable[str]], kind: str = "") -> Completer:
    """Return the completion of an argument from a function that lists its values.

    `kind`: `file` or `dir`: paths are completed, too.
    """

    def complete(
        ctx: click.Context, parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        del parameter
        items = []
        with suppress(Exception):  # a traceback would corrupt the prompt
            items = [CompletionItem(name) for name in names(ctx) if name.startswith(incomplete)]
        return [*items, CompletionItem(incomplete, type=kind)] if kind else items

    return complete


def _target_names(ctx: click.Context) -> list[str]:
    from cloze.flows.run import targets

    return targets.target_names(in_any_run=ctx.info_name == "logs")


complete_targets = complete_from(_target_names, "file")


INPUTS, GENERAL, OTHER = "Inputs", "General", "Other"
HELP_ALL = "flows.commands.help_all"  # key of `ctx.meta`: group or word of --help-all
LONGEST_DEFAULT = 40  # longest default value that `--help` shows, in characters


class GroupedOption(click.Option):
    """Option under a heading of `--help`.

    Args:
        common: shown by plain `--help`; other options by `--help-all` only.
        field_default: default of the config field; displayed, but never passed on.
        set_key: key of `--set` that replaces the option: it is hidden, and works until 0.2.
    """

    def __init__(
        self,
        *names: Any,
        group: str = GENERAL,
        common: bool = True,
        field_default: Any = None,
        set_key: str = "",
        **settings: Any,
    ) -> None:
        super().__init__(*names, **{**settings, "hidden": bool(set_key)})
        self.group, self.common, self.field_default = group, common, field_default
        self.set_key = set_key

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        if self.set_key and self.name in opts and not ctx.resilient_parsing:
            message = f"{self.opts[0]} is going, use --set {self.set_key}=VALUE"
            click.echo(f"cloze: {message}", err=True)
        return super().handle_parse_result(ctx, opts, args)

    def get_help_extra(self, ctx: click.Context) -> Any:
        extra = super().get_help_extra(ctx)
        kind = self.type
        if not (isinstance(kind, click.FloatRange) and None not in (kind.min, kind.max)):
            extra.pop("range", None)  # the error message names the range
        default = self.field_default
        if isinstance(default, bool):
            extra["default"] = "on" if default else "off"
        elif default not in (None, "", ()) and not isinstance(default, dict):
            text = " ".join(map(str, default)) if isinstance(default, tuple) else str(default)
            if len(text) <= LONGEST_DEFAULT:
                extra["default"] = text
        return extra

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        self.hidden = False  # for click, which then has no record
        record = super().get_help_record(ctx)
        self.hidden = bool(self.set_key)
        if record is not None and self.set_key:
            return f"--set {self.set_key}={self.make_metavar(ctx)}", record[1]
        if record is None or not self.secondary_opts:
            return record
        names, _, remainder = record[0].partition(" / ")
        negative, _, metavar = remainder.partition(" ")
        joined = f"--[no-]{names[2:]} {metavar}".rstrip()
        return (joined if negative == f"--no-{names[2:]}" else record[0]), record[1]


class GroupedCommand(click.Command):
    """Command whose `--help` shows the common options under headings; `--help-all` shows all.

    `--help-all=GROUP` shows one group, `--help-all=WORD` the options that contain the word.
    """

    _is_complete = False

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        if not self._is_complete:
            self._is_complete = True
            self.params = [
                *self.all_params(),
                GroupedOption(
                    ["--help-all"],
                    is_flag=False,
                    flag_value="",
                    is_eager=True,
                    expose_value=False,
                    metavar="[GROUP|WORD]",
                    callback=_show_all,
                    help="Show all options and exit, or those of a group or with a word.",
                ),
            ]
        return super().get_params(ctx)

    def all_params(self) -> list[click.Parameter]:
        """Return the declared parameters, and those that are made on first use."""
        return self.params

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        query: str | None = ctx.meta.get(HELP_ALL)
        rows: dict[str, list[tuple[str, str]]] = {}
        total = visible = rare = 0
        groups = []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None or not isinstance(parameter, click.Option):
                continue
            group = getattr(parameter, "group", GENERAL)
            if parameter.hidden:
                rare += 1
                if query and _matches(query, group, record, False):
                    rows.setdefault(group, []).append(record)
                continue
            groups.append(group)
            total += 1
            if _matches(query, group, record, getattr(parameter, "common", True)):
                rows.setdefault(group, []).append(record)
                visible += 1
        for group in sorted(rows, key=(GENERAL, OTHER).__contains__):
            with formatter.section(group):
                formatter.write_dl(rows[group])
        if visible < total:
            names = [
                group.lower() for group in dict.fromkeys(groups) if group not in (GENERAL, OTHER)
            ]
            formatter.write_paragraph()
            formatter.write_text(
                f"{total} options in all: --help-all, or --help-all=GROUP ({', '.join(names)})."
            )
        elif rare:
            formatter.write_paragraph()
            formatter.write_text(
                f"{rare} settings that few need have no option; --set takes them as a config does"
                " (docs/reference/config.md), and --help-all=WORD finds them."
            )


def _matches(query: str | None, group: str, record: tuple[str, str], is_common: bool) -> bool:
    """Check whether help shows an option: by query; for "" all, for None the common ones."""
    if not query:
        return is_common or query is not None
    return query.lower() in f"{group} {' '.join(record)}".lower()


def _show_all(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    del parameter
    if value is not None and not ctx.resilient_parsing:
        ctx.meta[HELP_ALL] = value
        click.echo(ctx.get_help())
        ctx.exit()


@dataclass(frozen=True, slots=True)
class OptionOverride:
    """Spelling of a field's option, where the general rule does not fit.

    Attributes:
        parse: parser from text (with `multiple`, a tuple of texts) to the field's value; raises
            ValueError with the expected form.
        settings: settings of the click option, over those derived from the field.
    """

    name: str
    parse: Callable[[Any], Any] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


def parsing(parse: Callable[[Any], Any]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Return `parse` as the callback of an option that may be absent."""

    def callback(ctx: click.Context, parameter: click.Parameter, value: Any) -> Any:
        if value is None or value == ():
            return None
        try:
            return parse(value)
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, parameter) from None

    return callback


def named_values(
    example: str, names: str = "NAME=VALUE"
) -> Callable[[tuple[str, ...]], dict[str, str]]:
    """Return the parser of `NAME=VALUE` texts; its errors show `example`."""

    def parse(texts: tuple[str, ...]) -> dict[str, str]:
        values = {}
        for text in texts:
            name, _, value = text.partition("=")
            if not name or not value:
                raise ValueError(f"{text!r} must look like {names}, such as {example}")
            values[name] = value
        return values

    return parse


def weights(texts: tuple[str, ...]) -> dict[str, float]:
    """Parse `wiki=2`, `books=1` or `wiki=2,books=1` into weights by name."""
    parse = named_values("wiki=2", "NAME=WEIGHT")
    numbers: dict[str, float] = {}
    for name, value in parse(tuple(split_commas(texts))).items():
        try:
            numbers[name] = float(value)
        except ValueError:
            raise ValueError(
                f"the weight of {name} ({value!r}) is not a number; write wiki=2"
            ) from None
    return numbers


def split_commas(texts: tuple[str, ...]) -> Iterator[str]:
    """Split texts at commas: `mlm,nsp` becomes mlm and nsp."""
    return (word for text in texts for word in text.split(","))


# Heading of each config field in `--help`, by stage: `headings.txt`. A field without a row is under
# "Other", and a test then demands a row.


class Placement(NamedTuple):
    """Heading of an option."""

    group: str
    common: bool = False  # shown by plain `--help`
    rare: bool = False  # `--set` takes the field instead


def _headings() -> dict[str, dict[str, str]]:
    """Return the fields by heading of each stage; `headings.txt` says what they mean."""
    found: dict[str, dict[str, str]] = {}
    for line in Path(__file__).with_name("headings.txt").read_text("utf-8").splitlines():
        if not line.startswith("#"):
            stage, heading, *fields = line.split(" | ")
            found.setdefault(stage, {}).update({heading: fields[0]} if fields else found[heading])
    return found


_HEADINGS = _headings()
SINGLE_DEVICE_FIELDS, EXECUTION = _HEADINGS.pop("device"), _HEADINGS.pop("execution")
STAGES: Table[Mapping[str, str]] = Table("headings", "stage with headings", _HEADINGS)


def placements(stage: str, more: Mapping[str, str] = EXECUTION) -> dict[str, Placement]:
    """Return the place of each field of a stage and of `more`, in the order of `--help`.

    A plug-in's row `STAGE/NAME` has the fields that it adds to a stage.
    """
    by_field: dict[str, Placement] = {}
    added = (STAGES[name] for name in STAGES if name.startswith(f"{stage}/"))
    for table in (STAGES.get(stage, {}), *added, more):
        for group, names in table.items():
            for name in names.split():
                placement = Placement(group, name.startswith("*"), name.startswith("-"))
                by_field.setdefault(name.lstrip("*-"), placement)
    return by_field
