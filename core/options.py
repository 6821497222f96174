"""Names of rows in tables, options of rows, and documentation of config fields.

A new entry of a table (`cloze.core.plugins.Table`) is one row and one module.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from pkgutil import resolve_name
from types import new_class
from typing import Any

from pydantic import AfterValidator, BaseModel

from cloze.core.config import Values
from cloze.core.plugins import hint


def known(table: Collection[str], fault: str) -> AfterValidator:
    """Return a validator for names in a table; its message is `fault` and the nearest name."""

    def check(name: str) -> str:
        if name not in table:
            raise ValueError(f"{fault}; {hint(table, name)}")
        return name

    return AfterValidator(check)


# Options that rows of a table define, and configs that combine them.


class Options(Values):
    """Base of the options of one row of a table."""


def options_class(options: type[Options] | str) -> type[Options]:
    """Return the options of a row: the class itself, or the one that `module:class` refers to."""
    loaded: type[Options] = resolve_name(options) if isinstance(options, str) else options
    return loaded


def compose_config_class(
    name: str, base: type[BaseModel], options: Iterable[type[Options] | str | None]
) -> type[BaseModel]:
    """Create a subclass of `base` with the fields of all the option classes.

    `options`: options of each row; rows may share a class, or have None.

    Raises TypeError: two classes declare an option of the same name.
    """
    classes = dict.fromkeys(options_class(each) for each in options if each)
    return merge_option_classes(name, [*reversed(classes), base], __name__)


def merge_option_classes(name: str, classes: Iterable[type[BaseModel]], module: str) -> type[Any]:
    """Create one class with the fields of all `classes`, as a member of `module`.

    Raises TypeError: two classes declare an option of the same name.
    """
    distinct = list(dict.fromkeys(classes))
    owners: dict[str, type] = {}
    for model in reversed(distinct):  # the order of their rows
        for option in model.model_fields:
            owner = _declaring_classes(model, option)[0]
            if owners.setdefault(option, owner) is not owner:
                raise TypeError(
                    f"{owner.__qualname__} and {owners[option].__qualname__} both declare {option};"
                    f" rename one"
                )
    bases = tuple(
        model
        for model in distinct
        if not any(other is not model and issubclass(other, model) for other in distinct)
    )
    return new_class(name, bases, exec_body=lambda body: body.update(__module__=module))


def _declaring_classes(model: type[BaseModel], field: str) -> list[type]:
    """Return the classes that declare the field, the most derived first."""
    return [base for base in model.__mro__ if field in inspect.get_annotations(base)]


# Documentation of config fields: the string literal below a field, read from the source.


def field_docs(model: type[BaseModel]) -> dict[str, str]:
    """Return each field's documentation, inherited if a class only changes the default.

    Lines are as in the source.
    """
    docs = {}
    for name, field in model.model_fields.items():
        literals = (
            _literals(base.__module__).get((base.__qualname__, name))
            for base in _declaring_classes(model, name)
        )
        if text := field.description or next(filter(None, literals), None):
            docs[name] = text
    return docs


@functools.cache
def _literals(module: str) -> Mapping[tuple[str, str], str]:
    """Return the literals below fields by qualified class name and field; empty without source."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (KeyError, OSError):
        return {}
    return {
        (name, field): text for name, body in _classes(tree, "") for field, text in _fields(body)
    }


def _classes(tree: ast.AST, prefix: str) -> Iterator[tuple[str, ast.ClassDef]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield f"{prefix}{node.name}", node
            yield from _classes(node, f"{prefix}{node.name}.")
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _classes(node, f"{prefix}{node.name}.<locals>.")
        elif isinstance(node, ast.stmt):
            yield from _classes(node, prefix)


def _fields(definition: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, below in itertools.pairwise(definition.body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            match below:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield field.target.id, inspect.cleandoc(text)
