"""The plan of the same references in one process and in partitions, with the files that hold
them.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cloze.core.stages.stage import BuildContext
from cloze.pipeline.corpus.duplicates import partitions, plan
from cloze.pipeline.corpus.duplicates.partitions import Sizes
from cloze.pipeline.corpus.duplicates.plan import CorpusPlan
from cloze.pipeline.corpus.duplicates.rules import CorpusPlanRequest
from tests.pipeline.corpus.duplicates.references import MINHASH, References
from tests.pipeline.runners.units import build

SMALL = Sizes(partition=40)  # so that everything is cut where few documents are
SEARCH = (
    "minhash",
    "exact",
    "threshold",
    "mix",
)  # what of the settings below is the plan's; the rest is the execution's


def wanted(directory: Path, references: References, **search: Any) -> CorpusPlanRequest:
    directory.mkdir(parents=True, exist_ok=True)
    settings: dict[str, Any] = {"minhash": MINHASH, "exact": True, "threshold": 0.6, **search}
    return CorpusPlanRequest(
        shard_bytes=3000,
        directory=str(directory),
        keep_dropped=True,
        examples=6,
        parts=[path.removesuffix(".refs.arrow") for path in references.paths],
        kinds=references.kinds,
        sizes=[100 * count for count in references.documents],
        **settings,
    )


def _files(directory: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(directory.glob("*.arrow"))]


def _planned(
    place: Path, name: str, references: References, most: int, **more: Any
) -> tuple[CorpusPlan, list[bytes]]:
    """Plan in units of three kilobytes of text; partitions if there are more than `most`."""
    execution = {name: value for name, value in more.items() if name not in SEARCH}
    begun = build(place / f"out-{name}", dedup_in_memory_documents=most, **execution)
    search = {name: value for name, value in more.items() if name in SEARCH}
    with begun.cleanup, pytest.MonkeyPatch.context() as patch:
        patch.setattr("cloze.pipeline.corpus.duplicates.unit_plans.run_bytes", lambda *_: 3000)
        asked = wanted(place / name, references, **search)
        found = plan.plan(begun, asked, sum(references.documents))
    return found, _files(place / name)


def by_one(place: Path, references: References, **search: Any) -> tuple[CorpusPlan, list[bytes]]:
    """In this process."""
    return _planned(place, "one", references, most=10**9, **search)


class Stopped(Exception):
    """The driver is gone."""


def by_lists(
    place: Path, references: References, held: Sizes = SMALL, stops: int = 10**9, **search: Any
) -> tuple[CorpusPlan, list[bytes]]:
    """In partitions, whose units run in this process and in disorder: an engine takes longer.

    The driver stops after so many units, and after as many again: results are there, of one unit
    the files alone.
    """
    random = Random(held.partition)
    done: dict[tuple[str, str], dict[str, Any]] = {}
    left = 0

    def run(
        build: BuildContext,
        step: str,
        units: list[tuple[str, Any]],
        function: Callable[[Any], dict[str, Any]],
        **_: Any,
    ) -> list[dict[str, Any]]:
        nonlocal left
        for name, unit in random.sample(units, len(units)):
            if (step, name) not in done:
                result = json.loads(json.dumps(function(unit)))
                left -= 1
                if not left:
                    raise Stopped
                done[step, name] = result
        return [done[step, name] for name, _ in units]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partitions, "fan_out", run)
        patch.setattr(plan, "fan_out", run)
        while True:
            left = stops
            with contextlib.suppress(Stopped):
                return by_engine(place, references, held, **search)


def by_engine(
    place: Path,
    references: References,
    held: Sizes = SMALL,
    runner: str = "FnApiRunner",
    **more: Any,
) -> tuple[CorpusPlan, list[bytes]]:
    """In partitions, on a runner."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partitions, "SIZES", held)
        patch.setattr(partitions, "destination_count", lambda total, runs: 1 + total // 4000)
        return _planned(place, "engine", references, most=0, runner=runner, **more)
