"""The plan of the same references in one process and by an engine's shuffle, with the files that hold them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.corpus.dedup.plan import Plan, Wanted, plan
from pipeline.corpus.dedup.shuffled.blocks import Sizes
from pipeline.corpus.dedup.shuffled.search import shuffled_plan
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
