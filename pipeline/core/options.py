"""Options that rows of a table bring along, and configs that are composed of them.

A masking rule, a pairing or a trainer declares what can be set of it in its own file, as a subclass of `Options`; its row of the
table names that class, and the stage's config takes over its fields. Configs are read by every command, so such a file imports numpy
and its like inside of its functions.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict, create_model

from pipeline.core.registry import load


class Options(BaseModel):
    """Base of the options of one row of a table."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


def composed(name: str, base: type[BaseModel], references: Iterable[str | None]) -> type[BaseModel]:
    """A subclass of `base` with the fields of all the classes of options.

    Args:
        name: of the class.
        base: a config.
        references: `module:class` of the options of each row; rows may share a class, or have none.

    Raises:
        TypeError: two classes declare an option of the same name.
    """
    classes: list[type[Options]] = list(dict.fromkeys(load(reference) for reference in references if reference))
    owners: dict[str, type] = {}
    for found in classes:
        for option in found.model_fields:
            owner = next(parent for parent in found.__mro__ if option in inspect.get_annotations(parent))
            if owners.setdefault(option, owner) is not owner:
                raise TypeError(f"{owner.__qualname__} and {owners[option].__qualname__} both declare {option}; rename one")
    return create_model(name, __base__=(*reversed(classes), base))
