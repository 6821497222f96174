"""Duplicates of a corpus with too many documents for one process, with the same result.

The rules compare only documents that share a value: a key, an exact hash or a band. So they give
the same result on each *group*, a connected component of shared values, as on all documents.
Groups are found and sent by exchanges of sorted runs (`exchange.py`), in units that fit in memory:

    values      each unit of documents -> its distinct values, 16 bytes each, by value
    links       documents that share a value -> edges between their numbers, by unit
    large, small  edges -> stars: each document is linked with the lowest number of its group
                (alternating large and small stars: Kiveris et al., "Connected Components in
                MapReduce and Beyond", 2014), until nothing changes
    groups      stars -> the group of each document, by unit
    candidates  each unit -> signatures of documents in groups, by partition (a hash of the group)
    decide      each partition -> decisions, by unit

A group of more documents than `Sizes.most` is split: it is linked again by half of the bands, and
so on; those of one id or text stay together. Its documents are counted. Nothing else depends on
sizes or runners, and the driver holds some bytes per unit and partition.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from cloze.core import random_keys, storage
from cloze.core.ragged import I64
from cloze.core.stages.stage import BuildContext
from cloze.pipeline.corpus.duplicates.rules import CorpusPlanRequest, decide, local_columns
from cloze.pipeline.corpus.duplicates.search import later_occurrences
from cloze.pipeline.corpus.duplicates.unit_plans import (
    ADDRESS,
    read_signatures,
    send_decisions,
    units_of,
)
from cloze.pipeline.corpus.files.intermediate import signatures_schema
from cloze.pipeline.runners.exchange import Exchange
from cloze.pipeline.runners.fan_out import fan_out
from cloze.pipeline.runners.sizes import destination_count

VALUES = pa.schema([("value", pa.uint64()), ("number", pa.int64())])
EDGES = pa.schema([("node", pa.int64()), ("other", pa.int64())])
GROUPS = pa.schema([("number", pa.int64()), ("group", pa.int64()), ("size", pa.int64())])
VALUE_BYTES = 16
PARTS = "parts.json"  # paths and kinds of the intermediate files


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Limits on what a worker holds in memory."""

    partition: int = 1 << 20  # documents or values that are sorted or decided at a time, on average
    most: int = 1 << 22  # documents of a group that is not split


SIZES = Sizes()


@dataclass(frozen=True, kw_only=True)
class SendValues:
    """Send the values of a unit, each with the first document that has it.

    The number of a document is a value, too, by which the unit's later ones with one of its values
    are linked. Values of different columns are told apart by chance alone: a group may be larger.
    """

    directory: str  # directory of the units
    columns: tuple[str, ...]  # columns in which duplicates share a value
    values: Exchange  # exchange of VALUES; a destination is a range of their hashes

    def __call__(self, unit: int) -> dict[str, int]:
        """Write a run; return its bytes."""
        batches = list(read_signatures(self.directory, unit, self.columns))
        number, *columns = (
            np.concatenate([batch[name].to_numpy() for batch in batches] or [np.zeros(0, np.int64)])
            for name in ("number", *self.columns)
        )
        values, numbers = np.concatenate(columns), np.tile(number, len(columns))
        later, first = later_occurrences(values)
        is_first = np.ones(values.size, dtype=bool)
        is_first[later] = False
        later, first = numbers[later], numbers[first]
        heads = np.unique(first)
        local = np.concatenate((heads, first)).astype(np.uint64)
        values = np.concatenate((values[is_first], local))
        numbers = np.concatenate((numbers[is_first], heads, later))
        places = random_keys.randint_below(random_keys.splitmix64(values), self.values.places)
        table = pa.table([values, numbers], schema=VALUES)
        return {"bytes": self.values.write(unit, [(table, places.astype(np.int64))])}


@dataclass(frozen=True, kw_only=True)
class LinkDocuments:
    """Link the documents that share a value with the first of them."""

    values: Exchange  # exchange of VALUES
    edges: Exchange  # exchange of EDGES; a place is a unit
    partition: int  # values that are sorted at a time

    def __call__(self, destination: int) -> dict[str, int]:
        """Write a run; return its bytes."""
        return {"bytes": self.edges.write(destination, self._blocks(destination))}

    def _blocks(self, destination: int) -> Iterator[tuple[pa.Table, I64]]:
        with self.values.read(VALUES, destination, destination + 1) as ranges:
            batches = list(ranges.batches(destination))
            parts = -(-sum(batch.num_rows for batch in batches) // self.partition)
            for part in range(parts):
                own = [batch["value"].to_numpy() % np.uint64(parts) == part for batch in batches]
                rows = [batch.filter(mask) for batch, mask in zip(batches, own, strict=True)]
                table = pa.Table.from_batches(rows, schema=VALUES)
                value, number = (table[name].to_numpy() for name in VALUES.names)
                later, first = later_occurrences(value)
                ranges.release()
                yield _edges(number[later], number[first])


def _edges(left: I64, right: I64) -> tuple[pa.Table, I64]:
    """Return distinct EDGES in both directions, and the unit of each."""
    nodes, others = np.concatenate((left, right)), np.concatenate((right, left))
    node, other = _distinct(nodes[nodes != others], others[nodes != others])
    return pa.table([node, other], schema=EDGES), units_of(node)


def _distinct(nodes: I64, others: I64) -> tuple[I64, I64]:
    """Return the distinct pairs in order."""
    order = np.lexsort((others, nodes))
    nodes, others = nodes[order], others[order]
    opens = np.ones(nodes.size, dtype=bool)
    opens[1:] = (np.diff(nodes) != 0) | (np.diff(others) != 0)
    return nodes[opens], others[opens]


def _neighbours(edges: Exchange, destination: int) -> tuple[I64, I64, I64, I64]:
    """Return the edges of the documents of a destination, by node and neighbour.

    Returns:
        node, other, the lowest of the node and its neighbours, and the edge's rank at the node.
    """
    with edges.read(EDGES, destination, destination + 1) as ranges:
        table = pa.Table.from_batches(list(ranges.batches(destination)), schema=EDGES)
        node, other = _distinct(*(table[name].to_numpy() for name in EDGES.names))
    _, begins, counts = np.unique(node, return_index=True, return_counts=True)
    least = np.repeat(np.minimum(node[begins], other[begins]), counts)
    return node, other, least, np.arange(node.size) - np.repeat(begins, counts)


@dataclass(frozen=True, kw_only=True)
class JoinStars:
    """Link the neighbours of each document with the lowest of them."""

    edges: Exchange  # edges and joined: exchanges of EDGES before and after
    joined: Exchange
    is_large: bool  # link the higher neighbours; else the lower ones, and the document

    def __call__(self, destination: int) -> dict[str, int]:
        """Write a run; return the number of new edges."""
        node, other, least, rank = _neighbours(self.edges, destination)
        if self.is_large:
            higher = other > node
            left, right = other[higher], least[higher]
            changed = np.count_nonzero(right != node[higher])
        else:
            lower = other < node
            own = lower & (rank == 0)
            left = np.concatenate((other[lower], node[own]))
            right = np.concatenate((least[lower], least[own]))
            changed = np.count_nonzero(lower & (rank > 0))
        self.joined.write(destination, [_edges(left, right)])
        return {"changed": int(changed)}


@dataclass(frozen=True, kw_only=True)
class NameGroups:
    """Tell each document of a star the star's centre and size."""

    edges: Exchange  # exchange of EDGES, all of them in stars
    groups: Exchange  # exchange of GROUPS; a destination is a unit
    most: int  # documents of a group that is not split

    def __call__(self, destination: int) -> dict[str, int]:
        """Write a run; return the number of documents, and those in groups that are too large."""
        node, other, least, _ = _neighbours(self.edges, destination)
        is_centre = least == node
        centres, counts = np.unique(node[is_centre], return_counts=True)
        numbers = np.concatenate((centres, other[is_centre]))
        groups = np.concatenate((centres, node[is_centre]))
        sizes = np.concatenate((counts, np.repeat(counts, counts))) + 1
        table = pa.table([numbers, groups, sizes], schema=GROUPS)
        self.groups.write(destination, [(table, units_of(numbers))])
        return {"documents": int(numbers.size), "split": int((sizes > self.most).sum())}


@dataclass(frozen=True, kw_only=True)
class SendCandidates:
    """Send the signatures of a unit's documents in groups; a destination is a partition."""

    request: CorpusPlanRequest  # parameters of the plan
    levels: tuple[Exchange, ...]  # exchanges of GROUPS, each by fewer bands than the one before
    candidates: Exchange  # exchange of signatures
    most: int  # documents of a group that is not split

    def __call__(self, unit: int) -> dict[str, int]:
        """Write a run; return its bytes."""
        numbers, groups = self._groups(unit)
        return {"bytes": self.candidates.write(unit, self._blocks(unit, numbers, groups))}

    def _groups(self, unit: int) -> tuple[I64, I64]:
        """Return the documents in groups, by number, and the group of each."""
        found: list[tuple[I64, I64]] = []
        too_large: I64 | None = None  # documents of the level before
        for level in self.levels:
            with level.read(GROUPS, unit, unit + 1) as ranges:
                table = pa.Table.from_batches(list(ranges.batches(unit)), schema=GROUPS)
                number, group, size = (table[name].to_numpy().copy() for name in GROUPS.names)
            own = np.ones(number.size, bool) if too_large is None else np.isin(number, too_large)
            fits = own & ((size <= self.most) | (level is self.levels[-1]))
            found.append((number[fits], group[fits]))
            too_large = number[own & ~fits]
        numbers, groups = (np.concatenate(side) for side in zip(*found, strict=True))
        order = np.argsort(numbers)
        return numbers[order], groups[order]

    def _blocks(self, unit: int, numbers: I64, groups: I64) -> Iterator[tuple[pa.Table, I64]]:
        hashes = random_keys.splitmix64(groups.astype(np.uint64))
        places = random_keys.randint_below(hashes, self.candidates.places).astype(np.int64)
        columns = self.request.compared_columns()
        for batch in read_signatures(self.request.directory, unit, columns):
            low, high = np.searchsorted(numbers, batch["number"].to_numpy()[[0, -1]] + [0, 1])
            if low < high:
                rows = numbers[low:high] - batch["number"][0].as_py()
                table = pa.Table.from_batches([batch]).take(pa.array(rows))
                for name in self.request.bands():  # parts of a split group share no bands
                    at = table.schema.get_field_index(name)
                    salted = pa.array(table[name].to_numpy() ^ hashes[low:high])
                    table = table.set_column(at, table.schema.field(at), salted)
                yield table, places[low:high]


@dataclass(frozen=True, kw_only=True)
class DecidePartition:
    """Decide on the documents of a partition."""

    request: CorpusPlanRequest  # parameters of the plan
    candidates: Exchange  # exchange of signatures; a destination is a partition
    decisions: Exchange  # exchange of DECISIONS; a destination is a unit

    def __call__(self, partition: int) -> dict[str, Any]:
        """Write a run; return the figures."""
        request = self.request
        known = signatures_schema(request.minhash, request.threshold > 0)
        names = request.compared_columns()
        arrow_schema = pa.schema([*ADDRESS, *(known.field(name) for name in names)])
        parts, kinds = json.loads(storage.read_text(storage.join(request.directory, PARTS)))
        with local_columns(request.directory) as columns:
            with self.candidates.read(arrow_schema, partition, partition + 1) as ranges:
                columns.gather(ranges.batches(partition))
            table, figures = decide(columns, replace(request, parts=parts, kinds=kinds))
        send_decisions(self.decisions, partition, table)
        return figures


def decide_in_partitions(
    build: BuildContext, request: CorpusPlanRequest, units: int, documents: int
) -> tuple[Exchange, list[dict[str, Any]], int]:
    """Decide as `cloze.pipeline.corpus.duplicates.rules.decide` does, on the build's runner.

    Args:
        build: the build; units that an earlier run finished are not run again.
        request: parameters of the plan; `write_units` has written its units.

    Returns:
        The exchange of DECISIONS, the figures of each partition, and the number of documents of
        groups that were split.
    """
    directory = request.directory
    parts = json.dumps([list(request.parts), list(request.kinds)])
    storage.write_bytes(storage.join(directory, PARTS), parts.encode())
    request = replace(request, parts=(), kinds=(), sizes=(), mix=None)
    levels: list[Exchange] = []
    candidates = split = 0
    bands = request.bands()
    while True:
        columns = ("key", *(["exact_high"] if request.exact else []), *bands)
        groups, found = _find_groups(build, directory, columns, units, documents)
        levels.append(groups)
        too_large = sum(result["split"] for result in found)
        if len(levels) == 1:
            split, candidates = too_large, sum(result["documents"] for result in found)
        if not too_large or not bands:
            break
        bands = bands[: len(bands) // 2]
    partitions = max(1, -(-candidates // SIZES.partition))
    path = storage.join(directory, "decisions")
    sent = Exchange(directory=storage.join(directory, "candidates"), runs=units, places=partitions)
    decisions = Exchange(directory=path, runs=partitions, places=units)
    send = SendCandidates(request=request, levels=tuple(levels), candidates=sent, most=SIZES.most)
    _run(build, "dedup-candidates", units, send)
    sent.connect(build, "dedup-connect-candidates")
    job = DecidePartition(request=request, candidates=sent, decisions=decisions)
    return decisions, _run(build, "dedup-decide", partitions, job), split


def _run(build: BuildContext, step: str, count: int, job: Any) -> list[dict[str, Any]]:
    units = [(f"{number:05d}-of-{count:05d}", number) for number in range(count)]
    return fan_out(build, step, units, job, unit_name="units")


def _find_groups(
    build: BuildContext, directory: str, columns: tuple[str, ...], units: int, documents: int
) -> tuple[Exchange, list[dict[str, int]]]:
    """Return an exchange of GROUPS by these columns, and the results of `NameGroups`."""
    name = f"dedup-by-{len(columns)}"

    def exchange(kind: str, runs: int, places: int, group: int = 1) -> Exchange:
        path = storage.join(directory, f"{name}-{kind}")
        return Exchange(directory=path, runs=runs, places=places, group=group)

    def run(kind: str, count: int, job: Any, written: Exchange) -> list[dict[str, int]]:
        results = _run(build, f"{name}-{kind}", count, job)
        written.connect(build, f"{name}-connect-{kind}")
        return results

    # Few units would leave many destinations, each with a unit's requests for a MB.
    most = destination_count(VALUE_BYTES * len(columns) * documents, units)
    values = exchange("values", units, min(most, units))
    send = SendValues(directory=directory, columns=columns, values=values)
    run("values", units, send, values)
    group = -(-units // values.places)
    edges = exchange("links", values.places, units, group)
    link = LinkDocuments(values=values, edges=edges, partition=SIZES.partition)
    run("links", values.places, link, edges)
    count = edges.destinations
    for number in itertools.count():
        changed = 0
        for kind in ("large", "small"):
            joined = exchange(f"{kind}-{number}", count, units, group)
            join = JoinStars(edges=edges, joined=joined, is_large=kind == "large")
            results = run(f"{kind}-{number}", count, join, joined)
            changed += sum(result["changed"] for result in results)
            edges = joined
        if not changed:
            break
    groups = exchange("groups", count, units)
    named = NameGroups(edges=edges, groups=groups, most=SIZES.most)
    return groups, run("groups", count, named, groups)
