"""The plan of a run: its steps, what each reads, which would run and why; and how one step is run.

An artifact lies at `RUNS/NAME/STAGE-FINGERPRINT`, and the link `RUNS/NAME/STAGE` leads to the newest. The
fingerprints of all stages follow from the config alone, so a plan needs no artifact to exist, and going back
to an earlier config finds its artifacts again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from flows.graph import stages
from flows.graph.config import RunConfig
from pipeline.core import artifact, fingerprints, storage
from pipeline.core.config import StageConfig
from pipeline.core.errors import DataError, UsageError, did_you_mean
from pipeline.core.execute import Result, execute
from pipeline.core.reporting import SILENT, Reporter

STATE = "state.json"
FORCED = "forced"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One stage of a planned run. `why` is empty where nothing is to do."""

    name: str
    config: StageConfig
    inputs: dict[str, str]
    fingerprint: str
    artifact: str
    cached: bool
    why: str
    last_seconds: float | None  # what the stage took the last time, in this run's directory

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
    start: str | None = None,
    only: str | None = None,
    force: Iterable[str] = (),
    begun: Collection[str] = (),
) -> list[Step]:
    """What a run of `config` consists of.

    Args:
        start: run this stage and all after it, whatever is there.
        only: run this stage alone, and plan nothing else; its inputs must be there.
        force: run these stages, whatever is there.
        begun: fingerprints of steps that an earlier try of the same run has begun: `start` and `force` count once.

    Raises:
        UsageError: a name is no stage of this run, or `only` lacks an input.
    """
    names = list(config.sections)
    for name in (start, only, *force):
        if name is not None and name not in names:
            raise UsageError(f"{name!r} is no stage of run {config.name!r}; {did_you_mean(name, names)}")
    forced = {*force, *(names[names.index(start) :] if start else ())}
    if only and only in forced:
        forced = {only}
    directory = run_directory(config)
    before = _manifests(directory, names)
    steps: dict[str, Step] = {}
    for name, section in config.sections.items():
        stage = stages.stage(name)
        inputs, prints = _inputs(name, config, steps)
        fingerprint, parents = stage.lineage(section, prints)
        place = str(directory / f"{name}-{fingerprint[:12]}")
        there = artifact.is_artifact(place) and artifact.read_manifest(place).fingerprint == fingerprint
        remade = [parent for parent in inputs if parent in steps and steps[parent].why]
        why = ""
        if name in forced and fingerprint not in begun:
            why = FORCED
        elif not there:
            why = _why(before.get(name), section, stage.version, parents, remade)
        steps[name] = Step(
            name=name,
            config=section,
            inputs=inputs,
            fingerprint=fingerprint,
            artifact=place,
            cached=not why,
            why=why,
            last_seconds=before[name].seconds if name in before else None,
        )
    if only:
        for parent in steps[only].inputs.values():
            if not storage.exists(parent) or (
                parent in {s.artifact for s in steps.values()} and not artifact.is_artifact(parent)
            ):
                raise UsageError(f"--only {only} needs {Path(parent).name}, which is not there; run the stages before it first")
        return [steps[only]]
    return list(steps.values())


def _inputs(name: str, config: RunConfig, steps: Mapping[str, Step]) -> tuple[dict[str, str], dict[str, str]]:
    """The paths and the fingerprints of a stage's inputs."""
    stage = stages.stage(name)
    paths: dict[str, str] = {}
    prints: dict[str, str] = {}
    for parent in (*stage.inputs, *stage.optional_inputs):
        if parent in steps:
            paths[parent], prints[parent] = steps[parent].artifact, steps[parent].fingerprint
        elif parent == "vocab" and config.tokenizer:
            paths[parent], prints[parent] = config.tokenizer, fingerprints.input_fingerprint(config.tokenizer)
        elif parent in stage.inputs:
            raise UsageError(
                f"stage {name} needs stage {parent}, which the config of run {config.name!r} lacks; add a section {parent}:"
            )
    return paths, prints


def _manifests(directory: Path, names: Iterable[str]) -> dict[str, artifact.Manifest]:
    """What the links of the last run lead to."""
    found = {}
    for name in names:
        try:
            found[name] = artifact.read_manifest(str(directory / name))
        except DataError:
            continue
    return found


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


def run_step(step: Step, config: RunConfig, report: Reporter = SILENT) -> Result:
    """Make one step's artifact, and let the run's link lead to it."""
    result = execute(
        stages.stage(step.name),
        step.config,
        step.inputs,
        step.artifact,
        execution=config.execution,
        force=step.forced,
        report=report,
    )
    _remember(step, config)
    return result


def _remember(step: Step, config: RunConfig) -> None:
    """Point the link beside the artifact at it, atomically, and write down the config that made it."""
    place = Path(step.artifact)
    link, new = place.with_name(step.name), place.with_name(f".{step.name}.{os.getpid()}")
    new.unlink(missing_ok=True)
    new.symlink_to(place.name)
    os.replace(new, link)
    storage.write_bytes(str(run_directory(config) / STATE), (json.dumps({"config": config.dump()}, indent=1) + "\n").encode())


def result_json(result: Result) -> dict[str, Any]:
    """The object that `--json` prints for a stage; output paths are joined to the artifact's."""
    content = result.as_json()
    for key in stages.stage(result.manifest.stage).outputs:
        if isinstance(content.get(key), str):
            content[key] = storage.join(result.artifact, content[key])
    return content
