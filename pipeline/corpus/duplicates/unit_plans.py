"""Plans: what becomes of the documents of each unit that sorts them into shards.

A unit has consecutive batches of one or more intermediate files, about `run_bytes` of text. It gets
a file of its own, so that no worker reads what it does not need:

    kept-00003.arrow        PLAN: row and copy of each document to write, by row
    duplicates-00003.arrow  DUPLICATES, with `keep_dropped`: the dropped documents; and, with the
                            reason RETAINED, originals: key and number of the duplicate they have

`row` counts the documents of the unit, `number` those of the corpus in the order of reading.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cloze.core import storage
from cloze.core.arrow import read_arrow, write_arrow
from cloze.core.random_keys import U64
from cloze.pipeline.corpus.duplicates.repeated_ids import RepeatedIds
from cloze.pipeline.corpus.duplicates.search import I64, Bools, SignatureColumns
from cloze.pipeline.runners.sizes import run_bytes

RETAINED, DUPLICATE_ID, EXACT, NEAR = range(4)
REASONS = ("", "duplicate_id", "exact_duplicate", "near_duplicate")

PLAN = pa.schema([("row", pa.int64()), ("copy", pa.int32())])
DUPLICATES = pa.schema(
    [("row", pa.int64()), ("reason", pa.int8()), ("key", pa.uint64()), ("number", pa.int64())]
)
_PIECES, _DROPPED = b"pieces", b"dropped"  # metadata of a plan


@dataclass(frozen=True, slots=True)
class Duplicates:
    """Dropped documents.

    Attributes:
        numbers: int64 [k], their numbers, ascending.
        reason: int8 [k], index into REASONS.
        of: int64 [k], number of the kept document.
        repeated: kept documents that share their id with another kept one.
    """

    numbers: I64
    reason: npt.NDArray[np.int8]
    of: I64
    repeated: RepeatedIds


class Piece(NamedTuple):
    """Batches of an intermediate file; `path` is without ending."""

    path: str
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class UnitPlan:
    """The plan of a unit.

    Attributes:
        pieces: its documents.
        dropped: intermediate files whose texts that cleaning dropped are the unit's, too.
        kept: schema PLAN.
        duplicates: schema DUPLICATES; None: not kept.
    """

    pieces: list[Piece]
    dropped: list[str]
    kept: pa.Table
    duplicates: pa.Table | None

    @classmethod
    def read(cls, directory: str, unit: int, *, keep_dropped: bool) -> UnitPlan:
        """Read the plan of a unit."""
        kept = read_arrow(_path(directory, "kept", unit))
        metadata = {name: json.loads(text) for name, text in kept.schema.metadata.items()}
        duplicates = read_arrow(_path(directory, "duplicates", unit)) if keep_dropped else None
        pieces = [Piece(*piece) for piece in metadata[_PIECES]]
        return cls(pieces, metadata[_DROPPED], kept, duplicates)


def _path(directory: str, kind: str, unit: int) -> str:
    return storage.join(directory, f"{kind}-{unit:05d}.arrow")


@dataclass(frozen=True)
class UnitPlans:
    """Plans of all units, to be written.

    Attributes:
        directory: directory of the files.
        columns: signatures of all documents.
        duplicates: documents to drop.
        key: uint64 [n], keys of all documents, different for documents of one id.
        parts: paths of the intermediate files without endings.
    """

    directory: str
    columns: SignatureColumns
    duplicates: Duplicates
    key: U64
    parts: Sequence[str]

    @property
    def count(self) -> int:
        """Number of units."""
        return len(self._edges) - 1

    @cached_property
    def _edges(self) -> list[int]:
        """First batch of each unit, over all files, and the number of batches.

        Without documents there is one unit, for the texts that cleaning dropped.
        They follow from the sizes of the batches alone. Files of up to two runs are not cut, since
        a reader of a store fetches somewhat more than it needs.
        """
        begins = self.columns.batch_begins
        if not begins.size:
            return [0, 0]
        sizes = np.add.reduceat(self.columns.mapped("bytes"), begins, dtype=np.int64)
        before = np.cumsum(sizes) - sizes
        most = run_bytes(int(sizes.sum()))
        part, _, _ = self.columns.where(begins)
        is_cut = (np.bincount(part, sizes) > 2 * most)[part]
        unit = np.where(is_cut, before, before[np.searchsorted(part, part)]) // most
        return [*np.flatnonzero(np.diff(unit, prepend=-1)).tolist(), begins.size]

    def write(
        self, retained: Bools, numbers: I64 | None, copies: I64 | None, *, keep_dropped: bool
    ) -> None:
        """Write the plan of each unit.

        Args:
            retained: bool [n], documents to keep.
            numbers, copies: int64 [m], ascending documents of a mixture, and their copies. None:
                those in `retained`.
            keep_dropped: write the duplicates, too.
        """
        begins = np.append(self.columns.batch_begins, self.columns.count)[self._edges].tolist()
        part_edges = [
            len(self.parts) * unit // max(1, self.count) for unit in range(self.count + 1)
        ]
        of_original = np.argsort(self.duplicates.of, kind="stable")
        originals = self.duplicates.of[of_original]
        for unit, (begin, end) in enumerate(itertools.pairwise(begins)):
            if numbers is None or copies is None:
                rows = np.flatnonzero(retained[begin:end]) + begin
                copy = self.duplicates.repeated.copies_of(rows)
            else:
                own = slice(*np.searchsorted(numbers, (begin, end)))
                rows, copy = numbers[own], copies[own]
            metadata = {
                _PIECES: json.dumps(self._pieces(unit)),
                _DROPPED: json.dumps(self.parts[slice(*part_edges[unit : unit + 2])]),
            }
            kept = pa.record_batch([rows - begin, copy.astype(np.int32)], schema=PLAN)
            write_arrow(_path(self.directory, "kept", unit), PLAN.with_metadata(metadata), [kept])
            if keep_dropped:
                dropped = np.arange(*np.searchsorted(self.duplicates.numbers, (begin, end)))
                of = of_original[slice(*np.searchsorted(originals, (begin, end)))]
                path = _path(self.directory, "duplicates", unit)
                write_arrow(path, DUPLICATES, [self._dropped(dropped, of, begin)])

    def _pieces(self, unit: int) -> list[Piece]:
        """Return the batches of a unit."""
        own = self.columns.batch_begins[slice(*self._edges[unit : unit + 2])]
        part, batch, _ = self.columns.where(own)
        runs = np.split(np.arange(own.size), np.flatnonzero(np.diff(part)) + 1)
        return [
            Piece(self.parts[part[run[0]]], int(batch[run[0]]), int(batch[run[-1]]) + 1)
            for run in runs
            if run.size
        ]

    def _dropped(self, dropped: I64, of: I64, begin: int) -> pa.RecordBatch:
        """Return duplicates and originals of the unit that begins with document `begin`.

        Args:
            dropped: int64, indices into the duplicates, of those in the unit.
            of: int64, the same of those whose original is in the unit.
        """
        found, both = self.duplicates, np.concatenate((dropped, of))
        rows = np.concatenate((found.numbers[dropped], found.of[of])) - begin
        reason: npt.NDArray[np.int8] = np.where(
            np.arange(both.size) < dropped.size, found.reason[both], RETAINED
        ).astype(np.int8)
        order = np.argsort(rows, kind="stable")
        numbers = found.numbers[both]
        columns = (rows, reason, self.key[numbers], numbers)
        return pa.record_batch([column[order] for column in columns], schema=DUPLICATES)
