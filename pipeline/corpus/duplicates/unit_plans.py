"""Units that sort documents into shards, and plans: what becomes of the documents of each.

A unit has consecutive batches of one or more intermediate files, about `run_bytes` of text. Its
files, so that no worker reads what it does not need:

    unit-00003.json         its shares of intermediate files
    kept-00003.arrow        PLAN: row and copy of each document to write, by row
    duplicates-00003.arrow  DUPLICATES, with `keep_dropped`: the dropped documents; and, with the
                            reason RETAINED, originals: key and number of the duplicate they have

`row` counts the documents of the unit. A document's `number` is its unit times 2^32 plus its row,
so numbers follow the order of reading, and no process needs the sizes of all units.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cloze.core import random_keys, storage
from cloze.core.arrow import read_arrow, write_arrow
from cloze.core.ragged import I64
from cloze.pipeline.corpus.files.intermediate import IntermediateFile, signatures_schema
from cloze.pipeline.corpus.mixing import Bools, Mixture, copied_key
from cloze.pipeline.runners.exchange import Exchange
from cloze.pipeline.runners.sizes import least_bytes, run_bytes

RETAINED, DUPLICATE_ID, EXACT, NEAR, RENAMED = range(5)
REASONS = ("", "duplicate_id", "exact_duplicate", "near_duplicate")

PLAN = pa.schema([("row", pa.int64()), ("copy", pa.int32())])
DUPLICATES = pa.schema(
    [("row", pa.int64()), ("reason", pa.int8()), ("key", pa.uint64()), ("number", pa.int64())]
)
# What a unit learns of its document `at`: it is a duplicate; or it is the original (RETAINED) of
# the duplicate `number`; or it shares its id with another document and becomes `copy` (RENAMED).
DECISIONS = pa.schema([("at", pa.int64()), *list(DUPLICATES)[1:], ("copy", pa.int32())])
# Where a document is, beside its signature: `row` of a record batch of an intermediate file.
ADDRESS = pa.schema(
    [("number", pa.int64()), ("part", pa.int32()), ("batch", pa.int32()), ("row", pa.int32())]
)
_PIECES, _DROPPED = b"pieces", b"dropped"  # metadata of a plan
_UNIT_BITS = 32  # of a document's row, in its number
_WRITERS = 16  # of small files, because a store answers each request slowly


class Piece(NamedTuple):
    """Batches of an intermediate file; `path` is without ending."""

    path: str
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class UnitPlan:
    """The plan of a unit."""

    pieces: list[Piece]
    dropped: list[str]  # intermediate files whose texts that cleaning dropped are the unit's, too
    kept: pa.Table
    duplicates: pa.Table | None  # schema DUPLICATES; None: not kept

    @classmethod
    def read(cls, directory: str, unit: int, *, keep_dropped: bool) -> UnitPlan:
        """Read the plan of a unit."""
        kept = read_arrow(_path(directory, "kept", unit))
        metadata = {name: json.loads(text) for name, text in kept.schema.metadata.items()}
        duplicates = read_arrow(_path(directory, "duplicates", unit)) if keep_dropped else None
        pieces = [Piece(*piece) for piece in metadata[_PIECES]]
        return cls(pieces, metadata[_DROPPED], kept, duplicates)


def _path(directory: str, kind: str, unit: int, ending: str = "arrow") -> str:
    return storage.join(directory, f"{kind}-{unit:05d}.{ending}")


def units_of(numbers: I64) -> I64:
    """Return the units of numbered documents."""
    return numbers >> _UNIT_BITS


def write_units(directory: str, parts: Sequence[str], sizes: Sequence[int]) -> int:
    """Divide all documents into units, and write a file for each; return the number of units.

    Files of up to two runs are not cut. A share is named by its number and that of all shares of
    the file, since only the file knows its batches.

    Args:
        parts: paths of the intermediate files without endings.
        sizes: bytes of text of each.
    """
    most = run_bytes(sum(sizes), least_bytes(directory))
    units: list[list[tuple[int, str, int, int]]] = []
    before, unit_before = 0, -1
    for number, (path, size) in enumerate(zip(parts, sizes, strict=True)):
        shares = -(-size // most) if size > 2 * most else 1
        for share in range(shares):
            if before // most != unit_before:
                units.append([])
                unit_before = before // most
            units[-1].append((number, path, share, shares))
            before += size // shares
    edges = [len(parts) * unit // max(1, len(units)) for unit in range(len(units) + 1)]

    def write(unit: int) -> None:
        content = {"shares": units[unit], "dropped": parts[slice(*edges[unit : unit + 2])]}
        storage.write_bytes(_path(directory, "unit", unit, "json"), json.dumps(content).encode())

    storage.make_dirs(directory)
    with ThreadPoolExecutor(_WRITERS) as pool:
        list(pool.map(write, range(len(units))))
    return len(units)


def _read_unit(directory: str, unit: int) -> dict[str, Any]:
    return storage.read_json(_path(directory, "unit", unit, "json"))


def read_signatures(
    directory: str, unit: int, names: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the signatures of a unit with ADDRESS and the columns `names`, by default all."""
    number = unit << _UNIT_BITS
    for part, path, share, shares in _read_unit(directory, unit)["shares"]:
        with IntermediateFile(f"{path}.refs.arrow") as file:
            first, end = (file.batches * each // shares for each in (share, share + 1))
            for at, batch in enumerate(file.in_order(first, end), first):
                rows = np.arange(batch.num_rows)
                place = (number + rows, np.full_like(rows, part), np.full_like(rows, at), rows)
                kept = batch.schema.names if names is None else names
                yield pa.RecordBatch.from_arrays(
                    [
                        *(
                            pa.array(each, field.type)
                            for each, field in zip(place, ADDRESS, strict=True)
                        ),
                        *(batch[name] for name in kept),
                    ],
                    schema=pa.schema([*ADDRESS, *(batch.schema.field(name) for name in kept)]),
                )
                number += batch.num_rows


def send_decisions(decisions: Exchange, run: int, table: pa.Table) -> None:
    """Write a run of DECISIONS."""
    decisions.write(run, [(table, units_of(table["at"].to_numpy()))])


class MixedDocuments(NamedTuple):
    """Documents of a unit that stay and may be chosen for a mixture."""

    rows: I64  # int64 [n], their rows of the unit
    copies: I64  # int64 [n], the copy that each becomes because its id repeats
    keys: random_keys.U64  # keys, numbers, words and heldout: [n]
    numbers: I64
    words: I64
    heldout: Bools
    groups: I64  # int64 [n], the source or language


@dataclass(frozen=True, kw_only=True)
class DecidedUnits:
    """Units whose duplicates are known."""

    directory: str  # directory of the plans
    decisions: Exchange  # exchange of DECISIONS; a destination is a unit
    # group of each intermediate file, for a mixture by source; empty: by language
    groups: tuple[int, ...] = ()

    def retained(self, unit: int, names: Sequence[str]) -> tuple[pa.Table, pa.Table, I64]:
        """Return what becomes of the documents of a unit.

        Returns:
            Decisions by row, signatures (ADDRESS and the columns `names`), and int64 [n], the copy
            that each document becomes; -1 if it is dropped.
        """
        with self.decisions.read(DECISIONS, unit, unit + 1) as ranges:
            table = pa.Table.from_batches(list(ranges.batches(unit)), schema=DECISIONS)
            found = table.sort_by([("at", "ascending"), ("number", "ascending")])
        found = found.set_column(0, "at", pa.array(found["at"].to_numpy() - (unit << _UNIT_BITS)))
        known = signatures_schema(None, verified=False, mixed=True)
        arrow_schema = pa.schema([*ADDRESS, *(known.field(name) for name in names)])
        batches = list(read_signatures(self.directory, unit, names))
        signatures = pa.Table.from_batches(batches, schema=arrow_schema)
        at, reason, copy = (found[name].to_numpy() for name in ("at", "reason", "copy"))
        copies = np.zeros(signatures.num_rows, np.int64)
        copies[at[reason == RENAMED]] = copy[reason == RENAMED]
        copies[at[(reason != RENAMED) & (reason != RETAINED)]] = -1
        return found, signatures, copies

    def mixed(self, unit: int) -> MixedDocuments:
        """Return the documents of a unit that stay, with what a mixture looks at."""
        names = ("key", "heldout", "words", "language")
        _, signatures, copies = self.retained(unit, names)
        rows = np.flatnonzero(copies >= 0)
        chosen = signatures.take(rows)
        part, *columns = (chosen[name].to_numpy() for name in ("part", "number", *names))
        numbers, keys, heldout, words, languages = columns
        groups = np.array(self.groups, np.int64)[part] if self.groups else languages
        return MixedDocuments(
            rows=rows,
            copies=copies[rows],
            keys=copied_key(keys, copies[rows]),
            numbers=numbers,
            words=words.astype(np.int64),
            heldout=heldout,
            groups=groups.astype(np.int64),
        )


@dataclass(frozen=True, kw_only=True)
class PlanUnit:
    """Write the plan of a unit."""

    units: DecidedUnits
    keep_dropped: bool  # write the duplicates, too
    mixture: Mixture | None  # the documents to keep; None: all that stay

    def __call__(self, unit: int) -> dict[str, Any]:
        """Write the files; return the number of documents to write, totals of them, and drops."""
        directory, dropped = self.units.directory, dict[str, int]()
        found, signatures, copies = self.units.retained(unit, ("bytes", "heldout"))
        rows = np.flatnonzero(copies >= 0)
        copies = copies[rows]
        if self.mixture is not None:
            one = self.units.mixed(unit)
            times, dropped = self.mixture.times(one.keys, one.numbers, one.heldout, one.groups)
            repetition = np.arange(times.sum()) - np.repeat(np.cumsum(times) - times, times)
            # a repetition of a renamed document is no copy that another one of its id is
            copies = repetition + np.repeat(copies, times) * self.mixture.most
            rows = np.repeat(rows, times)
        plan = pa.table([rows, copies.astype(np.int32)], schema=PLAN)
        content = _read_unit(directory, unit)
        part, batch = (signatures[name].to_numpy() for name in ("part", "batch"))
        pieces = []
        for number, path in {number: path for number, path, _, _ in content["shares"]}.items():
            if (own := batch[part == number]).size:
                pieces.append(Piece(path, int(own[0]), int(own[-1]) + 1))
        metadata = {_PIECES: json.dumps(pieces), _DROPPED: json.dumps(content["dropped"])}
        path = _path(directory, "kept", unit)
        write_arrow(path, PLAN.with_metadata(metadata), plan.combine_chunks().to_batches())
        if self.keep_dropped:
            own = found.filter(pc.not_equal(found["reason"], RENAMED)).drop_columns("copy")
            path = _path(directory, "duplicates", unit)
            write_arrow(path, DUPLICATES, own.rename_columns(DUPLICATES.names).to_batches())
        chosen = signatures.take(plan["row"])
        return {
            "documents": plan.num_rows,
            "bytes": pc.sum(chosen["bytes"]).as_py() or 0,
            "heldout": pc.sum(chosen["heldout"]).as_py() or 0,
            "dropped": dropped,
        }
