"""What the fields of a config say of themselves: the string literal below a field, read from the source when somebody asks.

pydantic's `use_attribute_docstrings` reads it whenever a class is made, in every process, and goes through all loaded modules to find
the class: half of what a worker's start took, for texts that only a command's options show.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from collections.abc import Iterator, Mapping

from pydantic import BaseModel


def descriptions(model: type[BaseModel]) -> dict[str, str]:
    """The text of each field that has one; of a field whose default alone a class changes, that of the class above it."""
    found = {}
    for name, field in model.model_fields.items():
        declaring = (base for base in model.__mro__ if name in inspect.get_annotations(base))
        literals = (_literals(base.__module__).get(base.__qualname__, {}).get(name) for base in declaring)
        if text := field.description or next(filter(None, literals), None):
            found[name] = text
    return found


@functools.cache
def _literals(module: str) -> Mapping[str, Mapping[str, str]]:
    """What stands below fields, by the qualified names of a module's classes; nothing where there is no source."""
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
