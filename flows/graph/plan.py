"""Plan of a run: nodes, inputs, and the reason why a node runs; and the build of one node.

An artifact is in `RUNS/NAME/NODE-FINGERPRINT`, or `STORE/NAME/NODE-FINGERPRINT` on an object store,
and the link `RUNS/NAME/NODE` leads to the newest.
Fingerprints follow from the config alone, so planning needs no artifacts, and a return to an
earlier config reuses its artifacts.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from cloze.core import storage
from cloze.core.artifacts import artifact, checkpoints, claim, fingerprints
from cloze.core.artifacts.artifact import Manifest
from cloze.core.errors import DataError, UsageError
from cloze.core.links import linked
from cloze.core.places import runs_directory
from cloze.core.stages.execute import BuildResult, execute
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import NULL_REPORTER, Reporter
from cloze.flows.graph import stages
from cloze.flows.graph.command import CommandConfig
from cloze.flows.graph.config import RunConfig
from cloze.flows.graph.nodes import (
    Node,
    select_nodes,
    with_ancestors,
    with_descendants,
    with_section,
)
from cloze.flows.graph.reasons import FORCED, abandoned_training, content_change, reason_to_build

PIPELINE = "cloze.pipeline"  # worker of the stages that make data
HASH = f"{PIPELINE}.runners.hashing:hash_by_workers"  # imports Beam


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedNode:
    """A node of a planned run."""

    node: Node
    inputs: dict[str, str]
    depends_on: tuple[str, ...]  # nodes of this plan that must be built before
    fingerprint: str  # hash that decides about reuse
    artifact: str
    cached: bool
    reason: str  # why the node will run; empty if it is cached
    previous: Manifest | None = None  # manifest of the node's last artifact in this run's directory
    resumes_at: int = 0  # checkpoint step from which an unfinished training continues; 0: none
    # an unfinished training, which another version of Cloze began, is left behind
    starts_over: bool = False

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def last_seconds(self) -> float | None:
        return self.previous.seconds if self.previous else None

    @property
    def forced(self) -> bool:
        return self.reason.startswith(FORCED)


def store() -> str:
    """Return `$CLOZE_STORE`, where runs keep their artifacts, or the runs directory."""
    place = os.environ.get("CLOZE_STORE") or str(runs_directory())
    if os.path.isfile(place):
        raise UsageError(f"CLOZE_STORE={place} is a file; name a URL or a directory")
    return place


def run_of(path: str) -> str:
    """Return the name of the run whose artifact is at `path`."""
    name = posixpath.relpath(posixpath.dirname(path), store())
    return posixpath.basename(posixpath.dirname(path)) if name.startswith(".") else name


def plan(
    config: RunConfig | CommandConfig,
    *,
    start: Iterable[str] = (),
    only: Iterable[str] = (),
    until: Iterable[str] = (),
    force: Iterable[str] = (),
    started: Collection[str] = (),
) -> list[PlannedNode]:
    """Return the planned nodes of `config` in topological order.

    `start`, `only`, `until` and `force` are patterns for `cloze.flows.graph.nodes.select_nodes`.

    Args:
        config: a run, or a command as a run of one node.
        start: run these nodes and all that depend on them, even if cached.
        only: plan these nodes alone; their inputs must exist. Nodes that they do not need are not
            looked at.
        until: plan these nodes and all that they depend on.
        force: run these nodes, even if cached. Cached nodes that read them run again only if the
            content differs (`forced_by_inputs`).
        started: fingerprints of nodes that earlier attempts of this run have started; `start` and
            `force` no longer apply to them.

    Raises:
        UsageError: an unknown name, a missing input with `only`, or a checkpoint that was not kept.
    """
    nodes = config.nodes
    start_names = select_nodes(nodes, start, config.name)
    from_start = with_descendants(nodes, start_names)
    only_names = select_nodes(nodes, only, config.name)
    until_names = select_nodes(nodes, until, config.name)
    if isinstance(config, RunConfig) and not (until_names or only_names):
        config.check_scored()
    chosen = with_ancestors(nodes, until_names or nodes) & (only_names or nodes.keys())
    until_or_only = "--until" if until_names else "--only"
    for option, names, reached, other in (
        ("--only", only_names, only_names, "--until"),
        ("--from", start_names, from_start, until_or_only),
    ):
        if names and not reached & chosen:
            text = ", ".join(sorted(names))
            raise UsageError(f"{option} ({text}) has no node of {other}; leave one of them out")
    forced = chosen & (select_nodes(nodes, force, config.name) | from_start)
    steps: dict[str, PlannedNode] = {}
    directory = config.directory
    outside: dict[str, str] = {}  # fingerprints of inputs outside the run
    with fingerprints.hash_cache_session():
        for name in filter(with_ancestors(nodes, chosen).__contains__, nodes):
            is_forced, run = name in forced, config.name
            steps[name] = _step(nodes[name], directory, run, steps, outside, is_forced, started)
    planned = []
    for step in (steps[name] for name in steps if name in chosen):
        for parent in step.depends_on:
            if parent not in chosen and not artifact.is_artifact(steps[parent].artifact):
                raise UsageError(
                    f"--only {step.name} needs {posixpath.basename(steps[parent].artifact)}, which "
                    f"is not there; run the stages before it first"
                )
        depends_on = tuple(parent for parent in step.depends_on if parent in chosen)
        planned.append(replace(step, depends_on=depends_on))
    return planned


def _step(
    node: Node,
    directory: Path,
    run: str,
    steps: Mapping[str, PlannedNode],
    outside: dict[str, str],
    forced: bool,
    started: Collection[str],
) -> PlannedNode:
    stage = stages.stage(node.stage)
    previous = _manifest(node.out or linked(str(directory / node.name)))
    inputs, input_hashes = _inputs(node, steps, outside)
    place = node.out or storage.join(store(), run)

    def hash_files(paths: Sequence[str], stamps: Sequence[fingerprints.Stamp | None]) -> list[str]:
        if stage.worker != PIPELINE:  # a host that trains has no Beam
            return list(fingerprints.hash_by_threads(paths, stamps))
        hashed: list[str] = resolve_name(HASH)(node.execution, place, paths, stamps)
        return hashed

    try:
        with fingerprints.hashing_by(hash_files):
            fingerprint, parents = stage.lineage(node.config, input_hashes)
        node.config.check_data()
    except DataError as error:
        raise _with_location(error, node, node.name) from error
    path = node.out or storage.join(place, f"{node.name}-{fingerprint[:12]}")
    manifest = previous if node.out else _manifest(path)
    reason, resumes_at, abandoned = "", 0, ""
    if forced and fingerprint not in started:
        reason = FORCED
    elif resumes_at := saved_step(path, fingerprint):
        reason = content_change(claim.read(path), inputs)
        resumes_at = 0 if reason else resumes_at
        reason = reason or f"continues from step {resumes_at:,}"
    elif manifest is None or manifest.fingerprint != fingerprint:
        rebuilt = [parent for parent in node.depends_on if steps[parent].reason]
        reason = reason_to_build(previous, node.config, stage.version, parents, rebuilt)
        if not node.out and (previous is None or previous.version != stage.version):
            abandoned = abandoned_training(directory, node, stage.version, path)
            reason = abandoned or reason
    else:
        reason = content_change(manifest, inputs)
    return PlannedNode(
        node=node,
        inputs=inputs,
        depends_on=node.depends_on,
        fingerprint=fingerprint,
        artifact=path,
        cached=not reason,
        reason=reason,
        previous=previous,
        resumes_at=resumes_at,
        starts_over=bool(abandoned),
    )


def forced_by_inputs(step: PlannedNode, results: Mapping[str, BuildResult]) -> PlannedNode:
    """Return the step; forced if it is cached or begun, and an input has other content now."""
    built = any(not results[name].cached for name in step.depends_on if name in results)
    if not built or not (step.cached or step.resumes_at):
        return step
    begun = artifact.find_manifest(step.artifact) or claim.read(step.artifact)
    reason = content_change(begun, step.inputs)
    return replace(step, cached=False, reason=reason, resumes_at=0) if reason else step


def saved_step(directory: str, fingerprint: str) -> int:
    """Return the step of the newest checkpoint of an unfinished training; 0: there is none."""
    if not claim.is_unfinished(directory):
        return 0
    try:
        build_claim = claim.read(directory)
    except DataError:
        return 0
    if build_claim is None or build_claim.fingerprint != fingerprint:
        return 0
    steps = checkpoints.complete_steps(directory)
    return checkpoints.parse_step(steps[-1]) if steps else 0


def _inputs(
    node: Node, steps: Mapping[str, PlannedNode], outside: dict[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the paths and the fingerprints of a node's inputs by role."""
    paths: dict[str, str] = {}
    hashes: dict[str, str] = {}
    for role, origin in node.inputs.items():
        if origin.node is None:
            path = linked(origin.path)
            if path not in outside:
                try:
                    outside[path] = fingerprints.input_fingerprint(path)
                except DataError as error:
                    raise _with_location(error, node, f"{node.section}.{role}") from error
            paths[role], hashes[role] = path, outside[path]
            continue
        source = steps[origin.node]
        if not origin.path:
            paths[role], hashes[role] = source.artifact, source.fingerprint
            continue
        paths[role] = storage.join(source.artifact, origin.path)
        hashes[role] = f"{source.fingerprint}/{origin.path}"
        if source.cached and not storage.exists(paths[role]):
            raise UsageError(
                f"{node.name} continues from {origin.path} of {source.name}, which was not kept; "
                f"use another step, or make it again: --force-node {source.name}"
            )
    return paths, hashes


def _with_location(error: DataError, node: Node, location: str) -> DataError:
    """Prefix an error with its place in the run's config; a command has no config."""
    return error if node.out else DataError(f"{location}: {with_section(str(error), node)}")


def _manifest(path: str) -> artifact.Manifest | None:
    """Return the manifest of the artifact at `path`; None if it is missing or damaged."""
    try:
        return artifact.find_manifest(path)
    except DataError:
        return None


def build_node(
    step: PlannedNode, execution: Execution | None = None, report: Reporter = NULL_REPORTER
) -> BuildResult:
    """Build the artifact of a planned node, and update the run's link to it.

    `execution`: execution settings, if they differ from the node's.
    """
    if step.starts_over:
        report.progress(0, None, "", {"warning": step.reason})
    result = execute(
        stages.executable(step.node.stage),
        step.node.config,
        step.inputs,
        step.artifact,
        execution=execution or step.node.execution,
        force=step.forced,
        report=report,
    )
    if not step.node.out:
        link_to(step)
    return result


def link_to(step: PlannedNode) -> None:
    """Point the link with the node's name, in the run's directory, at the artifact; atomic.

    Of an artifact on a store, the link's target is its URL (`linked`).
    """
    is_remote = storage.has_scheme(step.artifact)
    target = step.artifact if is_remote else posixpath.basename(step.artifact)
    link = runs_directory() / run_of(step.artifact) / step.name
    if link.is_symlink() and os.readlink(link) == target:
        return
    if link.is_dir() and not link.is_symlink():  # a copy has followed the link
        manifest = artifact.find_manifest(str(link))
        if manifest is not None and manifest.fingerprint == step.fingerprint:
            return
        raise UsageError(f"{link} is a directory, where a link belongs; rename or remove it")
    temporary_link = link.with_name(f".{step.name}.{os.getpid()}")
    temporary_link.unlink(missing_ok=True)
    temporary_link.symlink_to(target)
    os.replace(temporary_link, link)


def result_json(result: BuildResult) -> dict[str, Any]:
    """Return the object that `--json` prints for a stage; output paths include the artifact's."""
    content = result.as_json()
    for key in stages.stage(result.manifest.stage).outputs:
        if isinstance(content.get(key), str):
            content[key] = storage.join(result.artifact, content[key])
    return content
