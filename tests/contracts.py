"""What each stage takes and gives, as text: inputs, outputs, the values of each option, and where
`--help` shows it.

    python -m tests.contracts     writes tests/contracts.txt

Configs, scripts and saved manifests of users depend on it: it changes on purpose or not at all.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import InputSpec, Stage
from cloze.flows.commands.base.options import EXECUTION, STAGES
from cloze.flows.graph import stages
from cloze.flows.nightly.suite import NightSettings
from cloze.labs.kubernetes.manifest import Options
from cloze.model.families.registry import FAMILIES, config_class
from cloze.model.tasks.table import KINDS

FILE = Path(__file__).with_suffix(".txt")
SAID_ELSEWHERE = {"description", "title"}  # in --help
STAGE_FIELDS = (
    "reads_all_nodes unhashed_files worker parallel unread on_gpu outputs comparison_metrics"
).split()


def _plain(schema: Any) -> Any:
    """A JSON schema without what is said elsewhere."""
    if isinstance(schema, dict):
        kept = ((key, value) for key, value in schema.items() if key not in SAID_ELSEWHERE)
        return {key: _plain(value) for key, value in kept}
    return [_plain(item) for item in schema] if isinstance(schema, list) else schema


def _line(name: str, value: Any) -> str:
    return f"    {name}: {json.dumps(value, ensure_ascii=False)}"


def values_of(config: type[BaseModel]) -> Iterator[str]:
    """A line for each field, those of nested configs by the name of their class."""
    schema = config.model_json_schema()
    for owner, own in {"": schema, **schema.get("$defs", {})}.items():
        prefix = f"{owner}." if owner else ""
        if "properties" not in own:
            yield _line(owner, _plain(own))
        for name, field in own.get("properties", {}).items():
            required = " (required)" if name in own.get("required", ()) else ""
            yield _line(f"{prefix}{name}{required}", _plain(field))


def _input(spec: InputSpec) -> dict[str, Any]:
    usual = InputSpec()
    values = {name: getattr(spec, name) for name in InputSpec.__dataclass_fields__}
    return {name: value for name, value in values.items() if value != getattr(usual, name)}


def contract(stage: Stage) -> Iterator[str]:
    """The lines of a stage; fields at their defaults are left out."""
    for role, spec in stage.inputs.items():
        yield _line(f"reads {role}", _input(spec))
    for name in STAGE_FIELDS:
        if value := getattr(stage, name):
            yield _line(name, sorted(value) if isinstance(value, frozenset) else value)
    yield from values_of(stage.config)
    for row in STAGES:
        if row.partition("/")[0] == stage.name:
            for group, names in STAGES[row].items():
                yield _line(f"--help {group!r}", names)


def lines() -> Iterator[str]:
    for name in (*stages.TABLE, *stages.TOOLS):
        yield from (f"stage {name}", *contract(stages.stage(name)))
    yield from ("execution", *values_of(Execution))
    yield from (_line(f"--help {group!r}", names) for group, names in EXECUTION.items())
    yield from ("kubernetes_options", *values_of(Options))
    yield from ("nightly", *values_of(NightSettings))
    for family in FAMILIES:
        yield from (f"family {family}", *values_of(config_class(family)))
    for kind, row in KINDS.items():
        yield from (
            f"task kind {kind}",
            _line("length", [row.max_length, row.classes]),
            *values_of(row.options),
        )


def recorded(heading: str) -> list[str]:
    """The recorded lines below a heading, such as `stage vocab`."""
    lines = iter(FILE.read_text(encoding="utf-8").splitlines())
    below = itertools.dropwhile(lambda line: line != heading, lines)
    return list(
        itertools.takewhile(lambda line: line.startswith(" "), itertools.islice(below, 1, None))
    )


if __name__ == "__main__":
    FILE.write_text("\n".join(lines()) + "\n", encoding="utf-8")
