"""Records in JSON, one a file or one a line, that a disk or a person may have damaged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import NoneType
from typing import Any, TypeGuard

from cloze.core.figures import is_finite

Fields = Mapping[str, type | tuple[type, ...]]  # types by name; with NoneType it may be absent
NUMBER = (int, float)
TEXT_OR_NONE, NUMBER_OR_NONE = (str, NoneType), (int, float, NoneType)


def is_record(content: Any, fields: Fields) -> TypeGuard[dict[str, Any]]:
    """Return whether `content` is an object with these fields, whose numbers are finite."""
    return isinstance(content, dict) and all(
        isinstance(value := content.get(name), types)
        and (isinstance(value, bool) or not isinstance(value, (int, float)) or is_finite(value))
        for name, types in fields.items()
    )


def read_record(text: str | bytes, fields: Fields = {}) -> dict[str, Any] | None:  # noqa: B006
    """Return the JSON object in `text`; None if it is damaged, another value, or lacks a field."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return content if is_record(content, fields) else None
