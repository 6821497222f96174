"""Why a node of a plan runs: settings, inputs or stage versions that differ from the last build."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from cloze.core.artifacts import artifact, checkpoints, claim, lineage
from cloze.core.artifacts.artifact import Claim, Manifest
from cloze.core.config import StageConfig
from cloze.core.errors import ClozeError
from cloze.flows.graph.nodes import Node

FORCED = "forced"


def reason_to_build(
    before: Manifest | None,
    config: StageConfig,
    version: int,
    parents: Mapping[str, str],
    remade: list[str],
) -> str:
    """Return why a node is built that was built before; a node without a build is new.

    Args:
        before: manifest of the last build.
        config, version, parents: of the coming build.
        remade: inputs that are built before it.
    """
    if before is None:
        return "not made yet"
    if before.version != version:
        return f"stage version {before.version} became {version}"
    current = config.model_dump(mode="json")
    skipped = {*config.path_fields(), *config.watching_fields()}
    defaults = {
        key: to_jsonable_python(field.get_default(call_default_factory=True), fallback=str)
        for key, field in type(config).model_fields.items()
    }
    earlier = {**defaults, **before.config}  # options added since then had their defaults
    changed = [key for key in current if key not in skipped and earlier[key] != current[key]]
    # What a person has set comes first: other fields follow from it.
    changed.sort(key=lambda key: all(_follows(config, each, key) for each in (current, earlier)))
    if changed:
        key = changed[0]
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        old, new = (json.dumps(value) for value in (earlier[key], current[key]))
        values = f" {old} became {new}" if len(old) + len(new) < 60 else " changed"
        return f"{key}{values}{more}"
    inputs = {name for name, _ in parents.items() ^ before.parents.items()}
    if inputs:
        return f"{' and '.join(sorted(inputs))} changed"
    return f"{' and '.join(remade)} runs again" if remade else "not made with these settings yet"


def _follows(config: StageConfig, values: Mapping[str, Any], key: str) -> bool:
    """Return whether a field has the value that the others give it when it is left out."""
    fields = type(config).model_fields  # some are in no dump
    others = {name: values[name] for name in fields if name in values and name != key}
    # it is required, or the others do not stand alone
    with contextlib.suppress(ValueError, ClozeError):
        return bool(type(config)(**others).model_dump(mode="json")[key] == values[key])
    return False


def content_change(begun: Manifest | Claim | None, inputs: Mapping[str, str]) -> str:
    """Return why what was built, or begun, is to be built again by its inputs' content, or ""."""
    then = {} if begun is None else begun.inputs
    changed = artifact.changed_inputs(then, lineage.input_contents(inputs)) if then else []
    return f"{FORCED}: {' and '.join(changed)} has other content than before" if changed else ""


def abandoned_training(directory: Path, node: Node, version: int, own: str) -> str:
    """Return a reason that names the training of `node` that another version of Cloze began.

    Empty if the run's directory has none. A changed stage has another fingerprint, so its training
    starts in the directory `own` and leaves the unfinished one as it is.
    """
    for path in map(str, sorted(directory.glob(f"{node.name}-{'[0-9a-f]' * 12}"))):
        build = claim.read(path) if path != own and claim.is_unfinished(path) else None
        steps = checkpoints.complete_steps(path)
        if build and build.stage == node.stage and build.version != str(version) and steps:
            return (
                f"starts over: another version of Cloze began {Path(path).name}; to keep its "
                f"{checkpoints.parse_step(steps[-1]):,} steps, finish it with that version"
            )
    return ""
