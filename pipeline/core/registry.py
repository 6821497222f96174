"""Tables that name things by `module:attribute`, imported when they are asked for."""

from __future__ import annotations

import importlib
from typing import Any


def load(reference: str) -> Any:
    """The object that `module:name` refers to."""
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)
