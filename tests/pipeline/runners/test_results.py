"""Results of a step's units: looking for them costs what is new, not what is done."""

from __future__ import annotations

import heapq
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.core import storage
from cloze.core.errors import DataError
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import BuildContext
from cloze.pipeline.runners import fan_out as module
from cloze.pipeline.runners.fan_out import IDLE, balance_units, fan_out
from tests.object_store import Store

BLOCK = 5


class Listing:
    """A directory of results in memory, which counts the names that it is asked for."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.files: dict[str, list[str]] = {}
        self.names = self.most = 0
        patch.setattr(module, "BLOCK_UNITS", BLOCK)
        patch.setattr(storage, "list_names", self.list_names)

    def list_names(self, directory: str) -> list[str]:
        found = self.files.get(directory, [])
        self.names += len(found)
        blocks = (path.partition("/")[2] for path in self.files if directory == "step")
        return [*found, *filter(None, blocks)]

    def finish(self, place: str, ending: str = ".json") -> None:
        block, _, name = f"step/{place}".rpartition("/")
        self.files.setdefault(block, []).append(name + ending)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.sampled_from([1.0, 2.0, 3.0, 2.5]), min_size=1, max_size=120),
    st.integers(1, 9),
    st.booleans(),
)
def test_looks_list_what_is_under_way(weights: list[float], workers: int, in_turn: bool) -> None:
    """Engines give units to workers in turn, or each to whoever is free; both look once a unit."""
    weight = {f"u{number}": weight for number, weight in enumerate(weights)}
    with pytest.MonkeyPatch.context() as patch:
        listing = Listing(patch)
        results = module._Results("step", weight)
        units = balance_units(list(weight.items()), weights, workers if in_turn else 1)
        elements = [name for name, _ in units]
        queues = [elements[worker::workers] if in_turn else elements for worker in range(workers)]
        running = [(0.0, worker, IDLE) for worker in range(workers)]
        while running:
            now, worker, name = heapq.heappop(running)
            if name != IDLE:
                listing.finish(results.place[name])
                before = listing.names
                results.look()
                assert name in results.found
                listing.most = max(listing.most, listing.names - before)
            if queues[worker]:
                begun = queues[worker].pop(0)
                heapq.heappush(running, (now + weight.get(begun, 0.0), worker, begun))
        assert results.found == dict.fromkeys(weight, ".json")
        assert listing.most <= 2 * workers + 3 * BLOCK
        listing.names = 0
        results.look()
        assert listing.names == 0


def work(unit: dict[str, Any]) -> dict[str, Any]:
    if unit.get("bad"):
        raise DataError(f"number {unit['number']} is bad; give another one")
    with Path(unit["trace"]).open("a") as trace:
        trace.write("x")
    return {"number": unit["number"]}


def numbered(tmp_path: Path, count: int, bad: tuple[int, ...] = ()) -> list[tuple[str, Any]]:
    return [
        (f"unit.{n}", {"number": n, "bad": n in bad, "trace": f"{tmp_path}/trace-{n}"})
        for n in range(count)
    ]


def test_blocks_keep_what_is_done_and_name_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK_UNITS", 3)
    build = BuildContext(
        path=str(tmp_path / "out"), inputs={}, execution=Execution(), fingerprint="f"
    )
    weights = [float(n % 4) for n in range(10)]
    with build.cleanup:
        for _ in range(2):
            with pytest.raises(DataError, match="2 of 10 units of step work failed: .1. number 4"):
                fan_out(
                    build,
                    "work",
                    numbered(tmp_path, 10, (4, 7)),
                    work,
                    unit_name="u",
                    weights=weights,
                )
        assert len(list(Path(build.scratch, "work").glob("*/*.json"))) == 8
        for _ in range(2):
            made = fan_out(
                build, "work", numbered(tmp_path, 10), work, unit_name="u", weights=weights
            )
            assert made == [{"number": n} for n in range(10)]
    assert {path.read_text() for path in tmp_path.glob("trace-*")} == {"x"}


def test_a_store_is_not_asked_again_for_full_blocks(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK_UNITS", 4)
    monkeypatch.setattr(module, "REMOTE_POLL_SECONDS", 0.001)
    build = BuildContext(path=store.path("out"), inputs={}, execution=Execution(), fingerprint="f")
    with build.cleanup:
        fan_out(build, "work", numbered(tmp_path, 16), work, unit_name="units")
    requests = store.server.requests
    asked = [(kind, key.removeprefix("out/_scratch/work/")) for kind, key, *_ in requests]
    full = max(n for n, (kind, key) in enumerate(asked) if kind == "put" and key[:6] == "00000/")
    polls = [key.rstrip("/") for kind, key in asked[full:] if kind == "list"]
    assert polls.count("00000") <= 2  # one may be under way


@pytest.mark.parametrize("limit", [0, 1 << 20])
def test_units_come_whole_from_a_file_or_from_the_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """Names of files may have bytes that are no text."""
    monkeypatch.setattr(module, "GRAPH_BYTES", limit)
    units = [
        (f"unit-{n}", {"name": "\udcff é" * n, "trace": str(tmp_path / "t")}) for n in range(9)
    ]
    build = BuildContext(
        path=str(tmp_path / "out"), inputs={}, execution=Execution(), fingerprint="f"
    )
    with build.cleanup:
        made = fan_out(build, "work", units, echo, unit_name="units", weights=[1.0, 9, 5] * 3)
    assert [each["length"] for each in made] == [3 * n for n in range(9)]
    assert bool(list(Path(build.scratch, "work").glob("units-*"))) == (limit == 0)


def echo(unit: dict[str, Any]) -> dict[str, Any]:
    return {"length": len(unit["name"])}


@pytest.mark.parametrize(
    ("count", "name", "most"),
    [
        (2000, "{0:05d}-of-02000", 100_000),
        (28_000, "{0:016x}-{1}-{2}", 1_000_000),  # slices of a crawl of 40 TB, by their bytes
    ],
)
def test_a_jobs_graph_has_a_place_of_each_unit_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, name: str, most: int
) -> None:
    sizes: list[int] = []

    def measured(build: BuildContext, construct: Any, count: int, step: str) -> None:
        pipeline = beam.Pipeline()
        construct(pipeline)
        sizes.append(len(pipeline.to_runner_api().SerializeToString()))
        raise DataError("enough")

    monkeypatch.setattr(module, "run_pipeline", measured)
    for length in (10, 1000):
        units = [
            (name.format(n, n << 28, (n + 1) << 28), {"path": "p" * length}) for n in range(count)
        ]
        build = BuildContext(
            path=f"{tmp_path}/{length}", inputs={}, execution=Execution(), fingerprint="f"
        )
        with build.cleanup, pytest.raises(DataError, match="enough"):
            fan_out(build, "work", units, echo, unit_name="units")
    assert max(sizes) < most
