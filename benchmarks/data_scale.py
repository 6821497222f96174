"""What the exchanges of corpus and dataset cost at sizes that no test can run.

    python -m benchmarks.data_scale

Numbers of units, ranges and bytes come from the product's own planning; the jobs' graphs are those
that its fan-out would submit. The extents are connected for real, from empty indexes of the true
size, for one file of extents. The plan of duplicates is made by the product's own driver; its units
answer what units of such a corpus would. Nothing else is run. Columns of the last table:

    exchange     bytes that go through it, and requests as a multiple of one per 64 KB
    read / text  bytes read from the store
    others       other requests per 8 MB of text: `REQUESTS` of each unit, and those for its files
    slowest      the largest unit as a multiple of the mean
    busy         share of 3,200 cores that work until the step ends, by the product's own balance
    hours        of the slowest core, at `RATES`
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import resource
import tempfile
import tracemalloc
from collections import Counter
from dataclasses import replace
from typing import Any
from unittest import mock

import apache_beam as beam
import numpy as np

from cloze.core.artifacts.fence import Fence
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import BuildContext
from cloze.pipeline.corpus.duplicates import partitions, plan, unit_plans
from cloze.pipeline.corpus.duplicates.rules import CorpusPlanRequest
from cloze.pipeline.corpus.duplicates.unit_plans import write_units
from cloze.pipeline.corpus.files.shards import CorpusShards
from cloze.pipeline.corpus.options import DEFAULT
from cloze.pipeline.corpus.readers.base import Slice
from cloze.pipeline.corpus.readers.byte_ranges import SLICE_BYTES
from cloze.pipeline.corpus.sources import PlannedSlice, group_slices
from cloze.pipeline.corpus.write.write import SortDocuments, WriteShards
from cloze.pipeline.dataset.ranges import bucket_count
from cloze.pipeline.dataset.shards import plan_units
from cloze.pipeline.runners.exchange import Exchange
from cloze.pipeline.runners.fan_out import _Unit, balance_units, pack_units
from cloze.pipeline.runners.sizes import (
    STORE_BYTES,
    destination_count,
    even_count,
    places_per_unit,
    run_bytes,
)

SIZES = {"10 GB": 10**10, "100 GB": 10**11, "1.5 TB": 15 * 10**11, "6 TB": 6 * 10**12}
CORES = 3200  # of 200 hosts
SHARD_BYTES = 4 << 20  # of text, as the corpus has them
CRAWL = 0.15  # text of a byte of a crawl
BYTES_PER_TOKEN, LENGTH = 4.2, 128
DOCUMENT = 3000  # bytes of text


def planned_runs(total: int, parts: list[int]) -> list[float]:
    """Return the MB of text of each unit that sorts, planned from the bytes of text of each part."""
    in_store = mock.patch.object(unit_plans, "least_bytes", return_value=STORE_BYTES)
    with tempfile.TemporaryDirectory() as directory, in_store:
        count = write_units(directory, [f"{PATH}/{n}" for n in range(len(parts))], parts)
        found = []
        for unit in range(count):
            with open(f"{directory}/unit-{unit:05d}.json") as file:
                shares = json.load(file)["shares"]
            found.append(sum(parts[n] / pieces for n, _, _, pieces in shares) / 1e6)
    return found


def runs_of(total: int) -> int:
    """Return the number of units that sort so much text."""
    return math.ceil(total / run_bytes(total, STORE_BYTES))


CRAWLED = "s3://crawl/CC-MAIN-2026-47/segments"
PATH = "s3://bucket/runs/corpus-0123456789abcdef/_scratch"


# CPU seconds per MB of text; `read`: of a crawl, of which 0.15 is text (benchmarks/README.md)
RATES = {"read": 1 / 19.1, "sort": 0.010, "write": 0.028, "rows": 0.093, "shards": 0.060}
# of a unit, whatever its size, beside its text: results, plans, indexes (`benchmarks.data_cluster`)
REQUESTS = {"read": 9, "sort": 10, "write": 5, "rank": 6, "take": 6, "rows": 10, "shards": 6}
PIECE, PUT, PART = 8 << 20, 5 << 20, 50 << 20  # of a read, of an upload by one request, of others
WRITTEN = {"read": 1, "sort": 1, "write": 1, "rank": 0, "take": 0, "rows": 0.5, "shards": 4}
ROW_BYTES = 0.5  # of an exchange of rows, for a byte of text
MOVED = {
    "read": 1.01,
    "sort": 1.05,
}  # bytes read for a byte of text: borders; columns beside the text


def balanced(weights: list[float]) -> dict[str, Any]:
    """Return how evenly units of these weights (MB) share the cores."""
    units = [(f"{number}", number) for number in range(len(weights))]
    workers = min(CORES, len(units))
    queues = [0.0] * workers
    for place, (name, number) in enumerate(balance_units(units, weights, CORES)):
        queues[place % workers] += weights[number] if name else 0.0
    return {
        "units": len(units),
        "slowest": f"{max(weights) * len(weights) / sum(weights):.2f}",
        "busy": f"{sum(weights) / CORES / max(queues):.0%}",
        "longest": max(queues),
    }


def uploads(size: float) -> int:
    """Return the requests that write an object."""
    return 1 if size <= PUT else 2 + math.ceil(size / PART)


def step(
    name: str, weights: list[float], ranges: int, extents: int, files: tuple[int, int]
) -> dict[str, Any]:
    """Return a row of the last table.

    Args:
        weights: MB of text that each unit has; for `read` of a crawl, for `shards` of rows.
        ranges: requests for ranges of an exchange; 0: the step reads none.
        extents: bytes that say where the ranges begin.
        files: number of files that are read, and that are written.
    """
    shares, total = balanced(weights), sum(weights) * 1e6
    longest = shares.pop("longest")
    hours = f"{longest * RATES[name] / 3600:.3f}" if name in RATES else "–"
    reads = 0 if ranges else files[0] * math.ceil(total / files[0] / PIECE)
    writes = files[1] * uploads(total * WRITTEN[name] / files[1])
    others = len(weights) * REQUESTS[name] + reads + writes
    return {
        "step": name,
        **shares,
        "exchange": f"{total / 1e9:,.0f} GB" if ranges else "–",
        "per 64 KB": f"{ranges * (64 << 10) / total:.2f}" if ranges else "–",
        "read / text": f"{(MOVED.get(name, 1) * total + extents) / total:.2f}",
        "others": f"{others / (total / PIECE):.2f}",
        "a unit": f"{others / len(weights):.0f}",
        "hours": hours,
    }


def work_of_none(unit: Any) -> dict[str, Any]:
    """Stand for the function of a step."""
    raise NotImplementedError


def graph_bytes(units: list[tuple[str, Any]], function: Any) -> int:
    """Return the size of the job that a fan-out submits."""
    elements = balance_units(units, [1.0] * len(units), CORES)
    jobs, _ = pack_units((f"00000/{name}" if name else name, unit) for name, unit in elements)
    work = _Unit(function, PATH, "/", Fence(PATH, "token"))
    pipeline = beam.Pipeline()
    _ = pipeline | beam.Create(jobs, reshuffle=True) | beam.FlatMap(work.process)
    return len(pipeline.to_runner_api().SerializeToString())


def read_units(total: int) -> list[tuple[str, Any]]:
    """Return the units that read a crawl with so much text: files of about a gigabyte."""
    draw, left = random.Random(3), total / CRAWL
    slices: list[PlannedSlice] = []
    while left > 0:
        size = int(draw.lognormvariate(math.log(1e9), 0.15))
        whole = Slice(kind="warc", name="", path="", size=size)
        name = f"{len(slices):08d}.warc.gz"
        count = max(1, size // SLICE_BYTES)
        whole = replace(whole, name=name, path=f"{CRAWLED}/{name}")
        borders = [size * number // count for number in range(count + 1)]
        digest = hashlib.sha256(name.encode()).hexdigest()
        slices += [
            PlannedSlice(slice=piece, sha256=digest, sources=()) for piece in whole.split(borders)
        ]
        left -= size
    groups = group_slices(slices, in_store=True)
    return [(group.part, group.unit()) for group in groups]


def dataset_units(rows: int, buckets: int, shards: int) -> list[tuple[str, Any]]:
    """Return the units that write a dataset's shards."""
    counts = np.full((1, buckets), rows // buckets)
    planned = plan_units(counts, counts.sum(axis=1, keepdims=True), shards)
    return [
        (f"train-{n:05d}-of-{shards:05d}", {**unit, "path": f"{PATH}/train-{n:05d}.arrow"})
        for n, unit in enumerate(planned)
    ]


def connected(exchange: Exchange) -> tuple[float, int]:
    """Connect one file of extents in this process; return its bytes and those of all files."""
    with tempfile.TemporaryDirectory() as directory:
        here = Exchange(
            directory=directory,
            runs=exchange.runs,
            places=exchange.places,
            group=exchange.group,
        )
        index = np.zeros((exchange.destinations + 1, 2), np.int64).tobytes()
        with open(f"{directory}/index", "wb") as file:
            file.write(index)
        for run in range(exchange.runs):
            os.link(f"{directory}/index", f"{here.run_path(run)}.index")
        here.connect_block(0)
    whole = 8 * exchange.runs * (exchange.destinations + 1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, whole


def planned(total: int, parts: int) -> dict[str, Any]:
    """Plan the duplicates of a corpus whose units only answer; return the figures of its driver.

    A quarter of the documents are candidates, in groups of three.
    """
    documents = total // DOCUMENT
    largest, counts = 0, Counter[str]()
    kinds: set[type] = set()

    def answer(
        build: BuildContext, step: str, units: list[tuple[str, Any]], job: Any, **_: Any
    ) -> list[dict[str, Any]]:
        nonlocal largest
        if type(job) not in kinds:
            kinds.add(type(job))
            largest = max(largest, graph_bytes(units, job))
        counts[step.split("-")[-1]] += len(units)
        share, some = documents // len(units), documents // 4 // len(units)
        figures = {"pairs": [["jsonl", "jsonl", "near_duplicate", some]], "examples": []}
        names = ("groups", "renamed", "largest", "unconfirmed")
        one = {
            "changed": int(step.endswith(("-0", "-1"))),
            "documents": some if "groups" in step else share,
            "bytes": total // len(units),
            **dict.fromkeys(("heldout", "split"), 0),
            **dict.fromkeys(names, 1),
            "dropped": {},
            **figures,
        }
        return [dict(one) for _ in units]

    def connect(exchange: Exchange, build: BuildContext, step: str) -> Any:
        return np.zeros(exchange.destinations, np.int64)

    with tempfile.TemporaryDirectory() as directory:
        request = CorpusPlanRequest(
            shard_bytes=300 << 20,
            directory=directory,
            keep_dropped=False,
            minhash=DEFAULT,
            exact=True,
            threshold=0.6,
            examples=6,
            parts=[f"{PATH}/parts/{number:05d}-jsonl" for number in range(parts)],
            kinds=["jsonl"] * parts,
            sizes=[total // parts] * parts,
        )
        build = BuildContext(
            path=f"{directory}/out",
            inputs={},
            execution=Execution(dedup_in_memory_documents=0),
            fingerprint="f",
        )
        tracemalloc.start()
        with (
            build.cleanup,
            mock.patch.object(partitions, "fan_out", answer),
            mock.patch.object(plan, "fan_out", answer),
            mock.patch.object(Exchange, "connect", connect),
            mock.patch.object(unit_plans, "least_bytes", return_value=STORE_BYTES),
        ):
            plan.plan(build, request, documents)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return {
        "documents": f"{documents / 1e6:,.0f}M",
        "values": counts["values"],
        "links": counts["links"],
        "partitions": counts["decide"],
        "graph kB": round(largest / 1e3),
        "driver MB": round(peak / 1e6),
    }


def show(rows: list[dict[str, Any]]) -> None:
    """Print a table."""
    print("| " + " | ".join(rows[0]) + " |")
    print("|" + "---|" * len(rows[0]))
    for row in rows:
        print("| " + " | ".join(str(value) for value in row.values()) + " |")
    print()


def main() -> None:
    rows: list[dict[str, Any]] = []
    steps: list[dict[str, Any]] = []
    show([{"text": name, **planned(total, runs_of(total))} for name, total in SIZES.items()])
    for name, total in SIZES.items():
        shards = even_count(math.ceil(total / SHARD_BYTES))
        read = read_units(total)
        crawl = [sum(piece["size"] for piece in unit["slices"]) / 1e6 for _, unit in read]
        sorted_mb = planned_runs(total, [int(1e6 * CRAWL * size) for size in crawl])
        runs = len(sorted_mb)
        most = min(destination_count(total, runs), total // STORE_BYTES)
        group = places_per_unit(shards, most)
        exchange = Exchange(directory=PATH, runs=runs, places=shards, group=group)
        sort = SortDocuments(plans=PATH, documents=exchange, dropped=None)
        write = WriteShards(runs=exchange, dropped=None, directory=PATH, documents=0)
        tokens = total / BYTES_PER_TOKEN
        bytes_of = (total // shards,) * shards
        names = tuple(f"corpus-{n:05d}-of-{shards:05d}.arrow" for n in range(shards))
        groups = CorpusShards(path=PATH, names=names, sizes=bytes_of).groups(PATH)
        row_bytes = int(total * ROW_BYTES)
        most = min(CORES, max(1, row_bytes // (STORE_BYTES // 2)))
        dataset_shards = min(most, destination_count(row_bytes, len(groups)))
        buckets = bucket_count(tokens, LENGTH, len(groups), dataset_shards)
        graph = max(
            graph_bytes(read, work_of_none),
            graph_bytes(dataset_units(int(tokens / LENGTH), buckets, dataset_shards), work_of_none),
            graph_bytes([(f"{n:05d}-of-{runs:05d}", n) for n in range(runs)], sort),
            graph_bytes([(f"{n:05d}-{n:05d}", n) for n in range(exchange.destinations)], write),
        )
        memory, extents = connected(exchange)
        ranges = runs * exchange.destinations
        rows.append(
            {
                "text": name,
                "read": len(read),
                "runs": runs,
                "MB a run": round(total / runs / 1e6),
                "shards": shards,
                "destinations": exchange.destinations,
                "KB a range": round(total / ranges / 1e3),
                "requests": f"{ranges / 1e6:.1f}M",
                "extents MB": round(extents / 1e6),
                "graph kB": round(graph / 1e3),
                "process MB": round(memory / 1e6),
                "dataset shards": dataset_shards,
            }
        )
        written = [min(group, shards - first) for first in range(0, shards, group)]
        weights = {
            "read": crawl,
            "sort": sorted_mb,
            "write": [total / 1e6 / shards * count for count in written],
            "rank": [group.size / 1e6 for group in groups],
            "take": [group.size / 1e6 for group in groups],
            "rows": [group.size / 1e6 for group in groups],
            "shards": [total * ROW_BYTES / 1e6 / dataset_shards] * dataset_shards,
        }
        moved = {"write": ranges, "shards": len(groups) * dataset_shards}
        pieces = sum(len(unit["slices"]) for _, unit in read)
        files = {"read": (pieces, len(read)), "sort": (runs, runs), "write": (1, shards)}
        files |= dict.fromkeys(("rank", "take", "rows"), (shards, len(groups)))
        files["shards"] = (1, dataset_shards)
        for one, sizes in weights.items():
            index = 8 * runs * len(sizes) if one in moved else 0
            steps.append({"text": name, **step(one, sizes, moved.get(one, 0), index, files[one])})
    show(rows)
    show(steps)


if __name__ == "__main__":
    main()
