"""What the exchanges of corpus and dataset cost at sizes that no test can run.

    python -m benchmarks.data_scale

Numbers of units, ranges and bytes come from the product's own planning; the jobs' graphs are those
that its fan-out would submit. The extents are connected for real, from empty indexes of the true
size, for one file of extents. The plan of duplicates is made by the product's own driver; its units
answer what units of such a corpus would. Nothing else is run: hours are not in the table.
"""

from __future__ import annotations

import math
import os
import resource
import tempfile
import tracemalloc
from collections import Counter
from typing import Any
from unittest import mock

import apache_beam as beam
import numpy as np

from cloze.core.artifacts.claim import Fence
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import BuildContext
from cloze.pipeline.corpus.duplicates import partitions, plan
from cloze.pipeline.corpus.duplicates.rules import CorpusPlanRequest
from cloze.pipeline.corpus.options import DEFAULT
from cloze.pipeline.corpus.readers.base import Slice
from cloze.pipeline.corpus.write.write import SortDocuments, WriteShards
from cloze.pipeline.dataset.ranges import bucket_count
from cloze.pipeline.dataset.shards import plan_units
from cloze.pipeline.runners.exchange import Exchange
from cloze.pipeline.runners.fan_out import _Unit, balance_units, pack_units
from cloze.pipeline.runners.sizes import destination_count, run_bytes

SIZES = {"10 GB": 10**10, "100 GB": 10**11, "1.5 TB": 15 * 10**11, "6 TB": 6 * 10**12}
CORES = 3200  # of 200 hosts
LEAST_SHARD_BYTES, MOST_FILES = 4 << 20, 10_000  # of text and of shards, as the corpus has them
CRAWL, SLICE_BYTES = 0.15, 256 << 20  # text of a byte of a crawl, and what is read at once
BYTES_PER_TOKEN, LENGTH = 4.2, 128
DOCUMENT = 3000  # bytes of text


def runs_of(total: int) -> int:
    """Return the number of units that sort so much text."""
    return math.ceil(total / run_bytes(total))


CRAWLED = "s3://crawl/CC-MAIN-2026-47/segments"
PATH = "s3://bucket/runs/corpus-0123456789abcdef/_scratch"


def work_of_none(unit: Any) -> dict[str, Any]:
    """Stand for the function of a step."""
    raise NotImplementedError


def graph_bytes(units: list[tuple[str, Any]], function: Any) -> int:
    """Return the size of the job that a fan-out submits."""
    elements = balance_units(units, [1.0] * len(units), CORES)
    packed, _ = pack_units(unit for _, unit in elements)
    jobs = [(name, text) for (name, _), text in zip(elements, packed, strict=True)]
    work = _Unit(function, PATH, "/", Fence(PATH, "token"))
    pipeline = beam.Pipeline()
    _ = pipeline | beam.Create(jobs, reshuffle=True) | beam.ParDo(work)
    return len(pipeline.to_runner_api().SerializeToString())


def read_units(total: int) -> list[tuple[str, Any]]:
    """Return the units that read a crawl with so much text."""
    source = int(total / CRAWL)
    slices, size = math.ceil(source / SLICE_BYTES), run_bytes(source)
    each = max(1, size // SLICE_BYTES)
    units = []
    for first in range(0, slices, each):
        cut = [
            Slice(
                kind="warc",
                name=f"{n:08d}.warc.gz",
                path=f"{CRAWLED}/{n:08d}.warc.gz",
                size=SLICE_BYTES,
            )
            for n in range(first, min(first + each, slices))
        ]
        units.append((f"{first:016x}-{each}", {"slices": [piece.as_json() for piece in cut]}))
    return units


def dataset_units(rows: int, buckets: int, shards: int) -> list[tuple[str, Any]]:
    """Return the units that write a dataset's shards."""
    counts = np.full((1, buckets), rows // buckets)
    planned = plan_units("train", counts, counts.sum(axis=1, keepdims=True), shards)
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
    rows = []
    show([{"text": name, **planned(total, runs_of(total))} for name, total in SIZES.items()])
    for name, total in SIZES.items():
        shards = math.ceil(total / max(LEAST_SHARD_BYTES, total / MOST_FILES))
        runs = runs_of(total)
        group = -(-shards // min(shards, destination_count(total, runs)))
        exchange = Exchange(directory=PATH, runs=runs, places=shards, group=group)
        sort = SortDocuments(plans=PATH, documents=exchange, dropped=None)
        write = WriteShards(runs=exchange, dropped=None, directory=PATH, documents=0)
        tokens = total / BYTES_PER_TOKEN
        dataset_shards = min(MOST_FILES, 8 * runs)
        buckets = bucket_count(tokens, LENGTH, runs, dataset_shards)
        read = read_units(total)
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
                "read / text": f"{(total + extents) / total:.3f}",
                "graph kB": round(graph / 1e3),
                "extents MB": round(extents / 1e6),
                "process MB": round(memory / 1e6),
                "units a core": f"{min(runs, exchange.destinations) / CORES:.1f}",
                "dataset buckets": buckets,
            }
        )
    show(rows)


if __name__ == "__main__":
    main()
