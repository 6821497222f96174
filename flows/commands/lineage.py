"""`cloze lineage`: what an artifact was made from."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from flows.commands.common import emit, json_option


@click.command()
@click.argument("path")
@json_option
def lineage(path: str, as_json: bool) -> None:
    """Show what the artifact at PATH, or the checkpoint in one, was made from, as far as its parents lie near it."""
    from pipeline.core import artifact, fingerprints

    place = str(Path(path).resolve())
    named = fingerprints.artifact_fingerprint(place) or fingerprints.part_fingerprint(place)
    tree = tree_of(named or artifact.read_manifest(place).fingerprint, place)
    if as_json:
        emit(tree)
    else:
        print_tree(tree, 0)


def tree_of(fingerprint: str, place: str) -> dict[str, Any]:
    """What the artifact, or the part of one, with that fingerprint was made from. Args: place: where it lies or lay."""
    return _ancestors(fingerprint, _Places(Path(place)))


class _Places:
    """The artifacts around a place, finished or not, by fingerprint; farther ones are read only for what nearer ones lack."""

    def __init__(self, place: Path) -> None:
        self._rest, self._known = _around(place), dict[str, str]()

    def find(self, fingerprint: str) -> str | None:
        from pipeline.core import fingerprints
        from pipeline.core.errors import DataError

        while fingerprint not in self._known:
            directory = next(self._rest, None)
            if directory is None:
                return None
            with contextlib.suppress(DataError):  # somebody else's manifest.json
                self._known.setdefault(fingerprints.artifact_fingerprint(str(directory)), str(directory))
        return self._known[fingerprint]


def _around(place: Path) -> Iterator[Path]:
    """The artifact at `place`, or that it is a part of; those beside it; those of the directory above, and of directories beside."""
    from pipeline.core.artifact import MANIFEST
    from pipeline.core.claim import BUILDING
    from pipeline.core.fingerprints import DEEPEST_PART

    above = [place, *place.parents][: DEEPEST_PART + 1]
    owner = next((directory for directory in above if any((directory / name).exists() for name in (MANIFEST, BUILDING))), place)
    yield owner
    for pattern, start in (("*", owner.parent), ("*", owner.parent.parent), ("*/*", owner.parent.parent)):
        for name in (MANIFEST, BUILDING):
            yield from (mark.parent for mark in sorted(start.glob(f"{pattern}/{name}")) if not mark.parent.is_symlink())


def _ancestors(fingerprint: str, places: _Places) -> dict[str, Any]:
    """What is known of the artifact, or the part of one, with that fingerprint, and of all that it was made from."""
    from pipeline.core import artifact, claim, fingerprints

    place, part = places.find(fingerprints.owner_of(fingerprint)), fingerprints.part_of(fingerprint)
    if place is None:
        return {"fingerprint": fingerprint, "parents": {}}
    found = {"artifact": place, "fingerprint": fingerprint, **({"part": part} if part else {})}
    if not artifact.is_artifact(place):
        begun = claim.read(place)
        inputs = {
            role: fingerprints.artifact_fingerprint(path) or fingerprints.part_fingerprint(path)
            for role, path in _inputs(place).items()
        }
        parents = {role: _ancestors(parent, places) for role, parent in inputs.items() if parent}
        return {"stage": begun.stage if begun else "", **found, "unfinished": True, "parents": parents}
    manifest = artifact.read_manifest(place)
    parents = {name: _ancestors(parent, places) | _files(name, manifest.config) for name, parent in manifest.parents.items()}
    return {"stage": manifest.stage, **found, "created": manifest.created, "parents": parents}


def _inputs(place: str) -> dict[str, str]:
    """What the unfinished artifact at `place` is made from, by role."""
    from pipeline.core.errors import DataError
    from pipeline.core.worker import LOGS, Job

    with contextlib.suppress(DataError, OSError, ValueError, TypeError):  # it has only just begun
        return dict(Job.read(str(Path(place) / LOGS / "job.json")).inputs)
    return {}


def _files(role: str, config: Mapping[str, Any]) -> dict[str, list[str]]:
    """The files or directories that a parent of that role stands for, where the config names them: no artifact, but a source."""
    _, source, kind = role.partition("source/")
    if source:
        return {
            "files": [
                str(given["path"]) for given in config.get("sources") or () if given.get("kind") == kind and given.get("path")
            ]
        }
    value = config.get(role)
    return {"files": [value]} if isinstance(value, str) else {}


def print_tree(node: Mapping[str, Any], depth: int, role: str = "") -> None:
    """Print the tree, two blanks a level."""
    stage = node.get("stage", "")
    label = f"{role} ({stage})" if role and stage and role != stage else stage or role
    outside = ", ".join(node.get("files") or ()) or "(outside)"
    place = "/".join(filter(None, (node.get("artifact", outside), node.get("part", ""))))
    told = "  (unfinished)" if node.get("unfinished") else ""
    click.echo(f"{'  ' * depth}{label:<{24 - 2 * min(depth, 6)}} {node['fingerprint'][:12]}  {place}{told}")
    for parent, child in node["parents"].items():
        print_tree(child, depth + 1, parent)
