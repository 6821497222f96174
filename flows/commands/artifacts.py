"""Commands on artifacts: `lineage`, `verify` and `champion`."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cloze.core import processes
from cloze.core.errors import UsageError
from cloze.flows.commands.option_overrides import emit, json_option
from cloze.flows.commands.options import Count

if TYPE_CHECKING:
    from cloze.core.artifacts.artifact import Verification
    from cloze.flows.nightly.journal import Champion, Journal


@click.command()
@click.argument("path")
@json_option
def lineage(path: str, as_json: bool) -> None:
    """Show what an artifact was made from.

    PATH is an artifact, or a checkpoint in one. Parents are searched near it.
    """
    from cloze.core.artifacts import artifact, fingerprints

    place = str(Path(path).resolve())
    named = fingerprints.artifact_fingerprint(place) or fingerprints.part_fingerprint(place)
    tree = lineage_tree(named or artifact.read_manifest(place).fingerprint, place)
    if as_json:
        emit(tree)
    else:
        print_tree(tree, 0)


def lineage_tree(fingerprint: str, place: str) -> dict[str, Any]:
    """Return the lineage of an artifact, or of a part of one, as a tree.

    Args:
        fingerprint: fingerprint of the artifact or part.
        place: current or former path; ancestors are searched near it.
    """
    return _ancestors(fingerprint, _Places(Path(place)))


class _Places:
    """Finished and unfinished artifacts near a path by fingerprint; distant ones are read last."""

    def __init__(self, place: Path) -> None:
        self._rest, self._known = _around(place), dict[str, str]()

    def find(self, fingerprint: str) -> str | None:
        from cloze.core.artifacts import fingerprints
        from cloze.core.errors import DataError

        while fingerprint not in self._known:
            directory = next(self._rest, None)
            if directory is None:
                return None
            with contextlib.suppress(DataError):  # a manifest.json of another program
                self._known.setdefault(
                    fingerprints.artifact_fingerprint(str(directory)), str(directory)
                )
        return self._known[fingerprint]


def _around(place: Path) -> Iterator[Path]:
    """Yield the artifact that contains `place`, then artifacts next to it, then others nearby."""
    from cloze.core.artifacts.artifact import BUILDING, MANIFEST
    from cloze.core.artifacts.fingerprints import DEEPEST_PART

    above = [place, *place.parents][: DEEPEST_PART + 1]
    owner = next(
        (
            directory
            for directory in above
            if any((directory / name).exists() for name in (MANIFEST, BUILDING))
        ),
        place,
    )
    yield owner
    for pattern, start in (
        ("*", owner.parent),
        ("*", owner.parent.parent),
        ("*/*", owner.parent.parent),
    ):
        for name in (MANIFEST, BUILDING):
            yield from (
                mark.parent
                for mark in sorted(start.glob(f"{pattern}/{name}"))
                if not mark.parent.is_symlink()
            )


def _ancestors(fingerprint: str, places: _Places) -> dict[str, Any]:
    """Return the metadata of the artifact, or part, with that fingerprint, and of all ancestors."""
    from cloze.core.artifacts import artifact, claim, fingerprints

    place, part = (
        places.find(fingerprints.artifact_fingerprint_of(fingerprint)),
        fingerprints.subpath_of(fingerprint),
    )
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
        return {
            "stage": begun.stage if begun else "",
            **found,
            "unfinished": True,
            "parents": parents,
        }
    manifest = artifact.read_manifest(place)
    parents = {
        name: _ancestors(parent, places) | _files(name, manifest.config)
        for name, parent in manifest.parents.items()
    }
    return {"stage": manifest.stage, **found, "created": manifest.created, "parents": parents}


def _inputs(place: str) -> dict[str, str]:
    """Return the input paths of the unfinished artifact at `place`, by role."""
    from cloze.core.errors import DataError
    from cloze.core.stages.worker import LOGS, Job

    with contextlib.suppress(DataError, OSError, ValueError, TypeError):  # just started
        return dict(Job.read(str(Path(place) / LOGS / "job.json")).inputs)
    return {}


def _files(role: str, config: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the source files or directories that the config names for a parent."""
    _, source, kind = role.partition("source/")
    if source:
        return {
            "files": [
                str(given["path"])
                for given in config.get("sources") or ()
                if given.get("kind") == kind and given.get("path")
            ]
        }
    value = config.get(role)
    return {"files": [value]} if isinstance(value, str) else {}


def print_tree(node: Mapping[str, Any], depth: int, role: str = "") -> None:
    """Print the tree, two spaces per level."""
    stage = node.get("stage", "")
    label = f"{role} ({stage})" if role and stage and role != stage else stage or role
    outside = ", ".join(node.get("files") or ()) or "(outside)"
    place = "/".join(filter(None, (node.get("artifact", outside), node.get("part", ""))))
    told = "  (unfinished)" if node.get("unfinished") else ""
    click.echo(
        f"{'  ' * depth}{label:<{24 - 2 * min(depth, 6)}} {node['fingerprint'][:12]}  {place}{told}"
    )
    for parent, child in node["parents"].items():
        print_tree(child, depth + 1, parent)


@click.command()
@click.argument("path")
@click.option(
    "--threads",
    type=Count(min=1),
    metavar="N",
    help="Number of files to read at once. Default: two per core.",
)
@json_option
@click.pass_context
def verify(ctx: click.Context, path: str, threads: int | None, as_json: bool) -> None:
    """Compare artifacts byte by byte with their manifests.

    PATH is an artifact, or a directory with artifacts below it.
    """
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    from cloze.core.artifacts import artifact
    from cloze.core.artifacts.fingerprints import combine_hashes
    from cloze.flows.views import terminal

    places = artifact.find_artifacts(path)
    sizes = [sum(entry.size for entry in artifact.read_manifest(place).files) for place in places]
    found: dict[str, artifact.Verification] = {}
    columns = (
        TextColumn("[bold cyan]verify"),
        BarColumn(bar_width=28),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.description}", style="dim", markup=False),
    )
    screen = terminal.console()
    with Progress(
        *columns, console=screen, transient=True, disable=not screen.is_terminal
    ) as progress:
        task = progress.add_task("", total=sum(sizes))
        for place in places:
            progress.update(task, description=place)
            found[place] = artifact.verify(
                place,
                threads or 2 * len(processes.available_cpus()),
                lambda count: progress.advance(task, count),
            )
    whole = all(one.ok for one in found.values())
    if as_json:
        emit(_verdict(found, combine_hashes))
    elif whole:
        for place, one in found.items():
            click.echo(f"{place} is whole, content sha256 {one.content_sha256}")
    if not whole:
        for place, one in found.items():
            for error in one.errors:
                click.echo(f"{place}: {error}", err=True)
        ctx.exit(3)


def _verdict(
    found: Mapping[str, Verification], combine: Callable[[Iterable[tuple[str, str]]], str]
) -> dict[str, Any]:
    """Return the `--json` object: of one artifact, or of several under `artifacts`."""
    if len(found) == 1:
        [one] = found.values()
        return {
            "ok": one.ok,
            "content_sha256": one.content_sha256,
            "errors": list(one.errors),
            "bytes": one.bytes,
        }
    return {
        "ok": all(one.ok for one in found.values()),
        "content_sha256": combine((place, one.content_sha256) for place, one in found.items()),
        "errors": [f"{place}: {error}" for place, one in found.items() for error in one.errors],
        "bytes": sum(one.bytes for one in found.values()),
        "artifacts": {
            place: {"ok": one.ok, "content_sha256": one.content_sha256}
            for place, one in found.items()
        },
    }


@click.command()
@click.option("--rollback", is_flag=True, help="Make the previous champion the champion again.")
@click.option(
    "--promote",
    metavar="CHECKPOINT",
    help="Make this checkpoint, or the newest one of a training, the champion.",
)
@click.option(
    "--reason",
    default="by hand",
    show_default=True,
    help="Reason for --promote or --rollback, for the history.",
)
@json_option
def champion(rollback: bool, promote: str | None, reason: str, as_json: bool) -> None:
    """Show the champion and its history, or roll it back.

    The lineage leads back to the source files.
    """
    from cloze.flows.graph import plan
    from cloze.flows.nightly import champion as champions
    from cloze.flows.nightly.journal import Journal

    journal = Journal(plan.runs_directory())
    if rollback and promote:
        raise UsageError("--promote and --rollback exclude each other; give one of them")
    if rollback:
        champions.roll_back(journal, reason)
    if promote:
        champions.promote(journal, promote, reason)
    notes = champions.try_to_sync(journal)
    now = journal.champion()
    content = _content(journal, now)
    for sentence in notes:
        click.echo(sentence, err=True)
    if as_json:
        emit(content)
    else:
        _show(content)


def _content(journal: Journal, now: Champion | None) -> dict[str, Any]:
    from cloze.flows.nightly import champion as champions

    changes = journal.changes()
    history = [
        {
            "time": change.time, "kind": change.kind, "champion": change.champion.describe,
            "fingerprint": change.champion.key,
            "replaced": change.replaced.describe if change.replaced else None, "why": change.why,
        }
        for change in changes
    ]  # fmt: skip
    name, version = os.environ.get("CLOZE_REGISTERED_MODEL") or "cloze", journal.version()
    if now is None:
        empty = dict.fromkeys(
            ("checkpoint", "fingerprint", "run", "step", "since", "why", "replaced", "lineage")
        )
        return {"name": name, "version": None, **empty, "metrics": {}, "history": history}
    replaced = changes[-1].replaced
    return {
        "name": name,
        "version": version,
        "checkpoint": champions.champion_path(journal, now),
        "fingerprint": now.key,
        "run": now.run,
        "step": now.step,
        "metrics": dict(now.scores),
        "since": changes[-1].time,
        "why": changes[-1].why,
        "replaced": {"fingerprint": replaced.key, "run": replaced.run, "step": replaced.step}
        if replaced
        else None,
        "history": history,
        "lineage": lineage_tree(now.key, now.checkpoint),
    }


def _show(content: dict[str, Any]) -> None:

    if content["fingerprint"] is None:
        click.echo(
            "No champion yet; `cloze nightly` evaluates what checkpoints there are and makes the "
            "best one champion."
        )
        return
    version = (
        f", version {content['version']} of {content['name']} in MLflow"
        if content["version"]
        else ", not yet told to MLflow"
    )
    click.echo(f"{content['run']} step {content['step']:,}{version}")
    click.echo(f"  since       {_time(content['since'])}")
    click.echo(f"  why         {content['why']}")
    if content["metrics"]:
        click.echo(
            f"  scores      "
            f"{', '.join(f'{task} {score:.1f}' for task, score in content['metrics'].items())}"
        )
    click.echo(f"  checkpoint  {content['checkpoint'] or 'gone'}")
    if len(content["history"]) > 1:
        click.echo("\nbefore")
        for change in reversed(content["history"][:-1]):
            click.echo(f"  {_time(change['time'])}  {change['champion']}: {change['why']}")
    click.echo("\nmade from")
    print_tree(content["lineage"], 1)


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))
