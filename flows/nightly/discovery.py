"""Discovery: the checkpoints below the runs directory, the new ones, and those to evaluate.

Every pretraining counts, finished or in progress, of a run or of `cloze pretrain`. A checkpoint's
key is its training's fingerprint and its path there, `FINGERPRINT/checkpoints/step-00000200`, so a
moved directory makes nothing new.
"""

from __future__ import annotations

import contextlib
import datetime
import posixpath
import re
import zoneinfo
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloze.core import storage
from cloze.core.artifacts import artifact, claim
from cloze.core.artifacts.checkpoints import COMPLETE, STEPS, complete_steps, parse_step
from cloze.core.errors import ClozeError, UsageError
from cloze.core.links import linked
from cloze.core.stages import stage
from cloze.core.stages.worker import LOGS
from cloze.flows.graph.command import run_folders

STAGE = "pretrain"
MAX_ATTEMPTS = 3  # nightly runs in which an evaluation may fail; then the checkpoint is given up
_SKIPPED = {"newest": "not the newest of a training", "milestones": "no milestone"}


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
        selected: new checkpoints to evaluate.
        waiting: checkpoints left for the next run, because of the limit or because the champion,
            which they are compared with, was not evaluated.
        why_skipped: why the others are not evaluated.
        given_up: checkpoints whose evaluation failed too often; they are not new.
        nights: when the night was due that a checkpoint is made up for, by key.
        about: counts of the nights by what happened to them, if some are made up.
    """

    new: tuple[CheckpointInfo, ...]
    selected: tuple[CheckpointInfo, ...]
    waiting: tuple[CheckpointInfo, ...]
    why_skipped: str = ""
    given_up: tuple[CheckpointInfo, ...] = ()
    nights: Mapping[str, float] = field(default_factory=dict)
    about: str = ""

    @property
    def why_given_up(self) -> str:
        """Describe the given up checkpoints by the newest one."""
        one = "".join(item.describe for item in self.given_up[-1:])
        why = f"given up after {MAX_ATTEMPTS} failed evaluations, such as"
        return f"{why} {one} (--since tries again)"

    @property
    def skipped(self) -> list[CheckpointInfo]:
        """New checkpoints that were not requested, such as those between milestones."""
        selected = {item.key for item in (*self.selected, *self.waiting)}
        return [item for item in self.new if item.key not in selected]


def find_checkpoints(runs: Path) -> list[CheckpointInfo]:
    """Return all complete pretraining checkpoints at most two levels below `runs`, oldest first.

    Symbolic links are not followed, but those to artifacts on a store.
    """
    folders = run_folders(runs)
    places = sorted({path for each in folders for path in (*each.glob("*"), *each.glob("*/*"))})
    trainings = [
        (str(steps.parent.resolve()), _run_of(steps.parent.relative_to(runs)))
        for place in places
        for steps in place.glob(STEPS)
        if steps.is_dir() and not _is_hidden_or_link(steps.parent, runs)
    ]
    trainings += [
        (url, _run_of(link.relative_to(runs)))
        for link in filter(Path.is_symlink, places)
        if storage.has_scheme(url := linked(str(link))) and link.name.startswith(STAGE)
    ]
    checkpoints = [item for training, run in trainings for item in _checkpoints_of(training, run)]
    return sorted(checkpoints, key=lambda item: (item.written, item.key))


def _run_of(training: Path) -> str:
    """Return the run of a training's path below the runs, RUN/NODE or a directory of its own."""
    return (training.parent if training.parent.name else training).as_posix()


def _is_hidden_or_link(training: Path, runs: Path) -> bool:
    """Return whether a training needs no listing; a run's links lead to listed artifacts."""
    parts = training.relative_to(runs).parts
    is_link = training.is_symlink() or training.parent.is_symlink()
    return is_link or any(part.startswith(("_", ".")) for part in parts)


def _checkpoints_of(training: str, run: str) -> Iterator[CheckpointInfo]:
    identity = _read_training(training)
    if identity is None:
        return
    fingerprint, build, milestones, inputs = identity
    written_by_step: dict[int, tuple[str, float]] = {}
    for path in complete_steps(training):
        step, written = parse_step(path), storage.mtime(storage.join(path, COMPLETE))
        if step >= 0 and written:  # 0: the training has pruned it
            written_by_step[step] = path, written
    made_from = _made_from(inputs)
    for step, (path, written) in written_by_step.items():
        yield CheckpointInfo(
            key=f"{fingerprint}/{STEPS}/{posixpath.basename(path)}",
            path=path,
            run=run,
            training=training,
            build=build,
            step=step,
            written=written,
            milestone=step in milestones,
            newest=step == max(written_by_step),
            made_from=made_from,
        )


def _read_training(training: str) -> tuple[str, str, set[int], dict[str, str]] | None:
    """Return a pretraining's fingerprint, build id, milestones' steps and inputs.

    None: no pretraining, or a damaged one. The steps of milestones in words are known at its end.
    """
    job = _read_job(training)
    inputs = job.get("inputs") or {}
    with contextlib.suppress(ClozeError):
        if artifact.is_artifact(training):
            manifest = artifact.read_manifest(training)
            if manifest.stage == STAGE:
                words = manifest.summary.get("milestone_words") or {}
                steps = {
                    *(manifest.config.get("milestones") or ()),
                    *map(parse_step, words.values()),
                }
                return manifest.fingerprint, str(job.get("build_id") or ""), steps, inputs
            return None
        unfinished = claim.read(training)
        if unfinished is not None and unfinished.stage == STAGE and unfinished.fingerprint:
            steps = {*((job.get("config") or {}).get("milestones") or ())}
            return unfinished.fingerprint, unfinished.build, steps, inputs
    return None


def _read_job(directory: str) -> dict[str, Any]:
    """Return `job.json` of an artifact; empty if it cannot be read."""
    with contextlib.suppress(ClozeError, OSError):
        return storage.read_json(storage.join(directory, LOGS, "job.json"))
    return {}


def _made_from(inputs: Mapping[str, str]) -> dict[str, str]:
    """Return a training's dataset and that dataset's corpus, if they exist.

    Of a mixture, the first dataset by name counts.
    """
    paths = stage.inputs_of_role("dataset", inputs).values()
    dataset = next((path for path in paths if artifact.is_artifact(path)), None)
    if dataset is None:
        return {}
    corpus = (_read_job(dataset).get("inputs") or {}).get("corpus")
    more = {"corpus": corpus} if corpus and artifact.is_artifact(corpus) else {}
    return {"dataset": dataset, **more}


def choose(
    existing: Sequence[CheckpointInfo],
    seen: Collection[str],
    *,
    checkpoints: Collection[str] = ("newest", "milestones"),
    limit: int = 8,
    failures: Mapping[str, int] | None = None,
) -> CheckpointSelection:
    """Select the checkpoints that a nightly run evaluates.

    Args:
        existing: all checkpoints, oldest first.
        seen: keys of the checkpoints that earlier runs saw.
        checkpoints: `newest` of each training, `milestones`, or `all`.
        limit: maximum number per run. The newest of each training come first, then the oldest.
        failures: number of failed evaluations by key.
    """
    existing = without_copies(existing)
    # Seen ones were evaluated at last, whatever failed before.
    failed = {key for key, count in (failures or {}).items() if count >= MAX_ATTEMPTS} - {*seen}
    new = [item for item in existing if item.key not in failed and item.key not in seen]
    requested = [
        item
        for item in new
        if "all" in checkpoints
        or ("newest" in checkpoints and item.newest)
        or ("milestones" in checkpoints and item.milestone)
    ]
    newest = [item for item in requested if item.newest]
    order = [*reversed(newest), *(item for item in requested if not item.newest)]
    return CheckpointSelection(
        new=tuple(new),
        selected=tuple(order[:limit]),
        waiting=tuple(order[limit:]),
        why_skipped=" and ".join(words for kind, words in _SKIPPED.items() if kind in checkpoints),
        given_up=tuple(item for item in existing if item.key in failed),
    )


def without_copies(existing: Sequence[CheckpointInfo]) -> list[CheckpointInfo]:
    """Return each checkpoint once; a copied run has the same keys, and its original is older."""
    return list({item.key: item for item in reversed(existing)}.values())[::-1]


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
    try:
        if span := re.fullmatch(r"(\d+)([hd])", text):
            since = now - int(span[1]) * (3600 if span[2] == "h" else 86400)
            datetime.datetime.fromtimestamp(since, datetime.timezone.utc)  # there is such a year
            return since
        day = datetime.datetime.fromisoformat(text)
        return (day if day.tzinfo else day.replace(tzinfo=zoneinfo.ZoneInfo(zone))).timestamp()
    except (ValueError, OverflowError) as error:
        raise UsageError(
            f"since ({text!r}) is not a time; give a date such as 2026-11-20, or a duration such "
            f"as 36h or 7d"
        ) from error
