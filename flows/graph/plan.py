"""The plan of a run: its nodes, what each reads, which would run and why; and how one of them is made.

An artifact lies at `RUNS/NAME/NODE-FINGERPRINT`, and the link `RUNS/NAME/NODE` leads to the newest. The
fingerprints of all nodes follow from the config alone, so a plan needs no artifact to exist, and going back
to an earlier config finds its artifacts again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from flows.graph import stages
from flows.graph.config import RunConfig
from flows.graph.nodes import Node, select, with_what_follows, with_what_leads_to
from pipeline.core import artifact, fingerprints, storage
from pipeline.core.artifact import Manifest
from pipeline.core.config import StageConfig
from pipeline.core.errors import DataError, UsageError
from pipeline.core.execute import Result, execute
from pipeline.core.execution import Execution
from pipeline.core.reporting import SILENT, Reporter

FORCED = "forced"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A node of a planned run. `why` is empty where nothing is to do.

    Attributes:
        inputs: paths by role.
        after: the nodes of this plan that have to be made before.
        before: the manifest of what was made the last time, in this run's directory.
    """

    node: Node
    inputs: dict[str, str]
    after: tuple[str, ...]
    fingerprint: str
    artifact: str
    cached: bool
    why: str
    before: Manifest | None = None

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def last_seconds(self) -> float | None:
        """What the node took the last time."""
        return self.before.seconds if self.before else None

    @property
    def forced(self) -> bool:
        return self.why == FORCED


def runs_directory() -> Path:
    """`$CLOZE_RUNS`, by default `./runs`."""
    return Path(os.environ.get("CLOZE_RUNS") or "runs")


def run_directory(config: RunConfig) -> Path:
    return runs_directory() / config.name


def plan(
    config: RunConfig,
    *,
    start: Iterable[str] = (),
    only: Iterable[str] = (),
    until: Iterable[str] = (),
    force: Iterable[str] = (),
    begun: Collection[str] = (),
) -> list[Step]:
    """What a run of `config` consists of, in an order in which every node comes after its inputs.

    `start`, `only`, `until` and `force` name nodes as `flows.graph.nodes.select` understands them.

    Args:
        start: run these nodes and all that need them, whatever is there.
        only: run these nodes alone, and plan nothing else; their inputs must be there.
        until: plan these nodes and what they need, and nothing else.
        force: run these nodes, whatever is there.
        begun: fingerprints of steps that an earlier try of the same run has begun: `start` and `force` count once.

    Raises:
        UsageError: a name is no node of this run, `only` lacks an input, or a checkpoint to go on from was not kept.
    """
    nodes = config.nodes
    forced = select(nodes, force, config.name) | with_what_follows(nodes, select(nodes, start, config.name))
    chosen = select(nodes, only, config.name)
    wanted = select(nodes, until, config.name)
    if wanted:
        led = with_what_leads_to(nodes, wanted)
        nodes = {name: node for name, node in nodes.items() if name in led}
        forced, chosen = forced & led, chosen & led
    if chosen:
        forced &= chosen
    steps: dict[str, Step] = {}
    directory = run_directory(config)
    outside: dict[str, str] = {}  # fingerprints of what is no part of the run
    with fingerprints.remembering():
        for name, node in nodes.items():
            steps[name] = _step(node, directory, steps, outside, name in forced, begun)
    if not chosen:
        return list(steps.values())
    for name in chosen:
        for parent in steps[name].node.after:
            if parent not in chosen and not artifact.is_artifact(steps[parent].artifact):
                place = Path(steps[parent].artifact).name
                raise UsageError(f"--only {name} needs {place}, which is not there; run the stages before it first")
    return [replace(step, after=tuple(n for n in step.after if n in chosen)) for name, step in steps.items() if name in chosen]


def _step(
    node: Node, directory: Path, steps: Mapping[str, Step], outside: dict[str, str], forced: bool, begun: Collection[str]
) -> Step:
    stage, before = stages.stage(node.stage), _manifest(directory / node.name)
    inputs, prints = _inputs(node, steps, outside)
    try:
        fingerprint, parents = stage.lineage(node.config, prints)
    except DataError as error:
        raise DataError(f"{node.name}: {error}") from error
    place = str(directory / f"{node.name}-{fingerprint[:12]}")
    made = _manifest(Path(place))
    why = ""
    if forced and fingerprint not in begun:
        why = FORCED
    elif made is None or made.fingerprint != fingerprint:
        remade = [parent for parent in node.after if steps[parent].why]
        why = _why(before, node.config, stage.version, parents, remade)
    return Step(
        node=node,
        inputs=inputs,
        after=node.after,
        fingerprint=fingerprint,
        artifact=place,
        cached=not why,
        why=why,
        before=before,
    )


def _inputs(node: Node, steps: Mapping[str, Step], outside: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The paths and the fingerprints of a node's inputs."""
    paths: dict[str, str] = {}
    prints: dict[str, str] = {}
    for role, origin in node.inputs.items():
        if origin.node is None:
            if origin.path not in outside:
                try:
                    outside[origin.path] = fingerprints.input_fingerprint(origin.path)
                except DataError as error:
                    raise DataError(f"{node.section}.{role}: {error}") from error
            paths[role], prints[role] = origin.path, outside[origin.path]
            continue
        source = steps[origin.node]
        if not origin.path:
            paths[role], prints[role] = source.artifact, source.fingerprint
            continue
        paths[role] = storage.join(source.artifact, origin.path)
        prints[role] = f"{source.fingerprint}/{origin.path}"
        if source.cached and not storage.exists(paths[role]):
            raise UsageError(
                f"{node.name} goes on from {origin.path} of {source.name}, which was not kept; use another step, or make it again:"
                f" --force {source.name}"
            )
    return paths, prints


def _manifest(place: Path) -> artifact.Manifest | None:
    """That of the artifact at `place`, or where a link there leads to; None: there is none, or it is damaged."""
    try:
        return artifact.read_manifest(str(place)) if artifact.is_artifact(str(place)) else None
    except DataError:
        return None


def _why(
    before: artifact.Manifest | None, config: StageConfig, version: int, parents: Mapping[str, str], remade: list[str]
) -> str:
    if before is None:
        return "not made yet"
    if before.version != version:
        return f"stage version {before.version} became {version}"
    now = config.model_dump(mode="json")
    fields = type(config).model_fields
    skipped = {*config.path_fields(), *config.watching_fields()}
    defaults = {key: to_jsonable_python(fields[key].get_default(call_default_factory=True), fallback=str) for key in now}
    was = {**defaults, **before.config}  # an option that is newer than the artifact was at its default
    changed = [key for key in now if key not in skipped and was[key] != now[key]]
    if changed:
        key = changed[0]
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        old, new = (json.dumps(value) for value in (was[key], now[key]))
        values = f" {old} became {new}" if len(old) + len(new) < 60 else " changed"
        return f"{key}{values}{more}"
    inputs = [name for name in {**parents, **before.parents} if parents.get(name) != before.parents.get(name)]
    if inputs:
        return f"{' and '.join(sorted(inputs))} changed"
    return f"{' and '.join(remade)} runs again" if remade else "not made with these settings yet"


def run_step(step: Step, execution: Execution | None = None, report: Reporter = SILENT) -> Result:
    """Make one step's artifact, and let the run's link lead to it.

    Args:
        execution: how, where that is decided only now; else as the node says.
    """
    result = execute(
        stages.stage(step.node.stage),
        step.node.config,
        step.inputs,
        step.artifact,
        execution=execution or step.node.execution,
        force=step.forced,
        report=report,
    )
    link_to(step)
    return result


def link_to(step: Step) -> None:
    """Point the link beside the artifact, which has the node's name, at it, atomically."""
    place = Path(step.artifact)
    link = place.with_name(step.name)
    if link.is_symlink() and os.readlink(link) == place.name:
        return
    new = place.with_name(f".{step.name}.{os.getpid()}")
    new.unlink(missing_ok=True)
    new.symlink_to(place.name)
    os.replace(new, link)


def result_json(result: Result) -> dict[str, Any]:
    """The object that `--json` prints for a stage; output paths are joined to the artifact's."""
    content = result.as_json()
    for key in stages.stage(result.manifest.stage).outputs:
        if isinstance(content.get(key), str):
            content[key] = storage.join(result.artifact, content[key])
    return content
