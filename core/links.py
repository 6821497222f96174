"""Where links lead: to an artifact in a store, or to a folder."""

from __future__ import annotations

import os
from typing import Any

from cloze.core.object_store import has_scheme


def linked(path: str) -> str:
    """Return the URL that `path` leads to through a run's link to a store; else `path`."""
    head, tail = path.rstrip("/"), ""
    # A link is a part of the path; what is behind it exists in the store alone.
    while not has_scheme(path) and head and not os.path.lexists(head):
        head, _, name = head.rpartition("/")
        tail = f"/{name}{tail}"
    target = os.readlink(head) if os.path.islink(head) else ""
    return f"{target}{tail}" if has_scheme(target) else path


def followed(fs: Any, found: dict[str, Any], above: tuple[str, ...]) -> dict[str, Any]:
    """Return files found, with those in linked folders; a link that leads `above` stays."""
    for path in [path for path, info in found.items() if info["islink"] and os.path.isdir(path)]:
        target, here = os.path.realpath(path), os.path.realpath(os.path.dirname(path))
        if target not in above and not f"{here}/".startswith(f"{target.rstrip('/')}/"):
            del found[path]
            found |= followed(fs, fs.find(path, detail=True), (*above, target))
    return found
