"""The search for duplicates by an engine's shuffle: CPU, bytes and memory a document, and from
these what so many documents take.

    python -m benchmarks.shuffled_dedup [--documents 150000 600000] [--runner flink] [--duplicates
    0.3] [--for 1e9] [--workers 100]

References of invented documents, `--duplicates` of them in groups of 2 to 9 that share ids, exact
hashes or some bands. Two sizes are planned, and the difference is told, so start-up is left out. As
with a billion documents, a message holds about 275 values (a billion documents are 3,800 blocks,
and a column's values 950 buckets).

First in this process, where every message is counted and each step's CPU is known; then on the
runner, whose CPU is that of all processes: Beam's, Java's, the workers'. `flink` is the embedded
one and wants CLOZE_FLINK_CLASSPATH where Beam cannot fetch its job server.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections import Counter, defaultdict
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
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import BuildContext
from cloze.pipeline.corpus.duplicates.distributed import search
from cloze.pipeline.corpus.duplicates.distributed.blocks import (
    SIZES,
    Sizes,
    cut_blocks,
    write_blocks,
)
from cloze.pipeline.corpus.duplicates.distributed.search import FindCandidates, lookup_columns
from cloze.pipeline.corpus.duplicates.plan import CorpusPlan, CorpusPlanRequest, plan
from cloze.pipeline.corpus.options import DEFAULT
from cloze.pipeline.corpus.read.intermediate import signatures_schema
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
        minima = np.arange(DEFAULT.minima)
        alike = random_keys.uniform(random_keys.fold_in(5, rows[:, None], minima)) < 0.8
        sketch = random_keys.fold_in(
            6, np.where(alike, head[rows][:, None], rows[:, None]), minima
        ).astype(np.uint8)
        arrays = [pa.array(columns[name][rows]) for name in schema.names if name != "sketch"]
        kind = schema.field("sketch").type
        arrays.append(
            pa.FixedSizeBinaryArray.from_buffers(
                kind, rows.size, [None, pa.py_buffer(sketch.tobytes())]
            )
        )
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


class Counted:
    """Takes the place of `exchange`: the steps one after the other in this process, what they send
    held in lists.
    """

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.messages: Counter[str] = Counter()
        self.fullest = 0

    def __call__(
        self,
        build: BuildContext,
        step: str,
        work: ShuffleJob,
        asking: int,
        settling: int | None = None,
    ) -> list[Any]:
        del build
        name = step.removeprefix("dedup-").rstrip("0123456789-")
        began = time.process_time()
        buckets = self._sent(
            name, (message for block in range(asking) for message in work.map_block(block))
        )
        self.fullest = max([self.fullest, *(sum(map(len, held)) for held in buckets.values())])
        answered = (
            message
            for bucket, held in buckets.items()
            for message in work.reduce_bucket(bucket, held)
        )
        blocks = self._sent(name, answered)
        results = [
            work.apply_replies(block, blocks.get(block, []))
            for block in range(asking if settling is None else settling)
        ]
        self.seconds[name] += time.process_time() - began
        return results

    def _sent(self, name: str, messages: Iterable[tuple[int, bytes]]) -> dict[int, list[bytes]]:
        held: dict[int, list[bytes]] = defaultdict(list)
        for addressee, message in messages:
            held[addressee].append(message)
            self.bytes[name] += len(message)
            self.messages[name] += 1
        return held


def held_by_a_worker(room: Path, paths: list[str], documents: list[int]) -> int:
    """The most that a process holds which does a whole block's screening and a full bucket, in
    bytes; it runs in one of its own.
    """
    blocks = cut_blocks(paths, documents, sum(documents))
    write_blocks(str(room / "blocks"), blocks)
    screen = FindCandidates(directory=str(room), columns=lookup_columns(DEFAULT, True), slices=950)
    for _ in screen.map_block(0):
        pass
    values = random_keys.fold_in(8, np.arange(SIZES.bucket) % (SIZES.bucket * 4 // 5))
    messages = [
        number.to_bytes(4, "little") + own.tobytes()
        for number, own in enumerate(np.array_split(values, 3800))
    ]
    answers = dict(screen.reduce_bucket(0, messages))
    screen.apply_replies(0, answers.values())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def cpu() -> float:
    """Seconds of this process and of those that have ended."""
    found = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in found)


def planned(directory: Path, runner: str, paths: list[str], documents: list[int]) -> CorpusPlan:
    """Plan by shuffles, with a build of its own."""
    count = sum(documents)
    begun = BuildContext(
        path=str(directory / "out"), inputs={}, execution=Execution(runner=runner), fingerprint="f"
    )
    slices = max(1, BLOCK // IN_MESSAGE)
    held = Sizes(block=BLOCK, bucket=-(-count // slices))
    with begun.cleanup:
        return search.shuffled_plan(begun, paths, documents, wanted(directory, len(paths)), held)


def wanted(directory: Path, parts: int) -> CorpusPlanRequest:
    return CorpusPlanRequest(
        shard_bytes=4 << 20,
        plan_file=str(directory / "plan.arrow"),
        duplicates_file=None,
        minhash=DEFAULT,
        exact=True,
        threshold=0.6,
        examples=6,
        kinds=["books"] * parts,
    )


def measured(count: int, runner: str, duplicates: float) -> tuple[Counted, float, float, int]:
    """Return the counts of this process, CPU seconds in it and on the runner, and documents
    dropped.
    """
    with tempfile.TemporaryDirectory() as room:
        place = Path(room)
        paths, documents = write_references(place, count, duplicates)
        counted, shuffle = Counted(), search.run_shuffle
        search.run_shuffle = counted
        try:
            began = cpu()
            here = planned(place / "here", "local", paths, documents)
            own = cpu() - began
        finally:
            search.run_shuffle = shuffle
        began = cpu()
        there = planned(place / "there", runner, paths, documents)
        everywhere = cpu() - began
        one = place / "one"
        one.mkdir()
        if not plan(paths, wanted(one, len(paths))) == here == there:
            raise SystemExit(f"the plans of {count} documents differ")
        return counted, own, everywhere, sum(here.dropped.values())


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
        "--for", type=float, default=1e9, dest="target", help="documents to tell of"
    )
    parser.add_argument("--workers", type=int, default=100)
    options = parser.parse_args()
    small, large = options.documents
    one, two = (measured(count, options.runner, options.duplicates) for count in (small, large))
    more = large - small
    print(
        f"{small:,} and {large:,} documents, {two[3] / large:.1%} dropped; a document, by the "
        f"difference:"
    )
    print(f"{'step':<10} {'CPU µs here':>12} {'bytes sent':>11} {'messages':>9}")
    for name in two[0].seconds:
        found = [
            (b[name] - a[name]) / more
            for a, b in (
                (getattr(one[0], x), getattr(two[0], x)) for x in ("seconds", "bytes", "messages")
            )
        ]
        print(f"{name:<10} {found[0] * 1e6:>12.2f} {found[1]:>11.1f} {found[2]:>9.3f}")
    sent = (sum(two[0].bytes.values()) - sum(one[0].bytes.values())) / more
    own, all_of_it = ((two[n] - one[n]) / more for n in (1, 2))
    print(
        f"together: {own * 1e6:.1f} µs in this process, {all_of_it * 1e6:.1f} µs of all processes "
        f"on {options.runner}; {sent:.0f} bytes;"
        f" a bucket got {format_count(two[0].fullest)}B at most"
    )
    hours = options.target * all_of_it / 3600
    network = options.target * sent / options.workers / LINK
    with (
        tempfile.TemporaryDirectory() as room,
        ProcessPoolExecutor(1, get_context("spawn")) as pool,
    ):
        paths, documents = write_references(Path(room), SIZES.block, options.duplicates)
        most = pool.submit(held_by_a_worker, Path(room), paths, documents).result()
    print(
        f"a worker at a block of {SIZES.block:,} documents and a bucket of {SIZES.bucket:,} values "
        f"holds {format_count(most)}B at most"
    )
    print(
        f"{options.target:,.0f} documents: {hours:,.1f} core-hours, "
        f"{format_count(options.target * sent)}B shuffled;"
        f" on {options.workers} workers of a core each "
        f"{format_duration(hours * 3600 / options.workers)} of CPU,"
        f" {format_duration(network)} of a network of {format_count(LINK)}B/s each"
    )


if __name__ == "__main__":
    main()
