"""Benchmark of the search for duplicates in partitions: CPU, bytes and memory of each step.

    python -m benchmarks.duplicates [--documents 1000000] [--duplicates 0.3]

Signatures of invented documents, `--duplicates` of them in groups of 2 to 9 that share ids, exact
hashes or some bands. All steps run in this process, unit after unit. Then one process decides on all
documents at once; its plan must be the same. Memory is the peak of a process of its own for each of
the two ways, the libraries in it.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa

from cloze.core import random_keys
from cloze.core.arrow import write_arrow
from cloze.core.humanize import format_count
from cloze.core.processes import peak_memory
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import BuildContext
from cloze.pipeline.corpus.duplicates import partitions, plan
from cloze.pipeline.corpus.duplicates.rules import CorpusPlanRequest
from cloze.pipeline.corpus.files.intermediate import signatures_schema
from cloze.pipeline.corpus.options import DEFAULT
from cloze.pipeline.corpus.signatures import SKETCH_BYTES

TEXT_BYTES = 3000  # of a document


def write_references(
    directory: Path, count: int, duplicates: float, parts: int = 8
) -> tuple[list[str], list[int]]:
    """Parts of references; returns their paths and documents."""
    draw = np.random.default_rng(count)
    numbers = np.arange(count)
    head = numbers.copy()
    grouped = int(count * duplicates)
    edges = np.cumsum(draw.integers(2, 10, grouped))
    head[:grouped] = np.concatenate(([0], edges))[
        np.searchsorted(edges, numbers[:grouped], side="right")
    ]
    head = np.minimum(head, numbers)
    kind = draw.random(count)
    of = {
        "key": np.where((kind < 0.02) & (head < grouped), head, numbers),
        "exact": np.where(kind < 0.3, head, numbers),
    }
    columns: dict[str, Any] = {
        "key": random_keys.fold_in(1, of["key"]),
        "characters": draw.integers(500, 9000, count).astype(np.uint32),
        "heldout": draw.random(count) < 0.02,
        "exact_high": random_keys.fold_in(2, of["exact"]),
        "exact_low": random_keys.fold_in(3, of["exact"]),
    }
    columns["bytes"] = columns["characters"]
    for band in range(DEFAULT.bands):
        columns[f"band_{band:02d}"] = random_keys.fold_in(
            4, band, np.where(draw.random(count) < 0.5, head, numbers)
        )
    schema = signatures_schema(DEFAULT, verified=True)
    order, paths, documents = draw.permutation(count), [], []
    for number, own in enumerate(np.array_split(order, parts)):
        paths.append(str(directory / f"part-{number}.refs.arrow"))
        documents.append(own.size)
        write_arrow(paths[-1], schema, _batches(own, columns, head, schema))
        texts = pa.array([[f"text of {head[number]}"] for number in own.tolist()])
        table = pa.table({"sentences": texts})
        write_arrow(
            paths[-1].replace(".refs", ""), table.schema, table.to_batches(max_chunksize=300)
        )
    return paths, documents


def _batches(
    own: Any, columns: dict[str, Any], head: Any, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    for begin in range(0, own.size, 300):
        rows = own[begin : begin + 300]
        places = np.arange(SKETCH_BYTES)
        alike = random_keys.uniform(random_keys.fold_in(5, rows[:, None], places)) < 0.9
        sketch = random_keys.fold_in(
            6, np.where(alike, head[rows][:, None], rows[:, None]), places
        ).astype(np.uint8)
        arrays = [pa.array(columns[name][rows]) for name in schema.names if name != "sketch"]
        kind = schema.field("sketch").type
        arrays.append(
            pa.FixedSizeBinaryArray.from_buffers(
                kind, rows.size, [None, pa.py_buffer(sketch.tobytes())]
            )
        )
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


Planned = tuple[plan.CorpusPlan, dict[str, float], Counter[str], int]


def planned(directory: Path, paths: list[str], documents: list[int], *, whole: bool) -> Planned:
    """Plan in this process; return the plan, CPU and bytes of each step, and the peak memory."""
    seconds: dict[str, float] = {}
    written: Counter[str] = Counter()

    def run(
        build: BuildContext,
        step: str,
        units: list[tuple[str, Any]],
        job: Callable[[Any], dict[str, Any]],
        **_: Any,
    ) -> list[dict[str, Any]]:
        start = time.process_time()
        results = [job(unit) for _, unit in units]
        seconds[step] = time.process_time() - start
        written[step] = sum(
            result.get("bytes", 0) * ("documents" not in result) for result in results
        )
        return results

    most = sum(documents) if whole else 0
    build = BuildContext(
        path=str(directory / f"out-{whole}"),
        inputs={},
        execution=Execution(dedup_in_memory_documents=most),
        fingerprint="f",
    )
    request = CorpusPlanRequest(
        shard_bytes=4 << 20,
        directory=str(directory / f"plans-{whole}"),
        keep_dropped=False,
        minhash=DEFAULT,
        exact=True,
        threshold=0.6,
        examples=6,
        parts=[path.removesuffix(".refs.arrow") for path in paths],
        kinds=["books"] * len(paths),
        sizes=[TEXT_BYTES * count for count in documents],
    )
    start = time.process_time()
    with (
        build.cleanup,
        mock.patch.object(partitions, "fan_out", run),
        mock.patch.object(plan, "fan_out", run),
    ):
        found = plan.plan(build, request, sum(documents))
    seconds["all"] = time.process_time() - start
    return found, seconds, written, peak_memory()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument(
        "--duplicates", type=float, default=0.3, help="share of documents in groups"
    )
    options = parser.parse_args()
    count = options.documents
    with tempfile.TemporaryDirectory() as room:
        directory = Path(room)
        paths, documents = write_references(directory, count, options.duplicates)
        results = []
        for whole in (False, True):
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                results.append(
                    pool.submit(planned, directory, paths, documents, whole=whole).result()
                )
    if results[0][0] != results[1][0]:
        raise SystemExit("the plans differ")
    dropped = sum(results[0][0].dropped.values())
    print(f"{count:,} documents, {dropped / count:.1%} dropped, {os.cpu_count()} cores")
    for name, (_, seconds, written, peak) in zip(
        ("partitions", "one process"), results, strict=True
    ):
        print(f"{name}: {seconds['all'] / count * 1e6:.1f} µs a document, {format_count(peak)}B")
        for step, spent in sorted(seconds.items()):
            print(f"  {step}: {spent:.1f} s, {written[step] / count:.1f} bytes a document")


if __name__ == "__main__":
    main()
