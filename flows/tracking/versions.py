"""What is known of the versions of a registered model, and of the changes of its champion."""

from __future__ import annotations

import datetime
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PROMOTE, ROLLBACK = "promote", "rollback"


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A version of the registered model.

    Attributes:
        number: from 1.
        fingerprint: the artifact's, or `FINGERPRINT/checkpoints/STEP` of a kept checkpoint.
        checkpoint: where it lay when it was registered; empty if that is not known.
        created: UTC, ISO 8601.
        tags: all of the version's.
        metrics: the newest value of each metric of its LoggedModel.
        model_id: the LoggedModel's.
        run_id: MLflow's id of the run that made it; empty if there is none.
    """

    name: str
    number: int
    fingerprint: str
    checkpoint: str
    created: str
    tags: Mapping[str, str]
    metrics: Mapping[str, float]
    aliases: tuple[str, ...]
    model_id: str
    run_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of champion. `time` is UTC, ISO 8601; `kind` is `promote` or `rollback`; `by` is user@host."""

    time: str
    version: int
    replaced: int | None
    why: str
    kind: str
    by: str


def reigns(history: Sequence[Change], champion: Version | None) -> list[int]:
    """The champions below and with the present one, as a stack: a rollback takes the top off. Changes without effect are left out."""
    stack: list[int] = []
    for change in history:
        if change.kind == ROLLBACK and change.version in stack:
            del stack[len(stack) - stack[::-1].index(change.version) :]
        else:
            stack.append(change.version)
    if champion is None or champion.number not in stack:
        return []
    return stack[: len(stack) - stack[::-1].index(champion.number)]


def now() -> str:
    """UTC, ISO 8601, to the second."""
    return iso(time.time())


def iso(seconds: float) -> str:
    """Unix seconds as UTC, ISO 8601."""
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).isoformat(timespec="seconds")
