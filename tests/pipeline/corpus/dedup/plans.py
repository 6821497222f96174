"""The plan of the same references in one process and by an engine's shuffle, with the files that hold them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pipeline.core.stage import Build
from pipeline.corpus.dedup.plan import Plan, Wanted, plan
from pipeline.corpus.dedup.shuffled import search as search_by_shuffles
from pipeline.corpus.dedup.shuffled.blocks import Sizes
from pipeline.corpus.dedup.shuffled.search import shuffled_plan
from pipeline.engines.exchange import Exchange
from tests.pipeline.corpus.dedup.references import MINHASH, References
from tests.pipeline.engines.units import build

SMALL = Sizes(block=100, bucket=150, sampled=4)  # so that everything is cut where few documents are
SEARCH = ("minhash", "exact", "threshold", "mix")  # what of the settings below is the plan's; the rest is the execution's


def wanted(directory: Path, references: References, **search: Any) -> Wanted:
    directory.mkdir(parents=True, exist_ok=True)
    settings: dict[str, Any] = {"minhash": MINHASH, "exact": True, "threshold": 0.6, **search}
    return Wanted(
        shard_bytes=3000,
        plan_file=str(directory / "plan.arrow"),
        duplicates_file=str(directory / "duplicates.arrow"),
        examples=6,
        kinds=references.kinds,
        **settings,
    )


def _files(directory: Path) -> list[bytes]:
    return [(directory / name).read_bytes() for name in ("plan.arrow", "duplicates.arrow")]


def by_one(place: Path, references: References, **search: Any) -> tuple[Plan, list[bytes]]:
    """In this process."""
    found = plan(references.paths, wanted(place / "one", references, **search))
    return found, _files(place / "one")


def by_lists(
    place: Path, references: References, held: Sizes = SMALL, most: int = 0, **search: Any
) -> tuple[Plan, list[bytes]]:
    """By the same messages, in this process and in disorder: lists take the place of an engine's shuffle, which takes longer."""
    random = Random(held.block)

    def sent(messages: Iterable[tuple[int, bytes]]) -> dict[int, list[bytes]]:
        found: dict[int, list[bytes]] = {}
        for addressee, message in messages:
            found.setdefault(addressee, []).append(message)
        for inbox in found.values():
            random.shuffle(inbox)
        return found

    def exchanged(build: Build, step: str, work: Exchange, asking: int, settling: int | None = None) -> list[dict[str, Any]]:
        buckets = sent(message for block in range(asking) for message in work.ask(block))
        blocks = sent(message for bucket, inbox in buckets.items() for message in work.match(bucket, inbox))
        return [work.settle(block, blocks.get(block, [])) for block in range(asking if settling is None else settling)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search_by_shuffles, "exchange", exchanged)
        return by_engine(place, references, most, held, **search)


def by_engine(
    place: Path, references: References, most: int = 0, held: Sizes = SMALL, runner: str = "FnApiRunner", **more: Any
) -> tuple[Plan, list[bytes]]:
    """By shuffles, but for `most` documents at last."""
    search = {name: value for name, value in more.items() if name in SEARCH}
    begun = build(place / "out", runner=runner, **{name: value for name, value in more.items() if name not in SEARCH})
    with begun.cleanup:
        asked = wanted(place / "engine", references, **search)
        found = shuffled_plan(begun, references.paths, references.documents, asked, most, held)
    return found, _files(place / "engine")
