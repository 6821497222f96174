"""Tables that name things by reference, `module:ATTRIBUTE` or a whole `module`, imported when they are asked for.

A new row is one line in such a table and one file: what belongs to the thing is in its own module.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from pipeline.core.errors import UsageError, did_you_mean


def load(reference: str) -> Any:
    """The object that `module:name` refers to, or the module where no name is given."""
    module, _, name = reference.partition(":")
    found = importlib.import_module(module)
    return getattr(found, name) if name else found


def find(table: Mapping[str, str], name: str, what: str) -> Any:
    """What the row `name` of a table refers to.

    Args:
        what: what the rows are, for the message, such as `task`.

    Raises:
        UsageError: there is no such row; the nearest one is told.
    """
    if name not in table:
        raise UsageError(f"{what} ({name!r}) is unknown; {did_you_mean(name, table)}")
    return load(table[name])
