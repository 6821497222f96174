"""Hostfiles as DeepSpeed and MPI have them: `HOST` or `HOST slots=N`, a line each; `#` begins a comment."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pipeline.core.errors import UsageError

_LINE = re.compile(r"(?P<name>[\w.\-:@\[\]]+)(?:\s+slots\s*=\s*(?P<slots>\d+))?(?:\s+max[-_]slots\s*=\s*\d+)?")


@dataclass(frozen=True, slots=True)
class Line:
    """A host. Attributes: slots: the processes that it has room for; None: the file does not say."""

    name: str
    slots: int | None


def read(path: str) -> list[Line]:
    """The hosts in the file's order.

    Raises:
        UsageError: there is no such file, it names no host, a line is not understood, or a host comes twice.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"hostfile ({path}) cannot be read ({getattr(error, 'strerror', None) or error}); check the path"
        ) from error
    found: dict[str, Line] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        content = line.partition("#")[0].strip()
        if not content:
            continue
        match = _LINE.fullmatch(content)
        if match is None or match["slots"] == "0" or content.startswith("-"):
            raise UsageError(f"hostfile ({path}) line {number} is {content!r}; write HOST, or HOST slots=4")
        if match["name"] in found:
            raise UsageError(
                f"hostfile ({path}) line {number} names {match['name']} again; a host has one line, with all its slots"
            )
        found[match["name"]] = Line(match["name"], int(match["slots"]) if match["slots"] else None)
    if not found:
        raise UsageError(f"hostfile ({path}) names no host; write one a line")
    return list(found.values())
