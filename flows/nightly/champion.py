"""The champion: named by the journal, its files kept next to it, followed by MLflow's alias."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from cloze.core import storage
from cloze.core.artifacts import fingerprints
from cloze.core.artifacts.checkpoints import STEPS, is_checkpoint
from cloze.core.artifacts.claim import BUILDING, Claim
from cloze.core.errors import ClozeError, UsageError
from cloze.flows.nightly.discovery import STAGE, CheckpointInfo, find_checkpoints
from cloze.flows.nightly.journal import CHAMPION, REGISTERED, Champion, Journal
from cloze.flows.tracking.metadata import user_name
from cloze.flows.tracking.models import RUN_NAME

if TYPE_CHECKING:
    from cloze.flows.tracking.model_registry import Registry

COPIES = "champions"  # subdirectory of the journal's directory
KEPT = 3  # champions whose files are kept for rollbacks
TRAINING = "training"  # folder of a checkpoint that only resuming needs


def champion_path(journal: Journal, champion: Champion) -> str | None:
    """Return the champion's checkpoint or else the kept copy; None: both are gone."""
    for path in (champion.checkpoint, str(_copy(journal, champion))):
        if path and is_checkpoint(path):
            return path
    return None


def keep_champion_files(journal: Journal, champion: Champion) -> None:
    """Link the champion's files next to the journal, and remove those of older champions.

    The training may prune its checkpoint; hard links use no extra space until then. The copy's
    claim names the training, so the copy has the checkpoint's fingerprint and cached results stay
    valid. The claim is written first: after a kill, a copy without a claim would never get one.
    """
    target = _copy(journal, champion)
    if is_checkpoint(champion.checkpoint) or target.exists():
        fingerprint = fingerprints.artifact_fingerprint_of(champion.key)
        claim = Claim(stage=STAGE, fingerprint=fingerprint, build=champion.build)
        storage.write_bytes(
            str(target.parent.parent / BUILDING), json.dumps(asdict(claim)).encode()
        )
    if is_checkpoint(champion.checkpoint) and not target.exists():
        temporary = target.with_name(f"_{target.name}.{os.getpid()}")
        ignored = shutil.ignore_patterns(TRAINING)
        shutil.copytree(champion.checkpoint, temporary, copy_function=_link, ignore=ignored)
        temporary.rename(target)
    current = {_copy(journal, change.champion) for change in journal.changes()[-KEPT:]} | {target}
    copies = (journal.directory / COPIES).resolve()
    for path in [*copies.glob(f"*/{STEPS}/*"), *copies.glob("*")]:
        if not any(path == copy or path in copy.parents for copy in current):
            shutil.rmtree(path, ignore_errors=True)


def _copy(journal: Journal, champion: Champion) -> Path:
    """Return the directory for the copy of the champion's files; it may not exist."""
    name = fingerprints.subpath_of(champion.key).rpartition("/")[2] or "checkpoint"
    return (journal.directory / COPIES / champion.key[:12]).resolve() / STEPS / name


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without hard links
        shutil.copy2(source, target)
    return target


def as_champion(checkpoint: CheckpointInfo, scores: Mapping[str, float], why: str) -> Champion:
    """Return a checkpoint as the new champion; `scores` are hundredths by task."""
    return Champion(
        key=checkpoint.key,
        checkpoint=checkpoint.path,
        run=checkpoint.run,
        step=checkpoint.step,
        build=checkpoint.build,
        made_from=dict(checkpoint.made_from),
        scores=scores,
        since=time.time(),
        why=why,
    )


def sync_alias(journal: Journal, registry: Registry) -> None:
    """Register the champion in MLflow, if it is not registered, and set the alias to it.

    Raises:
        ClozeError: MLflow does not answer; or the champion's files are gone and were never
            registered.
    """
    champion = journal.champion()
    if champion is None:
        return
    path = champion_path(journal, champion)
    version = registry.find(champion.key)
    if version is None:
        if path is None:
            raise ClozeError(
                f"the champion's checkpoint {champion.checkpoint} is gone and was never "
                f"registered in MLflow; roll back or promote another checkpoint"
            )
        version = registry.register(
            path,
            fingerprint=champion.key,
            metrics=_metrics(champion.scores),
            tags={RUN_NAME: champion.run, "cloze.step": str(champion.step)},
            step=champion.step,
            build=champion.build or None,
        )
    registry.set_champion(version)
    if journal.version() != version:
        journal.append(
            {"kind": REGISTERED, "time": time.time(), "key": champion.key, "version": version}
        )


def log_scores(registry: Registry, checkpoint: CheckpointInfo, scores: Mapping[str, float]) -> None:
    """Log a checkpoint's scores to its model version, if its training registered one.

    Raises:
        ClozeError: MLflow does not answer.
    """
    if registry.find(checkpoint.key) is not None:
        registry.register(
            checkpoint.path,
            fingerprint=checkpoint.key,
            metrics=_metrics(scores),
            step=checkpoint.step,
            build=checkpoint.build or None,
        )


def _metrics(scores: Mapping[str, float]) -> dict[str, float]:
    """Return the scores under names that MLflow accepts."""
    return {
        f"night/{re.sub('[^A-Za-z0-9_./: -]', '', task)}": score for task, score in scores.items()
    }


def try_to_sync(journal: Journal) -> list[str]:
    """Call `sync_alias` unless a nightly run is in progress or MLflow fails; return warnings."""
    from cloze.flows.tracking.model_registry import Registry

    if journal.champion() is None:
        return []
    try:
        with journal.lease():
            sync_alias(journal, Registry(journal.directory.parent))
    except ClozeError as error:
        return [alias_warning(error, journal)]
    return []


def alias_warning(error: ClozeError, journal: Journal) -> str:
    """Return a warning: the alias could not be set. It omits the client's detail in brackets."""
    return (
        f"{str(error).partition(' (')[0]}; MLflow's alias is out of date until it answers, "
        f"{journal.path} names the champion"
    )


def promote(journal: Journal, checkpoint: str, why: str) -> Champion:
    """Make a checkpoint champion by hand, without the promotion gate.

    Args:
        checkpoint: directory of a checkpoint below the runs directory, or of a training, for its
            newest checkpoint.

    Raises:
        UsageError: the checkpoint does not exist or is the champion, or a nightly run is in
            progress.
    """
    path, runs = Path(checkpoint).resolve(), journal.directory.parent
    candidate = next(
        (
            item
            for item in find_checkpoints(runs)
            if Path(item.path) == path or (Path(item.training) == path and item.newest)
        ),
        None,
    )
    if candidate is None:
        raise UsageError(
            f"{checkpoint} is not a complete checkpoint of a pretraining in {runs}; give one, such "
            f"as RUN/pretrain"
        )
    with journal.lease():
        reigning = journal.champion()
        if reigning is not None and reigning.key == candidate.key:
            raise UsageError(
                f"{reigning.describe} is the champion already; give another checkpoint"
            )
        scores: dict[str, float] = {}
        for night in journal.nights():
            for result in night["results"]:
                if result["key"] == candidate.key:
                    scores = {
                        task: round(100 * score["mean"], 2)
                        for task, score in result["scores"].items()
                    }
        promoted = as_champion(candidate, scores, f"{why} ({_user()})")
        keep_champion_files(journal, promoted)
        journal.append({"kind": CHAMPION, "time": promoted.since, "champion": asdict(promoted)})
    return promoted


def roll_back(journal: Journal, why: str) -> Champion:
    """Make the champion's predecessor champion again.

    Raises:
        UsageError: there is no predecessor, or a nightly run is in progress.
    """
    with journal.lease():
        return journal.rollback(why, _user(), time.time())


def _user() -> str:
    return f"{user_name()}@{socket.gethostname()}"
