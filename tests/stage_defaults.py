"""The defaults of every stage's config as plain values, and what of a change to them must raise the
stage's version.

    python -m tests.stage_defaults     writes tests/defaults.json; after a version was raised, or to
    guard options that are new

An option at its default is no part of the fingerprint (`StageConfig.identity`), so a changed
default that nobody tells of would take old artifacts for new ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from cloze.core.config import NoFingerprintMark, UnionTagMark, field_types, has_field_marker
from cloze.flows.graph import stages
from cloze.model.families.registry import FAMILIES, config_class

FILE = Path(__file__).with_name("defaults.json")
REQUIRED = "(required)"


def defaults(model: type[BaseModel], prefix: str = "") -> dict[str, Any]:
    """The default of each field that takes part in a fingerprint, those of nested configs by dotted
    name.
    """
    found: dict[str, Any] = {}
    for name, annotation in field_types(model).items():
        field = model.model_fields[name]
        if has_field_marker(model, name, NoFingerprintMark) or has_field_marker(
            model, name, UnionTagMark
        ):  # never counts, or at its default too
            continue
        default = REQUIRED if field.is_required() else field.get_default(call_default_factory=True)
        found[prefix + name] = json.loads(json.dumps(to_jsonable_python(default)))
        for nested in _nested(annotation):
            found |= defaults(nested, f"{prefix}{name}.")
    return found


def _nested(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _nested(argument)


def current() -> dict[str, Any]:
    """`version` and `defaults` by stage, as they are in the code; those of the model families with
    pretraining.
    """
    found: dict[str, Any] = {}
    for name in (*stages.TABLE, *stages.TOOLS):
        stage = stages.stage(name)
        found[name] = {"version": stage.version, "defaults": defaults(stage.config)}
    for family in FAMILIES:
        found["pretrain"]["defaults"] |= defaults(config_class(family), f"model[{family}].")
    return found


def faults(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What must not stay as it is: sentences. New stages and new fields are fine."""
    found = []
    for name, was in recorded.items():
        if name not in now:
            continue
        if now[name]["version"] != was["version"]:
            found.append(
                f"{name}: version {was['version']} became {now[name]['version']}; run python -m "
                f"tests.stage_defaults"
            )
            continue
        for field, default in was["defaults"].items():
            values = now[name]["defaults"]
            if field not in values:
                found.append(f"{name}: field {field} is gone; raise the stage's version")
            elif values[field] != default:
                found.append(
                    f"{name}: default of {field} was {default!r}, is {values[field]!r}; raise the "
                    f"stage's version"
                )
    return found


if __name__ == "__main__":
    FILE.write_text(json.dumps(current(), indent=1, sort_keys=True) + "\n")
