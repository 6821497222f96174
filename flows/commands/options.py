"""The options of a stage's verb, made from its config: name, type, choices, bounds and help are said once, at the field.

    steps: int = Field(default=1000, ge=1)        --steps INTEGER         [default: 1000; x>=1]
    precision: Literal["fp32", "bf16"] = "fp32"   --precision [fp32|bf16]
    keep_rejected: bool = False                   --keep-rejected / --no-keep-rejected
    languages: tuple[str, ...] = ()               --languages TEXT        may be repeated
    betas: tuple[float, float] = (0.9, 0.999)     --betas NUMBER NUMBER
    micro_batch: int | Literal["auto"]            --micro-batch INTEGER|auto
    fields: dict[str, str] = {}                   --fields NAME=VALUE     may be repeated

A field of another type has no option of its own; `--set` reaches it. A verb declares the few fields that are spelled otherwise.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin

import annotated_types
import click
from pydantic import BaseModel

from flows.commands.spelling import GroupedOption, Spelled, named_values, parsing
from pipeline.core.annotations import field_types
from pipeline.core.config import InputPathMark
from pipeline.core.descriptions import descriptions

SCALARS: dict[type, click.ParamType[Any]] = {int: click.INT, float: click.FLOAT, str: click.STRING}
METAVARS = {int: "INTEGER", float: "NUMBER", str: "TEXT"}


def field_options(
    model: type[BaseModel],
    prefix: str,
    group: str,
    spelled: Mapping[str, Spelled],
    wanted: Callable[[str], bool] = lambda name: True,
) -> Iterator[GroupedOption]:
    """An option for each field that can have one.

    Args:
        prefix: of the options' parameters in Python, so that fields of several models do not meet.
        spelled: by field.
        wanted: which fields are.
    """
    # where a recipe or a profile fills what is not given, a field's own default may not be the one that counts
    filled = any(found.info.mode == "before" for found in model.__pydantic_decorators__.model_validators.values())
    texts = descriptions(model)
    for name, annotation in field_types(model).items():
        info, spelling = model.model_fields[name], spelled.get(name, Spelled(f"--{name.replace('_', '-')}"))
        settings = _settings(annotation)
        if not wanted(name) or (settings is None and spelling.parse is None):
            continue
        settings = {"help": texts.get(name), **(settings or {}), **spelling.settings}
        if spelling.parse is not None:
            settings |= {"type": click.STRING, "callback": parsing(spelling.parse)}
        switch = f"/--no-{spelling.name.removeprefix('--')}" if settings.pop("switch", False) else ""
        default = None if filled or info.is_required() else info.get_default(call_default_factory=True)
        yield GroupedOption(
            [f"{spelling.name}{switch}", f"{prefix}{name}"], group=group, default=None, field_default=default, **settings
        )


def _settings(annotation: Any) -> dict[str, Any] | None:
    """The settings of a click option for values of a type; None where text on a command line cannot say them."""
    kind, marks = _bare(annotation)
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is bool:
        return {"switch": True}
    if origin is tuple:
        several = arguments[1:] == (Ellipsis,)
        each = [_settings(argument) for argument in (arguments[:1] if several else arguments)]
        if any("type" not in (found or {}) or (found or {}).get("multiple") for found in each):
            return None
        if several:
            return {**(each[0] or {}), "multiple": True}
        metavar = " ".join((found or {}).get("metavar", "") for found in each)
        return {"nargs": len(each), "type": tuple((found or {})["type"] for found in each), "metavar": metavar}
    if origin is dict and arguments == (str, str):
        return {"multiple": True, "metavar": "NAME=VALUE", "callback": parsing(named_values("text=content"))}
    if origin is Literal and all(isinstance(argument, str) for argument in arguments):
        return {"type": click.Choice(arguments)}
    if origin in (Union, types.UnionType):
        return _number_or_word(arguments)
    if any(isinstance(mark, InputPathMark) for mark in marks):
        return {"type": click.STRING, "metavar": "PATH"}
    scalar = SCALARS.get(kind)
    return None if scalar is None else {"type": _bounded(scalar, marks), "metavar": METAVARS[kind]}


class NumberOrWord(click.ParamType[Any]):
    """A number with its bounds, or one of a few words."""

    def __init__(self, number: click.ParamType[Any], words: Sequence[str]) -> None:
        self.number, self.words = number, tuple(words)
        self.name = "|".join(["integer", *words])

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if value in self.words else self.number.convert(value, param, ctx)


def _number_or_word(arguments: Sequence[Any]) -> dict[str, Any] | None:
    """The settings for `int | Literal["auto"]`; None for another union."""
    words = [word for argument in arguments if get_origin(argument) is Literal for word in get_args(argument)]
    numbers = [
        _bare(argument) for argument in arguments if get_origin(argument) is not Literal and argument is not types.NoneType
    ]
    if len(numbers) != 1 or numbers[0][0] is not int or not words:
        return None
    kind, marks = numbers[0]
    return {"type": NumberOrWord(_bounded(SCALARS[kind], marks), words), "metavar": "|".join([METAVARS[kind], *words])}


def _bare(annotation: Any) -> tuple[Any, list[Any]]:
    """The type without `Annotated` and `| None`, and its marks."""
    marks: list[Any] = []
    while True:
        if hasattr(annotation, "__metadata__"):
            marks += annotation.__metadata__
            annotation = annotation.__origin__
            continue
        parts = [part for part in get_args(annotation) if part is not types.NoneType]
        if get_origin(annotation) in (Union, types.UnionType) and len(parts) == 1:
            annotation = parts[0]
            continue
        return annotation, marks


def _bounded(scalar: click.ParamType[Any], marks: list[Any]) -> click.ParamType[Any]:
    """The number's type with the bounds that pydantic will hold it to."""
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
    if not bounds:
        return scalar
    return click.IntRange(**bounds) if scalar is click.INT else click.FloatRange(**bounds)
