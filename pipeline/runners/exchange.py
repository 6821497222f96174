"""Exchange of sorted runs: rows go from the units that make them to the units that write them.

Heavy rows meet in storage, not in the engine's shuffle: Flink and Spark hold all values of a key in
memory. A row has a *place*, a number below `places`; `group` places in a row are a *destination*.

    map unit      rows -> a run: rows sorted by place, cut into record batches by destination
                  run-00002         | 0 | 1 |   2   |3|      Arrow messages, one after the other
                  run-00002.index   where each destination begins, and the rows before it
    connect       all indexes -> extents: where each destination begins in *every* run
                  extents-00000     int64 [destinations + 1, runs]
    reduce unit   consecutive destinations: rows `first` to `end` of the extents (one small read),
                  then one range of each run (many at a time)

Rows of a destination come in the order of the runs, in a run in that of places, at a place as they
were given. So the bytes follow from the map units alone, not from engines, spills or repetitions.
Units know their number only: nothing of size runs x destinations is in the driver or in the graph.
`sizes` says how many runs and destinations there are.
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from cloze.core import storage
from cloze.core.arrow import drop_page_cache, file_buffer, open_arrow
from cloze.core.errors import naming
from cloze.core.ragged import I64
from cloze.core.stages.stage import BuildContext
from cloze.pipeline.runners.fan_out import fan_out
from cloze.pipeline.runners.sizes import group_by_size

SORTED_BYTES = 32 << 20  # of rows that are sorted in memory; more are spilled to disk and merged
EXTENTS_BYTES = 16 << 20  # of a file of extents
REQUEST_BYTES = 8 << 20  # of one request for a part of a large range
PASS_BYTES, PASS_RANGES = 64 << 20, 256  # in flight at a time
_ITEM = 8  # bytes of an int64


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """Runs in a directory."""

    directory: str  # directory that all workers read and write
    runs: int  # number of runs
    places: int  # number of places
    group: int = 1  # places per destination

    @property
    def destinations(self) -> int:
        """Number of destinations."""
        return -(-self.places // self.group)

    def run_path(self, run: int) -> str:
        """Return the path of a run."""
        return storage.join(self.directory, f"run-{run:05d}")

    def write(self, run: int, blocks: Iterable[tuple[pa.Table, I64]]) -> int:
        """Write a run from blocks of rows and the place of each row; return its bytes."""
        offsets = np.zeros(self.destinations + 1, np.int64)
        pieces = list(_sorted_pieces(blocks))
        edges = [
            np.searchsorted(places // self.group, np.arange(self.destinations + 1))
            for _, places in pieces
        ]
        rows = np.sum([np.zeros_like(offsets), *edges], axis=0)
        released = 0
        with storage.atomic_output(self.run_path(run)) as handle:
            for number in range(self.destinations):
                offsets[number + 1] = offsets[number]
                if rows[number] < rows[number + 1]:
                    batch = _merged(pieces, edges, number)
                    offsets[number + 1] += handle.write(batch.serialize())
                if offsets[number + 1] - released > SORTED_BYTES:
                    released = offsets[number + 1]
                    _release(batch for batch, _ in pieces[:-1])  # the last one is in memory
        index = np.stack((offsets, rows), axis=1)
        storage.write_bytes(f"{self.run_path(run)}.index", index.tobytes())
        return int(offsets[-1])

    def connect(self, build: BuildContext, step: str) -> I64:
        """Write the extents of all runs; return the rows of each destination, int64 [destinations].

        Args:
            step: name of the step, if there are so many runs that workers do it.
        """
        blocks = range(-(-self.destinations // self._block))
        if len(blocks) == 1:
            results = [self.connect_block(0)]
        else:
            units = [(f"{block:05d}-of-{len(blocks):05d}", block) for block in blocks]
            results = fan_out(build, step, units, self.connect_block, unit_name="blocks")
        return np.concatenate([np.diff(result["rows"]) for result in results]).astype(np.int64)

    @property
    def _block(self) -> int:
        """Destinations in a file of extents."""
        return max(1, EXTENTS_BYTES // (_ITEM * self.runs))

    def _extents_path(self, block: int) -> str:
        return storage.join(self.directory, f"extents-{block:05d}")

    def connect_block(self, block: int) -> dict[str, Any]:
        """Write a file of extents; return the numbers of rows before its destinations."""
        first = block * self._block
        end = min(first + self._block, self.destinations)
        extents = np.zeros((end - first + 1, self.runs), np.int64)
        rows = np.zeros(end - first + 1, np.int64)
        span = (2 * _ITEM * first, 2 * _ITEM * (end + 1))
        for begin in range(0, self.runs, PASS_RANGES):
            runs = range(begin, min(begin + PASS_RANGES, self.runs))
            paths = [f"{self.run_path(run)}.index" for run in runs]
            for run, data in zip(runs, storage.read_ranges(paths, [span] * len(runs)), strict=True):
                extents[:, run], before = np.frombuffer(data, np.int64).reshape(-1, 2).T
                rows += before
        storage.write_bytes(self._extents_path(block), extents.tobytes())
        return {"rows": rows.tolist()}

    @contextlib.contextmanager
    def read(self, arrow_schema: pa.Schema, first: int, end: int) -> Iterator[RunRanges]:
        """Give the rows of the destinations from `first` to `end` of all runs.

        They are mapped: from the runs on a disk, or from a temporary file of ranges of a store.
        """
        extents = self._extents(first, end)
        paths = [self.run_path(run) for run in range(self.runs)]
        spans = list(zip(extents[0].tolist(), extents[-1].tolist(), strict=True))
        if storage.is_local(self.directory):
            buffers = [
                file_buffer(path).slice(low, high - low) if low < high else pa.py_buffer(b"")
                for path, (low, high) in zip(paths, spans, strict=True)
            ]
            yield RunRanges(arrow_schema, first, extents - extents[0], buffers)
            return
        with _temporary_file("cloze-ranges-") as file:
            for contents in _fetched(paths, spans):
                file.writelines(contents)
            file.flush()
            whole = file_buffer(file.name) if file.tell() else pa.py_buffer(b"")
        edges = np.cumsum([0, *(high - low for low, high in spans)]).tolist()
        buffers = [whole.slice(low, high - low) for low, high in itertools.pairwise(edges)]
        yield RunRanges(arrow_schema, first, extents - extents[0], buffers)

    def _extents(self, first: int, end: int) -> I64:
        """Return where the destinations begin in each run: int64 [end - first + 1, runs]."""
        if first == end:
            return np.zeros((1, self.runs), np.int64)
        pieces = []
        for block in range(first // self._block, (end - 1) // self._block + 1):
            begin = block * self._block
            low, high = max(first - begin, 0), min(end - begin, self._block) + 1
            span = (low * _ITEM * self.runs, high * _ITEM * self.runs)
            (data,) = storage.read_ranges([self._extents_path(block)], [span])
            pieces.append(np.frombuffer(data, np.int64).reshape(-1, self.runs))
        # a file's last row is the next file's first one
        return np.concatenate([*(piece[:-1] for piece in pieces[:-1]), pieces[-1]])


@dataclass(frozen=True)
class RunRanges:
    """Mapped ranges of all runs."""

    schema: pa.Schema  # schema of the rows
    first: int  # first destination
    edges: I64  # int64 [destinations + 1, runs], where each begins in the range of each run
    buffers: list[pa.Buffer]  # range of each run

    def batches(self, destination: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a destination, one batch per run that has any."""
        lows, highs = self.edges[destination - self.first : destination - self.first + 2].tolist()
        for buffer, low, high in zip(self.buffers, lows, highs, strict=True):
            if low < high:
                message = pa.ipc.read_message(buffer.slice(low, high - low))
                yield pa.ipc.read_record_batch(message, self.schema)

    def release(self) -> None:
        """Release the pages that were read, so that a worker's memory stays flat."""
        for buffer in self.buffers:
            drop_page_cache(buffer)


@contextlib.contextmanager
def _temporary_file(prefix: str) -> Iterator[Any]:
    with naming(tempfile.gettempdir()), tempfile.NamedTemporaryFile(prefix=prefix) as file:
        yield file


Piece = tuple[pa.RecordBatch, I64]  # rows sorted by place, and their places


def _sorted_pieces(blocks: Iterable[tuple[pa.Table, I64]]) -> Iterator[Piece]:
    """Sort about `SORTED_BYTES` at a time; all but the last piece are mapped files.

    The files have no name any more, so that a killed worker leaves none.
    """
    pending: list[tuple[pa.Table, I64]] = []
    size = 0
    for table, places in blocks:
        if size + table.nbytes > SORTED_BYTES and pending:
            batch, sorted_places = _sorted(pending)
            with _temporary_file("cloze-sort-") as file:
                with pa.ipc.new_file(file, batch.schema) as writer:
                    writer.write_batch(batch)
                file.flush()
                batch = open_arrow(file.name).get_batch(0)
            yield batch, sorted_places
            pending, size = [], 0
        if len(places):
            pending.append((table, places))
            size += table.nbytes
    if pending:
        yield _sorted(pending)


def _sorted(blocks: list[tuple[pa.Table, I64]]) -> Piece:
    table = pa.concat_tables([table for table, _ in blocks]).combine_chunks()
    return _by_place(table.to_batches()[0], np.concatenate([places for _, places in blocks]))


def _by_place(batch: pa.RecordBatch, places: I64) -> Piece:
    if (places[1:] >= places[:-1]).all():
        return batch, places
    order = np.argsort(places, kind="stable")
    return batch.take(pa.array(order)), places[order]


def _merged(pieces: list[Piece], edges: list[I64], number: int) -> pa.RecordBatch:
    """Return the rows of a destination, by place."""
    slices = [
        (
            batch.slice(bounds[number], bounds[number + 1] - bounds[number]),
            places[bounds[number] : bounds[number + 1]],
        )
        for (batch, places), bounds in zip(pieces, edges, strict=True)
        if bounds[number] < bounds[number + 1]
    ]
    if len(slices) == 1:
        return slices[0][0]
    batches, places = zip(*slices, strict=True)
    return _by_place(pa.concat_batches(batches), np.concatenate(places))[0]


def _release(batches: Iterable[pa.RecordBatch]) -> None:
    for batch in batches:
        for column in batch.columns:
            for buffer in column.buffers():
                if buffer is not None:
                    drop_page_cache(buffer)


def _fetched(paths: Sequence[str], spans: Sequence[tuple[int, int]]) -> Iterator[list[bytes]]:
    """Fetch ranges from a store in order, some at a time, large ones by several requests."""
    cuts = [
        (path, begin, min(begin + REQUEST_BYTES, high))
        for path, (low, high) in zip(paths, spans, strict=True)
        for begin in range(low, high, REQUEST_BYTES)
    ]
    for first, end in group_by_size([high - low for _, low, high in cuts], PASS_BYTES):
        for begin in range(first, end, PASS_RANGES):
            some, lows, highs = zip(*cuts[begin : min(begin + PASS_RANGES, end)], strict=True)
            yield storage.read_ranges(some, list(zip(lows, highs, strict=True)))
