"""Benchmark of the distributed search for duplicates: CPU, bytes and memory per document.

    python -m benchmarks.shuffled_dedup [--documents 150000 600000] [--runner flink] [--duplicates
    0.3] [--for 1e9] [--workers 100]

Signatures of invented documents, `--duplicates` of them in groups of 2 to 9 that share ids, exact
hashes or some bands. Two sizes are planned, and the difference is printed, so start-up does not
count. As with a billion documents, a message holds about 275 values (a billion documents are 3,800
blocks, and a column's values 950 buckets).

The first run is in this process, where the messages and the CPU of the shuffle are counted. The
second is on the runner, whose CPU is that of all processes: Beam's, Java's, the workers'. `flink`
is the embedded one and needs CLOZE_FLINK_CLASSPATH where Beam cannot fetch its job server.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from cloze.core import random_keys
from cloze.core.arrow import write_arrow
from cloze.core.humanize import format_count, format_duration
from cloze.core.processes import peak_memory
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import BuildContext
from cloze.pipeline.corpus.duplicates import distributed
from cloze.pipeline.corpus.duplicates.distributed import (
    SIZES,
    FindCandidates,
    Sizes,
    shared_columns,
    write_blocks,
)
from cloze.pipeline.corpus.duplicates.plan import CorpusPlan, CorpusPlanRequest, plan
from cloze.pipeline.corpus.files.intermediate import signatures_schema
from cloze.pipeline.corpus.options import DEFAULT
from cloze.pipeline.corpus.signatures import SKETCH_BYTES
from cloze.pipeline.runners.shuffle import ShuffleJob

BLOCK, IN_MESSAGE = 1 << 15, 275
LINK = 1.25e9  # bytes a second of a worker's network: 10 Gbit/s


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


class CountedShuffle:
    """Stand-in for `run_shuffle`: runs the steps in this process and counts what they send."""

    def __init__(self) -> None:
        self.seconds, self.bytes, self.messages, self.largest_bucket = 0.0, 0, 0, 0

    def __call__(
        self, build: BuildContext, step: str, work: ShuffleJob, blocks: int
    ) -> list[dict[str, Any]]:
        del build, step
        start = time.process_time()
        buckets = self._sent(
            message for block in range(blocks) for message in work.map_block(block)
        )
        self.largest_bucket = max(sum(map(len, inbox)) for inbox in buckets.values())
        replies = self._sent(
            message
            for bucket, inbox in buckets.items()
            for message in work.reduce_bucket(bucket, inbox)
        )
        results = [work.apply_replies(block, replies.get(block, [])) for block in range(blocks)]
        self.seconds += time.process_time() - start
        return results

    def _sent(self, messages: Iterable[tuple[int, bytes]]) -> dict[int, list[bytes]]:
        inboxes: dict[int, list[bytes]] = defaultdict(list)
        for receiver, message in messages:
            inboxes[receiver].append(message)
            self.bytes += len(message)
            self.messages += 1
        return inboxes


def worker_peak(directory: Path, paths: list[str], documents: list[int]) -> int:
    """Return the peak memory of a process that screens a full block and a full bucket, in bytes."""
    write_blocks(str(directory), paths, documents, sum(documents))
    job = FindCandidates(
        directory=str(directory), columns=shared_columns(DEFAULT, True), slices=950
    )
    for _ in job.map_block(0):
        pass
    values = random_keys.fold_in(8, np.arange(SIZES.bucket) % (SIZES.bucket * 4 // 5))
    messages = [
        number.to_bytes(4, "little") + own.tobytes()
        for number, own in enumerate(np.array_split(values, 3800))
    ]
    replies = dict(job.reduce_bucket(0, messages))
    job.apply_replies(0, replies.values())
    return peak_memory()


def cpu() -> float:
    """Return the CPU seconds of this process and of its children that have ended."""
    found = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in found)


def plan_on(directory: Path, runner: str, paths: list[str], documents: list[int]) -> CorpusPlan:
    """Plan by a shuffle, with a build of its own."""
    build = BuildContext(
        path=str(directory / "out"), inputs={}, execution=Execution(runner=runner), fingerprint="f"
    )
    slices = max(1, BLOCK // IN_MESSAGE)
    sizes = Sizes(block=BLOCK, bucket=-(-sum(documents) // slices))
    with build.cleanup:
        return distributed.plan_by_shuffle(
            build, paths, documents, plan_request(directory, len(paths)), sizes
        )


def plan_request(directory: Path, parts: int) -> CorpusPlanRequest:
    return CorpusPlanRequest(
        shard_bytes=4 << 20,
        directory=str(directory / "plans"),
        keep_dropped=False,
        minhash=DEFAULT,
        exact=True,
        threshold=0.6,
        examples=6,
        parts=[f"part-{number}" for number in range(parts)],
        kinds=["books"] * parts,
    )


def measure(count: int, runner: str, duplicates: float) -> tuple[CountedShuffle, float, float, int]:
    """Return the counts, CPU seconds in this process and on the runner, and dropped documents."""
    with tempfile.TemporaryDirectory() as room:
        directory = Path(room)
        paths, documents = write_references(directory, count, duplicates)
        counted, shuffle = CountedShuffle(), distributed.run_shuffle
        distributed.run_shuffle = counted
        try:
            start = cpu()
            here = plan_on(directory / "here", "local", paths, documents)
            in_process = cpu() - start
        finally:
            distributed.run_shuffle = shuffle
        start = cpu()
        there = plan_on(directory / "there", runner, paths, documents)
        on_runner = cpu() - start
        one = directory / "one"
        one.mkdir()
        if not plan(paths, plan_request(one, len(paths))) == here == there:
            raise SystemExit(f"the plans of {count} documents differ")
        return counted, in_process, on_runner, sum(here.dropped.values())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, nargs=2, default=(150_000, 600_000))
    parser.add_argument("--runner", default="flink")
    parser.add_argument(
        "--duplicates", type=float, default=0.3, help="share of documents in groups"
    )
    parser.add_argument(
        "--for", type=float, default=1e9, dest="target", help="documents to extrapolate to"
    )
    parser.add_argument("--workers", type=int, default=100)
    options = parser.parse_args()
    small, large = options.documents
    one, two = (measure(count, options.runner, options.duplicates) for count in (small, large))
    more = large - small
    sent = (two[0].bytes - one[0].bytes) / more
    in_process, on_runner = ((two[n] - one[n]) / more for n in (1, 2))
    print(
        f"{small:,} and {large:,} documents, {two[3] / large:.1%} dropped; per document, by the "
        f"difference:\n"
        f"shuffle: {(two[0].seconds - one[0].seconds) / more * 1e6:.1f} µs of CPU in this process, "
        f"{sent:.0f} bytes, {(two[0].messages - one[0].messages) / more:.3f} messages; the largest "
        f"bucket {format_count(two[0].largest_bucket)}B\n"
        f"with the comparison: {in_process * 1e6:.1f} µs in this process, {on_runner * 1e6:.1f} µs "
        f"of all processes on {options.runner}"
    )
    hours = options.target * on_runner / 3600
    network = options.target * sent / options.workers / LINK
    with (
        tempfile.TemporaryDirectory() as room,
        ProcessPoolExecutor(1, get_context("spawn")) as pool,
    ):
        paths, documents = write_references(Path(room), SIZES.block, options.duplicates)
        peak = pool.submit(worker_peak, Path(room), paths, documents).result()
    print(
        f"a worker at a block of {SIZES.block:,} documents and a bucket of {SIZES.bucket:,} values: "
        f"{format_count(peak)}B at the peak\n"
        f"{options.target:,.0f} documents: {hours:,.1f} core-hours, "
        f"{format_count(options.target * sent)}B shuffled; on {options.workers} workers of a core "
        f"each {format_duration(hours * 3600 / options.workers)} of CPU, "
        f"{format_duration(network)} of a network of {format_count(LINK)}B/s each"
    )


if __name__ == "__main__":
    main()
