"""Tables of named objects, options of their rows, and documentation of config fields.

A table maps names to references, `module:ATTRIBUTE` or a whole `module`, which are imported on
first use. A new entry is one row in a table and one module.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import new_class
from typing import Any

from pydantic import BaseModel, ConfigDict

from cloze.core.errors import UsageError, did_you_mean


def import_object(reference: str) -> Any:
    """Import the object that `module:name` refers to, or the module if no name is given."""
    module, _, name = reference.partition(":")
    found = importlib.import_module(module)
    return getattr(found, name) if name else found


def find_entry(table: Mapping[str, str], name: str, what: str) -> Any:
    """Import the object in row `name` of a table.

    Args:
        what: kind of the rows, for the message, such as `task`.

    Raises:
        UsageError: the row does not exist; the message suggests the nearest one.
    """
    if name not in table:
        raise UsageError(f"{what} ({name!r}) is unknown; {did_you_mean(name, table)}")
    return import_object(table[name])


# Options that rows of a table define, and configs that combine them.


class Options(BaseModel):
    """Base of the options of one row of a table."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def compose_config_class(
    name: str, base: type[BaseModel], references: Iterable[str | None]
) -> type[BaseModel]:
    """Create a subclass of `base` with the fields of all the option classes.

    Args:
        name: name of the new class.
        base: a config class.
        references: `module:class` of each row's options; rows may share a class, or have None.

    Raises:
        TypeError: two classes declare an option of the same name.
    """
    classes: list[type[BaseModel]] = list(
        dict.fromkeys(import_object(reference) for reference in references if reference)
    )
    return merge_option_classes(name, [*reversed(classes), base], __name__)


def merge_option_classes(name: str, classes: Iterable[type[BaseModel]], module: str) -> type[Any]:
    """Create one class with the fields of all `classes`, as a member of `module`.

    Raises:
        TypeError: two classes declare an option of the same name.
    """
    found = list(dict.fromkeys(classes))
    owners: dict[str, type] = {}
    for one in reversed(found):  # the order of their rows
        for option in one.model_fields:
            owner = next(
                parent for parent in one.__mro__ if option in inspect.get_annotations(parent)
            )
            if owners.setdefault(option, owner) is not owner:
                raise TypeError(
                    f"{owner.__qualname__} and {owners[option].__qualname__} both declare {option};"
                    f" rename one"
                )
    lowest = [
        one
        for one in found
        if not any(other is not one and issubclass(other, one) for other in found)
    ]
    made: type[Any] = new_class(
        name, tuple(lowest), exec_body=lambda namespace: namespace.update(__module__=module)
    )
    return made


# Documentation of config fields: the string literal below a field, read from the source.


def field_docs(model: type[BaseModel]) -> dict[str, str]:
    """Return each field's documentation, inherited if a class only changes the default."""
    found = {}
    for name, field in model.model_fields.items():
        declaring = (base for base in model.__mro__ if name in inspect.get_annotations(base))
        literals = (
            _literals(base.__module__).get(base.__qualname__, {}).get(name) for base in declaring
        )
        if text := field.description or next(filter(None, literals), None):
            found[name] = text if "\n\n" in text else " ".join(text.split())
    return found


@functools.cache
def _literals(module: str) -> Mapping[str, Mapping[str, str]]:
    """Return the literals below fields by qualified class name; empty if there is no source."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (KeyError, OSError):
        return {}
    return {name: dict(_fields(found)) for name, found in _classes(tree, "")}


def _classes(tree: ast.AST, prefix: str) -> Iterator[tuple[str, ast.ClassDef]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield f"{prefix}{node.name}", node
            yield from _classes(node, f"{prefix}{node.name}.")
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _classes(node, f"{prefix}{node.name}.<locals>.")
        elif isinstance(node, ast.stmt):
            yield from _classes(node, prefix)


def _fields(found: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, below in zip(found.body, found.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            match below:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield field.target.id, inspect.cleandoc(text)
