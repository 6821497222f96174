"""An exchange of sorted runs: each row comes out once, in an order that follows from the runs."""

from __future__ import annotations

import contextlib
import itertools
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from cloze.core import storage
from cloze.core.ragged import I64
from cloze.pipeline.runners import exchange as module
from cloze.pipeline.runners.exchange import Exchange
from cloze.pipeline.runners.sizes import (
    EVEN_COUNTS,
    RANGE_BYTES,
    STORE_BYTES,
    destination_count,
    even_count,
    group_by_size,
    least_bytes,
    places_per_unit,
    run_bytes,
)
from tests.object_store import Store
from tests.pipeline.runners.units import build

Row = tuple[int, str]  # place and content
SCHEMA = pa.schema([("place", pa.int64()), ("text", pa.string()), ("words", pa.list_(pa.string()))])


class Killed(Exception):
    """The worker is gone."""


def blocks_of(rows: list[Row], size: int, fatal: int = -1) -> Iterator[tuple[pa.Table, np.ndarray]]:
    """Yield blocks of `size` rows; raise before the block with the number `fatal`."""
    for number, begin in enumerate(range(0, len(rows), size)):
        if number == fatal:
            raise Killed
        own = rows[begin : begin + size]
        columns = {
            "place": [place for place, _ in own],
            "text": [text for _, text in own],
            "words": [text.split() for _, text in own],
        }
        yield pa.table(columns, schema=SCHEMA), np.array(columns["place"], np.int64)
    if fatal >= 0:
        raise Killed


def expected(runs: list[list[Row]], places: range) -> list[Row]:
    """Return the rows of some places by the definition of the order."""
    return [row for run in runs for row in sorted(run, key=lambda row: row[0]) if row[0] in places]


def read(exchange: Exchange, first: int, end: int) -> list[list[Row]]:
    """Return the rows of each destination, read as one range."""
    found = []
    with exchange.read(SCHEMA, first, end) as ranges:
        for destination in range(first, end):
            batches = list(ranges.batches(destination))
            assert len(batches) <= exchange.runs
            assert all(batch.num_rows for batch in batches)
            rows = [row for batch in batches for row in batch.to_pylist()]
            ranges.release()
            assert all(row["words"] == row["text"].split() for row in rows)
            found.append([(row["place"], row["text"]) for row in rows])
    return found


@st.composite
def exchanges(draw: st.DrawFn) -> tuple[list[list[Row]], int, int]:
    """Runs, the number of places, and places per destination."""
    places = draw(st.integers(1, 12))
    row = st.tuples(st.integers(0, places - 1), st.text("aé ", max_size=20))
    runs = draw(st.lists(st.lists(row, max_size=25), min_size=1, max_size=5))
    return runs, places, draw(st.integers(1, places + 1))


@given(exchanges(), st.data())
@settings(max_examples=25, deadline=None, phases=[Phase.generate])
def test_any_order_any_cut_and_any_killed_worker_give_the_same_rows(
    drawn: tuple[list[list[Row]], int, int], data: st.DataObject
) -> None:
    """Spills, blocks of extents and repetitions of units show in nothing."""
    runs, places, group = drawn
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        for attempt in range(2):
            directory = data.draw(st.sampled_from([f"{name}/{attempt}", "memory://runs/a"]))
            exchange = Exchange(directory=directory, runs=len(runs), places=places, group=group)
            for limit in ("SORTED_BYTES", "EXTENTS_BYTES", "REQUEST_BYTES", "PASS_BYTES"):
                patch.setattr(module, limit, data.draw(st.sampled_from([8, 100, 1 << 20])))
            for number in data.draw(st.permutations(range(len(runs)))):
                size = data.draw(st.integers(1, 9))
                if data.draw(st.booleans()):
                    fatal = data.draw(st.integers(0, 1 + len(runs[number]) // size))
                    with pytest.raises(Killed):
                        exchange.write(number, blocks_of(runs[number], size, fatal))
                written = set()
                for _ in range(data.draw(st.integers(1, 2))):  # engines may do a unit twice
                    exchange.write(number, blocks_of(runs[number], size))
                    written.add(storage.read_at_once(exchange.run_path(number)))
                assert len(written) == 1  # others may have read the index already
            begun = build(Path(name) / f"out-{attempt}")
            with begun.cleanup:
                rows = by_blocks(exchange)
            assert rows.sum() == sum(map(len, runs))
            edges = [min(d * group, places) for d in range(exchange.destinations + 1)]
            assert edges[-1] == places
            own = [expected(runs, range(*pair)) for pair in itertools.pairwise(edges)]
            assert rows.tolist() == list(map(len, own))
            assert read(exchange, 0, exchange.destinations) == own
            first = data.draw(st.integers(0, exchange.destinations))
            end = data.draw(st.integers(first, exchange.destinations))
            assert read(exchange, first, end) == own[first:end]
    with contextlib.suppress(FileNotFoundError):
        fsspec.filesystem("memory").rm("/runs", recursive=True)


def by_blocks(exchange: Exchange) -> np.ndarray:
    """Connect the runs as workers do; return the rows of each destination."""
    blocks = range(-(-exchange.destinations // exchange._block))
    return np.concatenate([np.diff(exchange.connect_block(block)["rows"]) for block in blocks])


def test_workers_connect_many_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[list[Row]] = [[(place, f"{run}") for place in range(run, 9)] for run in range(4)]
    exchange = Exchange(directory=str(tmp_path / "runs"), runs=4, places=9)
    for number, run in enumerate(runs):
        exchange.write(number, blocks_of(run, 3))
    monkeypatch.setattr(module, "EXTENTS_BYTES", 2 * 4 * 8)
    begun = build(tmp_path / "out")
    with begun.cleanup:
        rows = exchange.connect(begun, "connect")
    assert rows.tolist() == [1, 2, 3, 4, 4, 4, 4, 4, 4]
    assert len(list((tmp_path / "runs").glob("extents-*"))) == 5
    assert read(exchange, 2, 7) == [expected(runs, range(at, at + 1)) for at in range(2, 7)]


def test_a_killed_worker_leaves_no_run(tmp_path: Path) -> None:
    exchange = Exchange(directory=str(tmp_path), runs=1, places=4)
    with pytest.raises(Killed):
        exchange.write(0, blocks_of([(1, "a"), (3, "b")], 1, fatal=1))
    assert list(tmp_path.iterdir()) == []


def test_a_store_is_asked_once_for_each_range(store: Store) -> None:
    """And once for the places of all ranges; no byte is read twice."""
    runs = 5
    rows: list[Row] = [(place, f"{place} " * 300) for place in range(8) for _ in range(40)]
    exchange = Exchange(directory=store.path("runs"), runs=runs, places=8, group=2)
    sizes = [exchange.write(number, blocks_of(rows, 64)) for number in range(runs)]
    exchange.connect_block(0)
    store.server.requests.clear()
    for destination in range(4):
        assert len(read(exchange, destination, destination + 1)[0]) == 2 * 40 * runs
    totals = store.server.totals()
    ranges = [request for request in store.server.requests if "/run-" in request.key]
    assert len(ranges) == 4 * runs
    assert sum(request.read for request in ranges) == sum(sizes)
    assert totals["get"] == 4 * runs + 4
    assert totals["read"] <= 1.01 * sum(sizes)


def test_a_busy_store_is_asked_again(store: Store) -> None:
    """Every first request for a range is refused; no row is lost or doubled."""
    rows: list[Row] = [(place, str(place)) for place in range(6) for _ in range(3)]
    exchange = Exchange(directory=store.path("runs"), runs=3, places=6, group=3)
    for number in range(3):
        exchange.write(number, blocks_of(rows, 4))
    exchange.connect_block(0)
    refused: set[str] = set()

    def busy(kind: str, key: str, _: int) -> tuple[int, str] | None:
        if kind != "get" or key in refused:
            return None
        refused.add(key)
        return 503, "SlowDown"

    store.server.fault = busy
    assert read(exchange, 0, 2) == [
        expected([rows] * 3, range(3)),
        expected([rows] * 3, range(3, 6)),
    ]
    assert len(refused) == 3 + 1  # runs and extents


TERABYTE = 10**12


@pytest.mark.parametrize("total", [10**10, 10**11, 1.5 * TERABYTE, 6 * TERABYTE])
def test_sizes_of_large_exchanges(total: float) -> None:
    total = int(total)
    runs = math.ceil(total / run_bytes(total))
    destinations = destination_count(total, runs)
    assert total / (runs * destinations) >= RANGE_BYTES
    assert destinations == pytest.approx(runs, rel=0.01)
    assert total < TERABYTE or 256 << 20 <= run_bytes(total) <= 1 << 30
    assert total < TERABYTE or runs > 3200  # cores of 200 hosts
    assert runs < 20_000


@given(st.integers(1, 10**7))
def test_large_counts_are_even(count: int) -> None:
    even = even_count(count)
    assert even == count if count <= 2000 else even in EVEN_COUNTS
    assert even >= min(count, EVEN_COUNTS[-1])


@given(st.one_of(st.integers(1, 10**4), st.sampled_from(EVEN_COUNTS)), st.integers(-1, 10**5))
def test_units_of_even_counts_fill_the_rounds_of_a_cluster(places: int, most: int) -> None:
    size = places_per_unit(places, most)
    units = -(-places // size)
    assert units <= max(1, most)
    if places in EVEN_COUNTS:
        assert places % size == 0  # equal units
        assert units < 3200 or units % 3200 == 0


@pytest.mark.parametrize("workers", [100, 200, 400, 800, 1600, 3200])
@pytest.mark.parametrize("total", [1.5 * TERABYTE, 3 * TERABYTE, 6 * TERABYTE])
def test_workers_of_a_large_cluster_have_work_until_the_end(workers: int, total: float) -> None:
    units = 9600 // places_per_unit(9600, int(total) // run_bytes(int(total)))
    assert units / workers / -(-units // workers) >= 0.9


def test_units_of_a_store_are_large(tmp_path: Path) -> None:
    assert least_bytes("s3://bucket/corpus", 1) == STORE_BYTES
    assert least_bytes(str(tmp_path), 1) == 1


@given(st.lists(st.integers(0, 9), max_size=30), st.integers(0, 20))
def test_groups_hold_everything_once(sizes: list[int], most: int) -> None:
    groups = group_by_size(sizes, most)
    assert [number for first, end in groups for number in range(first, end)] == list(
        range(len(sizes))
    )
    assert all(end == first + 1 or sum(sizes[first:end]) <= most for first, end in groups)
    assert all(
        sum(sizes[first:end]) + sizes[end] > most for first, end in groups if end < len(sizes)
    )


def test_a_killed_worker_leaves_no_sorted_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When pieces are merged, and when ranges of a store are read, no file has a name."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setattr(module, "SORTED_BYTES", 100)
    left: list[int] = []
    merged = module._merged

    def watched(pieces: list[module.Piece], edges: list[I64], number: int) -> pa.RecordBatch:
        left.extend((len(pieces), *(-1 for _ in temporary.iterdir())))
        return merged(pieces, edges, number)

    monkeypatch.setattr(module, "_merged", watched)
    rows = [(number % 3, f"text {number}") for number in range(50)]
    exchange = Exchange(directory=str(tmp_path / "runs"), runs=1, places=3)
    storage.make_dirs(exchange.directory)
    exchange.write(0, blocks_of(rows, 5))
    assert left[0] > 3
    assert -1 not in left
    exchange.connect_block(0)
    monkeypatch.setattr(storage, "is_local", lambda _: False)
    monkeypatch.setattr(module, "file_buffer", lambda name: pa.memory_map(name).read_buffer())
    with exchange.read(SCHEMA, 0, 3) as ranges:
        assert not list(temporary.iterdir())
        assert sum(batch.num_rows for batch in ranges.batches(1)) == 17
