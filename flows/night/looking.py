"""Which checkpoints there are below the runs directory, which of them are new, and which of those a night evaluates.

Any training counts, finished or going on: of a run, of the verb `pretrain`, of one whose process is dead. A checkpoint is named by its
training's fingerprint and its place there, `FINGERPRINT/checkpoints/step-00000200`, so moving a directory makes nothing new.
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

from pipeline.core import artifact, claim, roles
from pipeline.core.checkpoints import COMPLETE, STEPS, step_of
from pipeline.core.errors import ClozeError, UsageError
from pipeline.core.worker import LOGS

STAGE = "pretrain"
EVERY = "milestone_every"  # of a training's config, as MILESTONES is
NEWEST, MILESTONES, ALL = "newest", "milestones", "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A complete checkpoint.

    Attributes:
        key: what names it, wherever it lies.
        path: its directory, absolute.
        run: the directory below the runs directory.
        training: the training's directory, absolute.
        build: the id of its training's making, and of its run in MLflow; empty: not known.
        written: when it was completed, in Unix seconds.
        milestone: its training was told to keep it.
        newest: no checkpoint of its training is newer.
        made_from: the artifacts that it was trained on, by stage, as far as they are there.
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
    def told(self) -> str:
        """`demo step 200`."""
        return f"{self.run} step {self.step:,}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What a night makes of what it found.

    Attributes:
        new: all that were not looked at before.
        chosen: of these, what is evaluated.
        waiting: what the next night takes up, for this one has its fill.
    """

    new: tuple[Found, ...]
    chosen: tuple[Found, ...]
    waiting: tuple[Found, ...]

    @property
    def passed(self) -> list[Found]:
        """New ones that nobody asked for, such as those between milestones."""
        kept = {found.key for found in (*self.chosen, *self.waiting)}
        return [found for found in self.new if found.key not in kept]


def look(runs: Path) -> list[Found]:
    """All complete checkpoints of pretrainings at most two levels below `runs`, the oldest first; links are not followed."""
    places = [path for pattern in ("*", "*/*") for path in runs.glob(f"{pattern}/{STEPS}") if path.is_dir()]
    found = [item for path in places if not _hidden(path, runs) for item in _of_training(path.parent, runs)]
    return sorted(found, key=lambda item: (item.written, item.key))


def _hidden(path: Path, runs: Path) -> bool:
    """Whether a directory on the way is none of a run, or a link: a run's links lead to artifacts beside them."""
    training = path.parent
    below = training.relative_to(runs)
    return any(part.startswith(("_", ".")) for part in below.parts) or training.is_symlink() or training.parent.is_symlink()


def _of_training(training: Path, runs: Path) -> Iterator[Found]:
    about = _about(training)
    if about is None:
        return
    fingerprint, build, config, inputs = about
    marks = []
    for mark in sorted((training / STEPS).glob(f"step-*/{COMPLETE}")):
        step = step_of(mark.parent.name)
        with contextlib.suppress(FileNotFoundError):  # it is being removed
            if step >= 0:
                marks.append((step, mark.parent, mark.stat().st_mtime))
    made_from = _made_from(inputs)
    milestones, every = {int(step) for step in config.get(MILESTONES) or ()}, config.get(EVERY)
    for step, place, written in marks:
        yield Found(
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
    """The fingerprint, build id, config and inputs of a pretraining; None: it is another stage's, or damaged."""
    job = _job(training)
    inputs = job.get("inputs") or {}
    with contextlib.suppress(ClozeError):
        if artifact.is_artifact(str(training)):
            manifest = artifact.read_manifest(str(training))
            build = str(job.get("build_id") or "")
            return (manifest.fingerprint, build, manifest.config, inputs) if manifest.stage == STAGE else None
        begun = claim.read(str(training))
        if begun is not None and begun.stage == STAGE and begun.fingerprint:
            return begun.fingerprint, begun.build, job.get("config") or {}, inputs
    return None


def _job(place: Path) -> dict[str, Any]:
    """How the artifact at `place` was begun; empty where that is not known."""
    with contextlib.suppress(OSError, ValueError):
        return dict(json.loads((place / LOGS / "job.json").read_text(encoding="utf-8")))
    return {}


def _made_from(inputs: Mapping[str, str]) -> dict[str, str]:
    """The dataset of a training, of a mixture's the first by name, and the corpus of that, if they are still there."""
    found = {}
    there = (path for path in roles.below("dataset", inputs).values() if artifact.is_artifact(path))
    if dataset := next(there, None):
        found["dataset"] = dataset
        corpus = (_job(Path(dataset)).get("inputs") or {}).get("corpus")
        if corpus and artifact.is_artifact(corpus):
            found["corpus"] = corpus
    return found


def choose(
    found: Sequence[Found],
    seen: Collection[str],
    *,
    which: Collection[str] = (NEWEST, MILESTONES),
    limit: int = 8,
    since: float | None = None,
) -> Choice:
    """What a night evaluates.

    Args:
        seen: the keys of those that were looked at before.
        which: `newest` of each training, `milestones`, or `all`.
        limit: the most of a night. The newest of trainings come first, then what has waited longest.
        since: take what was written after that (Unix seconds), seen or not.
    """
    new = [item for item in found if (item.written >= since if since is not None else item.key not in seen)]
    wanted = [
        item for item in new if ALL in which or (NEWEST in which and item.newest) or (MILESTONES in which and item.milestone)
    ]
    heads = [item for item in wanted if item.newest]
    order = [*reversed(heads), *(item for item in wanted if not item.newest)]
    return Choice(new=tuple(new), chosen=tuple(order[:limit]), waiting=tuple(order[limit:]))


def label(run: str, step: int, key: str) -> str:
    """A short name for a checkpoint that can be part of a node's, the same on every night: `demo.200.dcf96134`."""
    return f"{re.sub(r'[^A-Za-z0-9_+]+', '_', run)}.{step}.{key[:8]}"


def parse_since(text: str, now: float, zone: str) -> float:
    """`2026-11-20`, `2026-11-20T18:00`, `36h` or `7d` as Unix seconds.

    Args:
        zone: the time zone of a date without one.

    Raises:
        UsageError: it is none of these.
    """
    span = re.fullmatch(r"(\d+)([hd])", text)
    if span:
        return now - int(span[1]) * (3600 if span[2] == "h" else 86400)
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"since ({text!r}) is no time; give a date such as 2026-11-20, or a span such as 36h or 7d") from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=zoneinfo.ZoneInfo(zone))).timestamp()
