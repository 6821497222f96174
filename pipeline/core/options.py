"""Options that rows of a table bring along, and configs that are composed of them.

A masking rule, a pairing or a trainer declares what can be set of it in its own file, as a subclass of `Options`; its row of the
table names that class, and the stage's config takes over its fields. Configs are read by every command, so such a file imports numpy
and its like inside of its functions.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from types import new_class
from typing import Any

from pydantic import BaseModel, ConfigDict

from pipeline.core.registry import load


class Options(BaseModel):
    """Base of the options of one row of a table."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def composed(name: str, base: type[BaseModel], references: Iterable[str | None]) -> type[BaseModel]:
    """A subclass of `base` with the fields of all the classes of options.

    Args:
        name: of the class.
        base: a config.
        references: `module:class` of the options of each row; rows may share a class, or have none.

    Raises:
        TypeError: two classes declare an option of the same name.
    """
    classes: list[type[BaseModel]] = list(dict.fromkeys(load(reference) for reference in references if reference))
    return joined(name, [*reversed(classes), base], __name__)


def joined(name: str, classes: Iterable[type[BaseModel]], module: str) -> type[Any]:
    """One class with the fields of all of these, for the module of this name.

    Raises:
        TypeError: two classes declare an option of the same name.
    """
    found = list(dict.fromkeys(classes))
    owners: dict[str, type] = {}
    for one in reversed(found):  # the order in which their rows stand
        for option in one.model_fields:
            owner = next(parent for parent in one.__mro__ if option in inspect.get_annotations(parent))
            if owners.setdefault(option, owner) is not owner:
                raise TypeError(f"{owner.__qualname__} and {owners[option].__qualname__} both declare {option}; rename one")
    lowest = [one for one in found if not any(other is not one and issubclass(other, one) for other in found)]
    made: type[Any] = new_class(name, tuple(lowest), exec_body=lambda namespace: namespace.update(__module__=module))
    return made
