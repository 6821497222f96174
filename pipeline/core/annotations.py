"""Marks in the types of config fields: where they stand, and a function applied to the values that they mark.

A mark is an object in an `Annotated` type, at any depth: `Annotated[str, Mark()] | None`, `tuple[Annotated[str, Mark()], ...]`, or a
field of a nested pydantic model.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

NAMES_FILES = "names_files"  # a class method of a nested model: whether the values at hand name files at all


def field_types(model: type[BaseModel]) -> dict[str, Any]:
    """The type of each field, with its marks, which pydantic keeps apart from it."""
    fields = model.model_fields.items()
    return {
        name: Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation for name, field in fields
    }


@functools.cache
def is_marked(model: type[BaseModel], name: str, mark: type) -> bool:
    """Whether the field as a whole has the mark, here or where a base class declares it."""
    bases = (base for base in model.__mro__ if issubclass(base, BaseModel) and name in base.model_fields)
    return any(isinstance(found, mark) for base in bases for found in base.model_fields[name].metadata)


def has_mark(annotation: Any, mark: type, _above: tuple[Any, ...] = ()) -> bool:
    """Whether the mark stands anywhere in the type, or in those of a nested model's fields."""
    if _is_model(annotation):
        nested = () if annotation in _above else field_types(annotation).values()
        return any(has_mark(field, mark, (*_above, annotation)) for field in nested)
    if get_origin(annotation) is Annotated:
        inner, *marks = get_args(annotation)
        return any(isinstance(found, mark) for found in marks) or has_mark(inner, mark, _above)
    return any(has_mark(argument, mark, _above) for argument in get_args(annotation))


@functools.cache
def marked_fields(model: type[BaseModel], mark: type) -> tuple[str, ...]:
    """The fields in whose type the mark stands anywhere."""
    return tuple(name for name, annotation in field_types(model).items() if has_mark(annotation, mark))


def map_marked(annotation: Any, value: Any, mark: type, function: Callable[[str], Any]) -> Any:
    """`value`, which needs not fit its type yet, with `function` applied to the strings that the type marks."""
    if _is_model(annotation):
        names_files = getattr(annotation, NAMES_FILES, None)
        if not isinstance(value, Mapping) or (names_files is not None and not names_files(value)):
            return value
        nested = field_types(annotation)
        return {key: map_marked(nested[key], item, mark, function) if key in nested else item for key, item in value.items()}
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        if isinstance(value, str) and any(isinstance(found, mark) for found in arguments[1:]):
            return function(value)
        return map_marked(arguments[0], value, mark, function)
    if origin in (Union, types.UnionType):
        changed = (map_marked(argument, value, mark, function) for argument in arguments)
        return next((found for found in changed if found != value), value)
    if not arguments or not isinstance(origin, type):
        return value
    if issubclass(origin, Mapping):
        if isinstance(value, Mapping):
            return {key: map_marked(arguments[1], item, mark, function) for key, item in value.items()}
        return value
    if isinstance(value, str):  # one, where a field that takes many takes one too
        return map_marked(arguments[0], value, mark, function)
    if isinstance(value, (list, tuple)):
        each = arguments if len(arguments) == len(value) and Ellipsis not in arguments else arguments[:1] * len(value)
        return [map_marked(argument, item, mark, function) for argument, item in zip(each, value, strict=True)]
    return value


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
