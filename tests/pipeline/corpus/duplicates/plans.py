"""The plan of the same references in one process and by an engine's shuffle, with the files that
hold them.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cloze.core.stages.stage import BuildContext
from cloze.pipeline.corpus.duplicates import distributed
from cloze.pipeline.corpus.duplicates.distributed import Sizes, plan_by_shuffle
from cloze.pipeline.corpus.duplicates.plan import CorpusPlan, CorpusPlanRequest, plan
from cloze.pipeline.runners.shuffle import ShuffleJob
from tests.pipeline.corpus.duplicates.references import MINHASH, References
from tests.pipeline.runners.units import build

SMALL = Sizes(block=100, bucket=150)  # so that everything is cut where few documents are
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
        parts=[f"part-{number}" for number in range(len(references.paths))],
        kinds=references.kinds,
        **settings,
    )


def _files(directory: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(directory.glob("*.arrow"))]


def by_one(place: Path, references: References, **search: Any) -> tuple[CorpusPlan, list[bytes]]:
    """In this process."""
    found = plan(references.paths, wanted(place / "one", references, **search))
    return found, _files(place / "one")


def by_lists(
    place: Path, references: References, held: Sizes = SMALL, **search: Any
) -> tuple[CorpusPlan, list[bytes]]:
    """By the same messages, in this process and in disorder: lists take the place of an engine's
    shuffle, which takes longer.
    """
    random = Random(held.block)

    def sent(messages: Iterable[tuple[int, bytes]]) -> dict[int, list[bytes]]:
        found: dict[int, list[bytes]] = {}
        for addressee, message in messages:
            found.setdefault(addressee, []).append(message)
        for inbox in found.values():
            random.shuffle(inbox)
        return found

    def exchanged(
        build: BuildContext, step: str, work: ShuffleJob, blocks: int
    ) -> list[dict[str, Any]]:
        buckets = sent(message for block in range(blocks) for message in work.map_block(block))
        replies = sent(
            message
            for bucket, inbox in buckets.items()
            for message in work.reduce_bucket(bucket, inbox)
        )
        return [work.apply_replies(block, replies.get(block, [])) for block in range(blocks)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distributed, "run_shuffle", exchanged)
        return by_engine(place, references, held, **search)


def by_engine(
    place: Path,
    references: References,
    held: Sizes = SMALL,
    runner: str = "FnApiRunner",
    **more: Any,
) -> tuple[CorpusPlan, list[bytes]]:
    """Plan by shuffles."""
    search = {name: value for name, value in more.items() if name in SEARCH}
    begun = build(
        place / "out",
        runner=runner,
        **{name: value for name, value in more.items() if name not in SEARCH},
    )
    with begun.cleanup:
        asked = wanted(place / "engine", references, **search)
        found = plan_by_shuffle(begun, references.paths, references.documents, asked, held)
    return found, _files(place / "engine")
