"""What a corpus costs in a store: each byte of text is read once in each step, by few requests."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path

import pytest

from cloze.pipeline.corpus import sources, stage
from cloze.pipeline.corpus.duplicates import unit_plans as plans
from cloze.pipeline.corpus.files import intermediate
from cloze.pipeline.corpus.files.intermediate import IntermediateFile
from cloze.pipeline.corpus.read import read_and_clean
from tests.object_store import Store
from tests.pipeline.corpus.corpora import make, prose

DOCUMENTS, DESTINATIONS = 64, 5


def cost(store: Store, tmp_path: Path, files: int) -> tuple[dict[str, Counter[str]], int]:
    """Make a corpus of so many files in the store; return what it cost by kind of file, and runs."""
    source = tmp_path / f"source-{files}"
    source.mkdir()
    for number in range(files):
        texts = (prose(number * DOCUMENTS + n) for n in range(DOCUMENTS))
        lines = (json.dumps({"text": text}) + "\n" for text in texts)
        (source / f"{number}.jsonl").write_text("".join(lines))
    store.server.requests.clear()
    made = make(store.path(f"corpus-{files}"), f"jsonl={source}", shard_bytes=16 << 10)
    assert made.manifest.rows == files * DOCUMENTS
    costs: dict[str, Counter[str]] = {"parts": Counter(), "runs": Counter(), "refs": Counter()}
    runs = set()
    for request in store.server.requests:
        name = request.key.rsplit("/", 1)[-1]
        is_part = "/parts/" in request.key and name.count(".") == 1
        if name.endswith(".refs.arrow"):  # each plan reads them, by unit
            signatures = costs["refs"]
            signatures["read"] += request.read
            signatures["written"] += request.written
        if is_part or (name.startswith("run-") and not name.endswith(".index")):
            counts = costs["parts" if is_part else "runs"]
            counts["read"] += request.read
            counts["written"] += request.written
            counts[request.kind] += 1
            runs |= set() if is_part else {name}
    return costs, len(runs)


@pytest.mark.parametrize("ahead", [2 << 10, 8 << 20])  # less than a reader's share, and far more
def test_each_byte_is_read_once(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    monkeypatch.setattr(sources, "run_bytes", lambda total, least: 0)
    monkeypatch.setattr(read_and_clean, "BATCH_BYTES", 8 << 10)
    monkeypatch.setattr(intermediate, "AHEAD_BYTES", ahead)
    monkeypatch.setattr(
        plans, "run_bytes", lambda total, least: 30 << 10
    )  # a file has several readers
    monkeypatch.setattr(stage, "destination_count", lambda total, runs: DESTINATIONS)
    for files in (2, 4):
        costs, runs = cost(store, tmp_path, files)
        assert runs >= 2 * files
        parts = costs["parts"]
        assert parts["read"] <= 1.2 * parts["written"]
        assert parts["get"] + parts["head"] <= 6 * runs + parts["read"] // ahead
        assert costs["runs"]["read"] == costs["runs"]["written"]
        assert costs["runs"]["get"] <= runs * DESTINATIONS
        assert costs["runs"]["head"] == 0
        assert costs["refs"]["read"] <= 3 * costs["refs"]["written"]


@pytest.mark.parametrize("readers", [1, 3, 14])
@pytest.mark.parametrize("batches", [15, 200])
def test_a_share_of_a_file_costs_its_own_bytes(store: Store, readers: int, batches: int) -> None:
    """Whatever else the file has: batches of unequal sizes, half a megabyte to twelve."""
    import numpy as np
    import pyarrow as pa

    from cloze.core.arrow import write_arrow

    draw = np.random.default_rng(batches)
    schema = pa.schema([("a", pa.int64())])
    sizes = draw.integers(5000, 9000, batches)
    rows = [pa.record_batch([draw.integers(0, 99, size)], schema=schema) for size in sizes]
    path = store.path(f"share-{readers}-{batches}")
    write_arrow(path, schema, rows)
    edges = [batches * reader // readers for reader in range(readers + 1)]
    for first, end in itertools.pairwise(edges):
        store.server.requests.clear()
        with IntermediateFile(path) as part:
            assert list(part.in_order(first, end)) == rows[first:end]
        own, slack = 8 * int(sizes[first:end].sum()), 200 * batches + (200 << 10)
        assert store.server.totals()["read"] <= own + slack
        assert store.server.totals()["requests"] <= 6 + own // (8 << 20)


def test_a_part_on_a_disk_holds_no_descriptor(tmp_path: Path) -> None:
    """A map of a file needs none."""
    import pyarrow as pa

    from cloze.core.arrow import write_arrow

    schema = pa.schema([("a", pa.int64())])
    write_arrow(
        str(tmp_path / "a.arrow"),
        schema,
        [pa.RecordBatch.from_pydict({"a": [1, 2]}, schema=schema)],
    )
    before = set(Path("/proc/self/fd").iterdir())
    with IntermediateFile(str(tmp_path / "a.arrow")) as part:
        assert len(set(Path("/proc/self/fd").iterdir()) - before) <= 1
        assert part.batch(0)["a"].to_pylist() == [1, 2]
