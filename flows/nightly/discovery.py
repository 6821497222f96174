"""Discovery: the checkpoints below the runs directory, the new ones, and those to evaluate.

Every pretraining counts, finished or in progress, of a run or of `cloze pretrain`. A checkpoint's
key is its training's fingerprint and its path there, `FINGERPRINT/checkpoints/step-00000200`, so a
moved directory makes nothing new.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import re
import zoneinfo
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloze.core.artifacts import artifact, claim
from cloze.core.artifacts.checkpoints import COMPLETE, STEPS, parse_step
from cloze.core.errors import ClozeError, UsageError
from cloze.core.stages import stage
from cloze.core.stages.worker import LOGS

STAGE = "pretrain"
EVERY = "milestone_every"  # field of a training's config, as is MILESTONES
NEWEST, MILESTONES, ALL = "newest", "milestones", "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointInfo:
    """A complete checkpoint.

    Attributes:
        key: fingerprint of the training and path in it, independent of the directory.
        path: absolute directory.
        run: name of the directory below the runs directory.
        training: absolute directory of the training.
        build: id of the training's build and of its MLflow run; empty: unknown.
        written: time of completion, in Unix seconds.
        milestone: the training's config keeps it for good.
        newest: no checkpoint of the training is newer.
        made_from: paths of the artifacts that it was trained on, by stage, if they exist.
    """

    key: str
    path: str
    run: str
    training: str
    build: str
    step: int
    written: float
    milestone: bool
    newest: bool
    made_from: Mapping[str, str]

    @property
    def describe(self) -> str:
        """Name for people: `demo step 200`."""
        return f"{self.run} step {self.step:,}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSelection:
    """Checkpoints that a nightly run selects.

    Attributes:
        new: all checkpoints that no earlier run has seen.
        chosen: new checkpoints to evaluate.
        waiting: checkpoints left for the next run because of the limit.
    """

    new: tuple[CheckpointInfo, ...]
    chosen: tuple[CheckpointInfo, ...]
    waiting: tuple[CheckpointInfo, ...]

    @property
    def passed(self) -> list[CheckpointInfo]:
        """New checkpoints that were not requested, such as those between milestones."""
        kept = {found.key for found in (*self.chosen, *self.waiting)}
        return [found for found in self.new if found.key not in kept]


def find_checkpoints(runs: Path) -> list[CheckpointInfo]:
    """Return all complete pretraining checkpoints at most two levels below `runs`, oldest first.

    Symbolic links are not followed.
    """
    places = [
        path
        for pattern in ("*", "*/*")
        for path in runs.glob(f"{pattern}/{STEPS}")
        if path.is_dir()
    ]
    found = [
        item
        for path in places
        if not _hidden(path, runs)
        for item in _of_training(path.parent, runs)
    ]
    return sorted(found, key=lambda item: (item.written, item.key))


def _hidden(path: Path, runs: Path) -> bool:
    """Return whether the path is hidden or a link; a run's links lead to listed artifacts."""
    training = path.parent
    below = training.relative_to(runs)
    return (
        any(part.startswith(("_", ".")) for part in below.parts)
        or training.is_symlink()
        or training.parent.is_symlink()
    )


def _of_training(training: Path, runs: Path) -> Iterator[CheckpointInfo]:
    about = _about(training)
    if about is None:
        return
    fingerprint, build, config, inputs = about
    marks = []
    for mark in sorted((training / STEPS).glob(f"step-*/{COMPLETE}")):
        step = parse_step(mark.parent.name)
        with contextlib.suppress(FileNotFoundError):  # it is being removed
            if step >= 0:
                marks.append((step, mark.parent, mark.stat().st_mtime))
    made_from = _made_from(inputs)
    milestones, every = {int(step) for step in config.get(MILESTONES) or ()}, config.get(EVERY)
    for step, place, written in marks:
        yield CheckpointInfo(
            key=f"{fingerprint}/{STEPS}/{place.name}",
            path=str(place.resolve()),
            run=training.relative_to(runs).parts[0],
            training=str(training.resolve()),
            build=build,
            step=step,
            written=written,
            milestone=step in milestones or (every is not None and step % int(every) == 0),
            newest=step == marks[-1][0],
            made_from=made_from,
        )


def _about(training: Path) -> tuple[str, str, dict[str, Any], dict[str, str]] | None:
    """Return a pretraining's fingerprint, build id, config and inputs; None: none or damaged."""
    job = _job(training)
    inputs = job.get("inputs") or {}
    with contextlib.suppress(ClozeError):
        if artifact.is_artifact(str(training)):
            manifest = artifact.read_manifest(str(training))
            build = str(job.get("build_id") or "")
            return (
                (manifest.fingerprint, build, manifest.config, inputs)
                if manifest.stage == STAGE
                else None
            )
        begun = claim.read(str(training))
        if begun is not None and begun.stage == STAGE and begun.fingerprint:
            return begun.fingerprint, begun.build, job.get("config") or {}, inputs
    return None


def _job(place: Path) -> dict[str, Any]:
    """Return `job.json` of the artifact at `place`; empty if it cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        return dict(json.loads((place / LOGS / "job.json").read_text(encoding="utf-8")))
    return {}


def _made_from(inputs: Mapping[str, str]) -> dict[str, str]:
    """Return a training's dataset and that dataset's corpus, if they exist.

    Of a mixture, the first dataset by name counts.
    """
    found = {}
    there = (
        path
        for path in stage.inputs_of_role("dataset", inputs).values()
        if artifact.is_artifact(path)
    )
    if dataset := next(there, None):
        found["dataset"] = dataset
        corpus = (_job(Path(dataset)).get("inputs") or {}).get("corpus")
        if corpus and artifact.is_artifact(corpus):
            found["corpus"] = corpus
    return found


def choose(
    found: Sequence[CheckpointInfo],
    seen: Collection[str],
    *,
    checkpoints: Collection[str] = (NEWEST, MILESTONES),
    limit: int = 8,
    since: float | None = None,
) -> CheckpointSelection:
    """Select the checkpoints that a nightly run evaluates.

    Args:
        seen: keys of the checkpoints that earlier runs saw.
        checkpoints: `newest` of each training, `milestones`, or `all`.
        limit: maximum number per run. The newest of each training come first, then the oldest.
        since: take checkpoints written after this time (Unix seconds), seen or not.
    """
    new = [
        item
        for item in found
        if (item.written >= since if since is not None else item.key not in seen)
    ]
    wanted = [
        item
        for item in new
        if ALL in checkpoints
        or (NEWEST in checkpoints and item.newest)
        or (MILESTONES in checkpoints and item.milestone)
    ]
    heads = [item for item in wanted if item.newest]
    order = [*reversed(heads), *(item for item in wanted if not item.newest)]
    return CheckpointSelection(
        new=tuple(new), chosen=tuple(order[:limit]), waiting=tuple(order[limit:])
    )


def label(run: str, step: int, key: str) -> str:
    """Return a checkpoint's short name for use in node names: `demo.200.dcf96134`."""
    return f"{re.sub(r'[^A-Za-z0-9_+]+', '_', run)}.{step}.{key[:8]}"


def parse_since(text: str, now: float, zone: str) -> float:
    """Parse `2026-11-20`, `2026-11-20T18:00`, `36h` or `7d` into Unix seconds.

    Args:
        zone: time zone of a date without one.

    Raises:
        UsageError: `text` has none of these forms.
    """
    span = re.fullmatch(r"(\d+)([hd])", text)
    if span:
        return now - int(span[1]) * (3600 if span[2] == "h" else 86400)
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(
            f"since ({text!r}) is no time; give a date such as 2026-11-20, or a span such as 36h "
            f"or 7d"
        ) from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=zoneinfo.ZoneInfo(zone))).timestamp()
