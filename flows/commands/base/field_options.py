"""Command-line options made from config fields, and their value types: counts, durations, names."""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from pkgutil import resolve_name
from typing import Any, Literal, Union, get_args, get_origin

import annotated_types
import click
from click.shell_completion import CompletionItem
from pydantic import BaseModel

from cloze.core.config import InputPathMark, field_types
from cloze.core.humanize import parse_count, parse_duration
from cloze.core.options import field_docs
from cloze.flows.commands.base.options import (
    EXECUTION,
    OTHER,
    GroupedOption,
    OptionOverride,
    Placement,
    named_values,
    parsing,
    placements,
)

LONGEST_LIST = 10  # longest list of names in a metavar


class Count(click.IntRange):
    """Integer, also written as 10M, 2.5k or 300e9."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and not value.lstrip("-").isdecimal():
            text, value = value, parse_count(value)
            if getattr(param, "multiple", False) and "," in text:
                self.fail(f"{text!r} has a comma; repeat the option for each number", param, ctx)
            if value is None:
                self.fail(f"{text!r} is not an integer; write 10M, 300e9 or 10000000", param, ctx)
        return super().convert(value, param, ctx)


class FiniteRange(click.FloatRange):
    """Range of numbers; click takes `nan` for a number of any range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


class Duration(FiniteRange):
    """Number in the unit of the option's name, or a text such as 90s, 10m or 1h30m."""

    name = "duration"

    def __init__(self, unit_seconds: float, **bounds: Any) -> None:
        super().__init__(**bounds)
        self.unit_seconds = unit_seconds

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = parse_duration(value) if isinstance(value, str) else None
        if seconds is not None:
            value = seconds / self.unit_seconds
        return super().convert(value, param, ctx)


class NameOf(click.ParamType[str]):
    """Name in a table, which is imported for help and completion; the config validates the value.

    Args:
        reference: `module:ATTRIBUTE` of a collection of names, or of a function that returns one.
        metavar: shown instead of a table that is too long.
    """

    name = "name"

    def __init__(self, reference: str, metavar: str = "NAME") -> None:
        self.reference, self.metavar = reference, metavar

    @property
    def names(self) -> Iterable[str]:
        table = resolve_name(self.reference)
        return list(table() if callable(table) else table)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        names = list(self.names)
        return f"[{'|'.join(names)}]" if len(names) <= LONGEST_LIST else self.metavar

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [CompletionItem(name) for name in self.names if name.startswith(incomplete)]


# Type, bounds, default and help of a stage's options come from the config field.

SCALARS: dict[type, click.ParamType[Any]] = {int: Count(), float: click.FLOAT, str: click.STRING}
METAVARS = {int: "N", float: "X", str: "TEXT"}
METAVAR_OF = {
    "hostfile": "FILE",
    "blocked_words": "FILE",
    "flink_master": "HOST:PORT",
    "worker_pool": "HOST:PORT",
    "runner": "NAME",
    "language": "CODE",
    "keep_languages": "CODE",
    "licences": "SPDX",
    "gpu_ids": "ID",
    "beam_options": "--NAME=VALUE",
    "slurm_options": "--NAME=VALUE",
}
OPTION_OF = {  # repeatable options use the singular of the field's name, except:
    "licences": "--license",
    "dropped_sections": "--drop-section",
    "kept_sections": "--keep-section",
}
TABLES = {  # tables of a field's valid names
    "optimizer": NameOf("cloze.model.train.optimizers:OPTIMIZERS"),
    "schedule": NameOf("cloze.model.train.spec.schedules:SCHEDULES"),
    "launcher": NameOf("cloze.flows.launch.protocol:LAUNCHERS"),
    "recipe": NameOf("cloze.pipeline.dataset.recipes:RECIPES"),
    "pairing": NameOf("cloze.pipeline.dataset.pairings.registry:PAIRINGS"),
    "masking": NameOf("cloze.pipeline.dataset.masking.registry:RULES"),
    "random_from": NameOf("cloze.pipeline.dataset.masking.registry:RANDOM_FROM"),
    "kind": NameOf("cloze.pipeline.vocab.kinds:TRAINERS"),
    "task": NameOf("cloze.model.tasks.table:TASKS"),
    "test_on": NameOf("cloze.model.tasks.table:TASKS"),
    "model": NameOf("cloze.model.families.registry:presets", "PRESET"),
    "family": NameOf("cloze.model.families.registry:FAMILIES"),
}
UNITS = {"_seconds": 1.0, "_minutes": 60.0}


def field_options(
    model: type[BaseModel],
    prefix: str,
    placed: Mapping[str, Placement],
    spelled: Mapping[str, OptionOverride],
    has_option: Callable[[str], bool] = lambda name: True,
    *,
    overriding: bool = False,
    section: str = "",
) -> Iterator[GroupedOption]:
    """Yield an option for each field that can have one, in the order of `placed`.

    Args:
        prefix: prefix of the Python parameter names, to separate the fields of several models.
        placed: heading and level of each field.
        overriding: the options change recorded values, so every switch needs its `--no-`, and
            rare fields have an option, too.
        section: prefix of the fields' keys for `--set`.
    """
    docs, field_kinds, filled = field_docs(model), field_types(model), dict[str, Any]()
    for validator in _fillers(model):  # what a recipe or preset fills in if the user sets nothing
        filled = getattr(model, validator)(filled)
    order = {name: number for number, name in enumerate(placed)}
    for name in sorted(field_kinds, key=lambda name: order.get(name, len(order))):
        info = model.model_fields[name]
        settings = _settings(name, field_kinds[name])
        singular = name.removesuffix("s") if (settings or {}).get("multiple") else name
        usual = OPTION_OF.get(name, f"--{singular.replace('_', '-')}")
        spelling = spelled.get(name) or OptionOverride(usual)
        if not has_option(name) or (settings is None and spelling.parse is None):
            continue
        settings = {"help": docs.get(name), **(settings or {}), **spelling.settings}
        if spelling.parse is not None:
            settings |= {"callback": parsing(spelling.parse)}
            settings.setdefault("type", click.STRING)
        default = None if info.is_required() else info.get_default(call_default_factory=True)
        default = filled.get(name, default)
        switch = ""
        if settings.get("is_flag"):
            has_no = overriding or default is not False or bool(_fillers(model))
            switch = f"/--no-{spelling.name.removeprefix('--')}" if has_no else ""
        placement = placed.get(name, Placement(OTHER))
        yield GroupedOption(
            [f"{spelling.name}{switch}", f"{prefix}{name}"],
            group=placement.group,
            common=placement.common,
            default=None,
            field_default=None if overriding else default,
            set_key=f"{section}{name}" if placement.rare and not overriding else "",
            **settings,
        )


def execution_options(
    prefix: str, stage: str, has_option: Callable[[str], bool]
) -> Iterator[GroupedOption]:
    """Yield the options of `Execution` that a stage reads.

    Stage "" is for a command that changes a recorded execution.
    """
    from cloze.core.stages.execution import LAUNCHER_FIELDS, Execution

    placed = placements(stage, EXECUTION)
    for name in LAUNCHER_FIELDS:  # those of plug-ins have no place yet
        placed.setdefault(name, placed["slurm_options"])
    yield from field_options(
        Execution, prefix, placed, {}, has_option, overriding=not stage, section="run."
    )


def _fillers(model: type[BaseModel]) -> list[str]:
    """Return the validators that fill in values from a recipe or a preset."""
    validators = model.__pydantic_decorators__.model_validators
    return [name for name, validator in validators.items() if validator.info.mode == "before"]


def _settings(name: str, annotation: Any) -> dict[str, Any] | None:
    """Return the click settings of a field's option; None if text cannot express its values."""
    kind, marks = _bare(annotation)
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is bool:
        return {"is_flag": True}
    if origin is tuple:
        is_list = arguments[1:] == (Ellipsis,)
        items = [_settings(name, item) or {} for item in arguments[: 1 if is_list else None]]
        if any("type" not in item or item.get("multiple") for item in items):
            return None
        if is_list:
            return {**items[0], "multiple": True}
        return {
            "nargs": len(items),
            "type": tuple(item["type"] for item in items),
            "metavar": " ".join(item.get("metavar", "") for item in items),
        }
    if origin is dict and arguments == (str, str):
        return {
            "multiple": True,
            "metavar": "NAME=VALUE",
            "callback": parsing(named_values("text=content")),
        }
    if origin is Literal and all(isinstance(argument, str) for argument in arguments):
        return {"type": click.Choice(arguments)}
    if kind is str and name in TABLES:
        return {"type": TABLES[name]}
    if any(isinstance(mark, InputPathMark) for mark in marks):
        return {"type": click.Path(), "metavar": METAVAR_OF.get(name, "PATH")}
    scalar = SCALARS.get(kind)
    if scalar is None:
        return None
    units = [seconds for suffix, seconds in UNITS.items() if name.endswith(suffix)]
    unit_seconds = units[0] if units and kind is float else None
    usual = "NAME=VALUE" if name.endswith("_options") else METAVARS[kind]
    metavar = METAVAR_OF.get(name, usual)
    return {"type": _bounded(scalar, marks, unit_seconds), "metavar": metavar}


def _bare(annotation: Any) -> tuple[Any, list[Any]]:
    """Return the type without `Annotated` and `| None`, and its annotations."""
    marks: list[Any] = []
    while True:
        if hasattr(annotation, "__metadata__"):
            marks += annotation.__metadata__
            annotation = annotation.__origin__
            continue
        members = [member for member in get_args(annotation) if member is not types.NoneType]
        if get_origin(annotation) in (Union, types.UnionType) and len(members) == 1:
            annotation = members[0]
            continue
        return annotation, marks


def _bounded(
    scalar: click.ParamType[Any], marks: list[Any], unit_seconds: float | None = None
) -> click.ParamType[Any]:
    """Return the number type with the bounds that pydantic checks."""
    bounds: dict[str, Any] = {}
    for mark in marks:
        if isinstance(mark, annotated_types.Ge):
            bounds |= {"min": mark.ge}
        elif isinstance(mark, annotated_types.Gt):
            bounds |= {"min": mark.gt, "min_open": True}
        elif isinstance(mark, annotated_types.Le):
            bounds |= {"max": mark.le}
        elif isinstance(mark, annotated_types.Lt):
            bounds |= {"max": mark.lt, "max_open": True}
    if unit_seconds is not None:
        return Duration(unit_seconds, **bounds)
    if isinstance(scalar, Count):
        return Count(**bounds)
    return FiniteRange(**bounds) if bounds and scalar is click.FLOAT else scalar
