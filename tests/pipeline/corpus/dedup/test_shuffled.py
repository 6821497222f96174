"""The plan of many references, by the engine's own shuffle: byte for byte that of one process, whatever is held at once."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from pipeline.corpus.dedup import plan as one_process
from pipeline.corpus.dedup.plan import Plan, Wanted
from pipeline.corpus.dedup.shuffled.blocks import Sizes
from pipeline.corpus.dedup.shuffled.search import shuffled_plan
from tests.pipeline.corpus.dedup.references import MINHASH, References, invented
from tests.pipeline.engines.units import build

SMALL = Sizes(block=100, bucket=150, sampled=4, rounds=40)


def wanted(directory: Path, references: References, **more: Any) -> Wanted:
    directory.mkdir(parents=True, exist_ok=True)
    settings: dict[str, Any] = {"minhash": MINHASH, "exact": True, "threshold": 0.6, **more}
    return Wanted(
        shard_bytes=3000,
        plan_file=str(directory / "plan.arrow"),
        duplicates_file=str(directory / "duplicates.arrow"),
        examples=6,
        kinds=references.kinds,
        **settings,
    )


def files(directory: Path) -> list[bytes]:
    return [(directory / name).read_bytes() for name in ("plan.arrow", "duplicates.arrow")]


def by_one(place: Path, references: References, **more: Any) -> tuple[Plan, list[bytes]]:
    found = one_process.plan(references.paths, wanted(place / "one", references, **more))
    return found, files(place / "one")


def by_engine(
    place: Path, references: References, most: int = 0, held: Sizes = SMALL, runner: str = "FnApiRunner", **more: Any
) -> tuple[Plan, list[bytes]]:
    begun = build(place / "out", runner=runner)
    with begun.cleanup, warnings.catch_warnings():
        found = shuffled_plan(
            begun, references.paths, references.documents, wanted(place / "engine", references, **more), most, held
        )
    return found, files(place / "engine")


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"threshold": 0.0},
        {"minhash": None},
        {"minhash": None, "exact": False},
        {"exact": False},
    ],
    ids=["similar", "linked", "exact", "ids", "near alone"],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_the_same_bytes_as_in_one_process(more: dict[str, Any], seed: int, tmp_path: Path) -> None:
    references = invented(tmp_path, 700, seed)
    assert by_engine(tmp_path, references, **more) == by_one(tmp_path, references, **more)
