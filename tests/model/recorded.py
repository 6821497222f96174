"""What the names of tasks and of models stand for, as it was published.

    python -m tests.model.recorded     writes tests/model/recorded.json: after a name was added, or
    one was meant to stand for something else

A run that names `sst2` or `bert-base` today must read the same columns and build the same network
as it did last year.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from cloze.model.families.registry import presets
from cloze.model.tasks.table import KINDS, TASKS

FILE = Path(__file__).with_name("recorded.json")


def current() -> dict[str, dict[str, Any]]:
    """By table and name, the row as plain values."""
    tables = {
        "kinds": {name: (kind.max_length, kind.classes) for name, kind in KINDS.items()},
        "tasks": {name: asdict(spec) for name, spec in TASKS.items()},
        "models": {
            name: {"family": model.family, **model.model_dump()}
            for name, model in presets().items()
        },
    }
    plain: dict[str, dict[str, Any]] = json.loads(json.dumps(to_jsonable_python(tables)))
    return plain


def _as_text(tables: dict[str, dict[str, Any]]) -> str:
    """JSON with a row a line."""
    parts = []
    for table, rows in tables.items():
        lines = [f'"{name}": {json.dumps(rows[name], sort_keys=True)}' for name in sorted(rows)]
        parts.append(f'"{table}": {{\n' + ",\n".join(lines) + "\n}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    FILE.write_text(_as_text(current()))
