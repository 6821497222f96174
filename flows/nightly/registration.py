"""The champion in MLflow's registry: its alias follows the journal when MLflow answers."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from cloze.core.errors import ClozeError
from cloze.flows.nightly.discovery import CheckpointInfo
from cloze.flows.nightly.journal import REGISTERED, Journal, champion_path
from cloze.flows.tracking.models import RUN_NAME

if TYPE_CHECKING:
    from cloze.flows.tracking.mlflow_writer import Registry


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
    from cloze.flows.tracking.mlflow_writer import Registry

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
