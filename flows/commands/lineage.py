"""`cloze lineage`: what an artifact was made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from flows.commands.common import emit, json_option


@click.command()
@click.argument("path")
@json_option
def lineage(path: str, as_json: bool) -> None:
    """Show what the artifact at PATH was made from, as far as its parents are beside it."""
    from pipeline.core import artifact

    neighbours = {}
    for other in sorted(Path(path).resolve().parent.glob(f"*/{artifact.MANIFEST}")):
        if not other.parent.is_symlink():
            neighbours[artifact.read_manifest(str(other.parent)).fingerprint] = str(other.parent)
    tree = _ancestors(path, neighbours)
    if as_json:
        emit(tree)
    else:
        _print_tree(tree, 0)


def _ancestors(path: str, neighbours: dict[str, str]) -> dict[str, Any]:
    from pipeline.core import artifact

    manifest = artifact.read_manifest(path)
    parents = {}
    for name, fingerprint in manifest.parents.items():
        place = neighbours.get(fingerprint)
        parents[name] = _ancestors(place, neighbours) if place else {"fingerprint": fingerprint, "parents": {}}
    return {
        "stage": manifest.stage, "artifact": path, "fingerprint": manifest.fingerprint, "created": manifest.created, "parents": parents
    }  # fmt: skip


def _print_tree(node: dict[str, Any], depth: int, name: str = "") -> None:
    label = node.get("stage", name)
    click.echo(
        f"{'  ' * depth}{label:<{18 - 2 * min(depth, 5)}} {node['fingerprint'][:12]}  {node.get('artifact', '(outside)')}"
    )
    for parent, child in node["parents"].items():
        _print_tree(child, depth + 1, parent)
