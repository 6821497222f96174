"""The champion: its weights are kept, MLflow's alias follows the journal, and its lineage leads back to the source files."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from flows.night.journal import CHAMPION, REGISTERED, ROLLBACK, Champion, Journal
from flows.tracking.models import RUN_NAME
from flows.tracking.spool import DIRECTORY
from pipeline.core.checkpoints import is_checkpoint
from pipeline.core.errors import ClozeError, UsageError

if TYPE_CHECKING:
    from flows.night.looking import Found
    from flows.tracking.registry import Registry, Version

COPIES = "champions"  # below the journal's directory
KEPT = 3  # champions whose weights are kept: for rollbacks
TRAINING = "training"  # of a checkpoint: what only resuming needs


def place(journal: Journal, champion: Champion) -> str | None:
    """Where the champion's weights are: where its training left them, else our copy; None: they are gone."""
    for path in (champion.checkpoint, str(_copy(journal, champion))):
        if path and is_checkpoint(path):
            return path
    return None


def keep(journal: Journal, champion: Champion) -> None:
    """Link the champion's files beside the journal, for its training may remove it; older champions' go.

    The bytes are on the disk once as long as the training keeps them too.
    """
    target = _copy(journal, champion)
    if is_checkpoint(champion.checkpoint) and not target.exists():
        new = target.with_name(f".{target.name}.{os.getpid()}")
        shutil.copytree(champion.checkpoint, new, copy_function=_link, ignore=shutil.ignore_patterns(TRAINING))
        new.rename(target)
    kept = {_copy(journal, change.champion) for change in journal.changes()[-KEPT:]} | {target}
    for old in target.parent.iterdir() if target.parent.is_dir() else ():
        if old not in kept:
            shutil.rmtree(old, ignore_errors=True)


def _copy(journal: Journal, champion: Champion) -> Path:
    fingerprint, _, rest = champion.key.partition("/")
    return (journal.directory / COPIES / f"{fingerprint[:12]}-{rest.rpartition('/')[2] or 'checkpoint'}").resolve()


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)
    return target


def adopt(journal: Journal, registry: Registry) -> Champion | None:
    """Where somebody has moved MLflow's alias since the journal's champion was told to it, that counts: the new champion.

    Raises:
        ClozeError: MLflow does not answer.
    """
    ours, alias = journal.champion(), registry.champion()
    if alias is None or (ours is not None and (journal.version() is None or ours.key == alias.fingerprint)):
        return None
    found = _from_version(alias)
    journal.append({"kind": CHAMPION, "time": found.since, "champion": found.as_json(), "version": alias.number})
    return found


def tell(journal: Journal, registry: Registry) -> Version | None:
    """Bring MLflow's alias in line with the journal. Returns the champion's version where something was done.

    Raises:
        ClozeError: MLflow does not answer, or the champion's weights are gone and MLflow has none of them.
    """
    champion = journal.champion()
    if champion is None or journal.version() is not None:
        return None
    path = place(journal, champion)
    if path is None and registry.find(champion.key) is None:
        raise ClozeError(
            f"the champion's checkpoint {champion.checkpoint} is gone, so MLflow cannot be given it; roll back or wait for the next"
        )
    version = registry.register(
        path or champion.checkpoint,
        fingerprint=champion.key,
        metrics=_metrics(champion.scores),
        tags={RUN_NAME: champion.run, "cloze.step": str(champion.step)},
        step=champion.step,
        build=champion.build or None,
    )
    alias = registry.champion()
    if alias is None or alias.number != version.number:
        last = journal.changes()[-1]
        if not (last.kind == ROLLBACK and _rolled_back(registry, version, last.why)):
            registry.promote(version, last.why)
    journal.append({"kind": REGISTERED, "time": time.time(), "key": champion.key, "version": version.number})
    return version


def log_scores(registry: Registry, found: Found, scores: Mapping[str, float]) -> None:
    """Give a checkpoint's scores to its version, if MLflow has one of it: trainings register what they keep.

    Raises:
        ClozeError: MLflow does not answer.
    """
    if registry.find(found.key) is not None:
        registry.register(
            found.path, fingerprint=found.key, metrics=_metrics(scores), step=found.step, build=found.build or None
        )


def _metrics(scores: Mapping[str, float]) -> dict[str, float]:
    """By names that MLflow takes."""
    return {f"night/{re.sub('[^A-Za-z0-9_./: -]', '', task)}": score for task, score in scores.items()}


def settle(journal: Journal) -> list[str]:
    """`adopt` and `tell`, as far as MLflow answers and no night is going on. Returns what the user should know, a sentence each."""
    from flows.tracking.registry import Registry

    runs = journal.directory.parent
    if journal.champion() is None and not (runs / DIRECTORY).exists():
        return []
    told = []
    try:
        with journal.lease():
            registry = Registry(runs)
            found = adopt(journal, registry)
            told += [f"{found.why}; it is the champion now"] if found else []
            tell(journal, registry)
    except ClozeError as error:
        told.append(f"{in_short(error)}; until it does, the champion is what {journal.path} says")
    return told


def roll_back(journal: Journal, why: str) -> Champion:
    """Make the champion's predecessor champion again.

    Raises:
        UsageError: there is none, or a night is going on.
    """
    with journal.lease():
        return journal.rollback(why, f"{getpass.getuser()}@{socket.gethostname()}", time.time())


def _rolled_back(registry: Registry, version: Version, why: str) -> bool:
    """Whether a rollback in MLflow leads to that version."""
    try:
        return registry.rollback(why).number == version.number
    except UsageError:  # MLflow knows of no champion before
        return False


def _from_version(version: Version) -> Champion:
    step = version.tags.get("cloze.step", "0")
    return Champion(
        key=version.fingerprint,
        checkpoint=version.checkpoint,
        run=version.tags.get(RUN_NAME) or f"{version.name} version {version.number}",
        step=int(step) if step.isdecimal() else 0,
        since=time.time(),
        why=f"version {version.number} was made champion in MLflow",
    )


def in_short(error: ClozeError) -> str:
    """What MLflow did not do, without its client's own explanations in brackets."""
    return str(error).partition(" (")[0]
