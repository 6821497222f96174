"""Figures of a distributed plan, by block, and assignment of documents to shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from cloze.core import storage
from cloze.core.arrow import read_arrow, write_arrow
from cloze.core.random_keys import U64
from cloze.pipeline.corpus.duplicates.distributed.blocks import (
    WHERE,
    Array,
    Block,
    block_file,
    load,
    pack_messages,
    packed,
    places_of,
    unpack_messages,
)
from cloze.pipeline.corpus.duplicates.plan import DUPLICATES, EXACT, NEAR, PLAN, REASONS
from cloze.pipeline.corpus.read.intermediate import IntermediateFile, shard_of, shard_position
from cloze.pipeline.corpus.write.mixing import copied_key
from cloze.pipeline.corpus.write.shards import write_by_shard

KINDS = "kinds.npz"  # `kinds`: int16, number of the kind of source of each intermediate file
KEPT_ROWS = "kept"
KEPT_SCHEMA = pa.schema(
    [
        pa.field("key", pa.uint64(), nullable=False),
        pa.field("bytes", pa.uint32(), nullable=False),
        pa.field("heldout", pa.bool_(), nullable=False),
        pa.field("words", pa.uint32(), nullable=False),
        pa.field(
            "group", pa.uint32(), nullable=False
        ),  # number of the kind of source, or language code
    ]
)
DROPPED = "dropped"
DROPPED_SCHEMA = pa.schema(
    [  # a row per dropped document, in order of the block's documents
        WHERE,
        pa.field("reason", pa.int8(), nullable=False),
        pa.field("of", pa.uint64(), nullable=False),  # `where` of the kept document
        # In the first row of each group its number of dropped documents; 0 in the others.
        pa.field("size", pa.uint32(), nullable=False),
    ]
)


def write_dropped(
    directory: str, block: int, where: U64, reason: Array, of: U64, size: Array
) -> None:
    """Write the dropped documents of a block."""
    columns = [pa.array(np.ascontiguousarray(column)) for column in (where, reason, of, size)]
    rows = pa.RecordBatch.from_arrays(columns, schema=DROPPED_SCHEMA)
    write_arrow(block_file(directory, DROPPED, block), DROPPED_SCHEMA, [rows])


def read_dropped(directory: str, block: int) -> dict[str, Array]:
    """Read the columns that `write_dropped` wrote."""
    table = read_arrow(block_file(directory, DROPPED, block))
    return {name: table[name].to_numpy() for name in DROPPED_SCHEMA.names}


def kept_of(directory: str, block: int, *names: str) -> dict[str, Array]:
    """Return the columns, and `where`, of a block's documents that are not dropped."""
    columns = Block(directory, block).columns(*names)
    kept = ~np.isin(columns["where"], read_dropped(directory, block)["where"], assume_unique=True)
    return {name: column[kept] for name, column in columns.items()}


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Count the kept and dropped documents of a block.

    Attributes:
        directory: scratch directory.
        examples: number of example pairs per kind of duplicate.
        mixed_by: `source` or `language`: also write the columns for the mixture; empty: no mixture.
    """

    directory: str
    examples: int
    mixed_by: str

    def __call__(self, unit: dict[str, int]) -> dict[str, Any]:
        """Return the sums of block `number`, and example pairs.

        An example is (reason, key, where, where of the kept document).
        """
        number = unit["number"]
        mixture_columns = (
            ("words", *(["language"] if self.mixed_by == "language" else []))
            if self.mixed_by
            else ()
        )
        kept = kept_of(self.directory, number, "key", "bytes", "heldout", *mixture_columns)
        kinds = load(f"{self.directory}/{KINDS}")["kinds"]
        if self.mixed_by:
            group = (
                kept["language"]
                if self.mixed_by == "language"
                else kinds[places_of(kept["where"])[0]]
            )
            columns = [kept[name] for name in ("key", "bytes", "heldout", "words")] + [
                group.astype(np.uint32)
            ]
            rows = pa.RecordBatch.from_arrays(
                [
                    pa.array(column, field.type)
                    for column, field in zip(columns, KEPT_SCHEMA, strict=True)
                ],
                schema=KEPT_SCHEMA,
            )
            write_arrow(block_file(self.directory, KEPT_ROWS, number), KEPT_SCHEMA, [rows])
        dropped = read_dropped(self.directory, number)
        pairs = Counter(
            zip(
                kinds[places_of(dropped["where"])[0]].tolist(),
                kinds[places_of(dropped["of"])[0]].tolist(),
                dropped["reason"].tolist(),
                strict=True,
            )
        )
        return {
            "documents": int(kept["key"].size),
            "bytes": int(kept["bytes"].sum(dtype=np.int64)),
            "heldout": int(kept["heldout"].sum()),
            "pairs": [[*names, count] for names, count in sorted(pairs.items())],
            "groups": int(np.count_nonzero(dropped["size"])),
            "largest": int(dropped["size"].max(initial=0)),
            "chosen": self._chosen(number, dropped),
        }

    def _chosen(self, number: int, gone: dict[str, Array]) -> list[list[Any]]:
        columns = Block(self.directory, number).columns("key")
        key = columns["key"][np.searchsorted(columns["where"], gone["where"])]
        examples = []
        for reason in (NEAR, EXACT):
            rows = np.flatnonzero(gone["reason"] == reason)
            for row in rows[np.argsort(key[rows], kind="stable")[: self.examples]].tolist():
                examples.append(
                    [reason, int(key[row]), int(gone["where"][row]), int(gone["of"][row])]
                )
        return examples


def added_up(
    results: Sequence[dict[str, Any]], names: Sequence[str], examples: int
) -> dict[str, Any]:
    """Add up the figures of all blocks; return fields of `CorpusPlan`.

    Args:
        names: kinds of source.
    """
    pairs: Counter[tuple[str, str, str]] = Counter()
    for result in results:
        for kind, of, reason_code, count in result["pairs"]:
            pairs[names[kind], names[of], REASONS[reason_code]] += count
    dropped: Counter[str] = Counter()
    for (_, _, reason), count in pairs.items():
        dropped[reason] += count
    chosen = []
    for reason_code in (NEAR, EXACT):
        candidates = sorted(
            row for result in results for row in result["chosen"] if row[0] == reason_code
        )
        chosen += [
            (REASONS[reason_code], _place(dropped_where), _place(kept_where))
            for _, _, dropped_where, kept_where in candidates[:examples]
        ]
    return {
        **{
            name: sum(result[name] for result in results)
            for name in ("documents", "bytes", "heldout", "groups")
        },
        "largest": max((result["largest"] for result in results), default=0),
        "dropped": dropped,
        "pairs": pairs,
        "chosen": chosen,
    }


def _place(where: int) -> tuple[int, int, int]:
    part, batch, row = (int(column[0]) for column in places_of(np.array([where], np.uint64)))
    return part, batch, row


# Assignment of documents to shards.

# with a mixture: a file per block with the chosen rows and the number of each repetition
TAKEN = "taken"
_KEPT, _DROPPED = 0, 1
_SENT = (
    np.dtype([("shard", "<u4"), ("key", "<u8"), ("where", "<u8"), ("copy", "<u4")]),
    np.dtype([("shard", "<u4"), ("key", "<u8"), ("where", "<u8"), ("reason", "i1"), ("of", "<u8")]),
)


@dataclass(frozen=True, kw_only=True)
class AssignShards:
    """`ShuffleJob` that sorts documents into pieces, that is, ranges of shards.

    Attributes:
        directory: scratch directory.
        shards: number of shards.
        each: shards per piece.
        chosen: `TAKEN` files select the documents.
        duplicates: also write the positions of dropped documents.
    """

    directory: str
    shards: int
    each: int
    chosen: bool
    duplicates: bool

    @property
    def pieces(self) -> int:
        return -(-self.shards // self.each)

    def map_block(self, block: int) -> Iterator[tuple[int, bytes]]:
        kept = kept_of(self.directory, block, "key")
        key, where, copies = kept["key"], kept["where"], np.zeros(kept["key"].size, np.int64)
        if self.chosen:
            selection = load(block_file(self.directory, TAKEN, block, "npz"))
            key, where, copies = (
                key[selection["rows"]],
                where[selection["rows"]],
                selection["copies"],
            )
        yield from self._sent(_KEPT, copied_key(key, copies), where=where, copy=copies)
        if self.duplicates:
            columns, dropped = (
                Block(self.directory, block).columns("key"),
                read_dropped(self.directory, block),
            )
            dropped_keys = columns["key"][np.searchsorted(columns["where"], dropped["where"])]
            yield from self._sent(
                _DROPPED,
                dropped_keys,
                where=dropped["where"],
                reason=dropped["reason"],
                of=dropped["of"],
            )

    def _sent(self, which: int, key: U64, **columns: Array) -> Iterator[tuple[int, bytes]]:
        shard = shard_of(shard_position(key), self.shards)
        yield from pack_messages(
            shard // self.each, packed(_SENT[which], shard=shard, key=key, **columns), which
        )

    def reduce_bucket(self, bucket: int, messages: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
        all_messages = list(messages)
        for which in (_KEPT, _DROPPED):
            _, rows = unpack_messages(
                (message for message in all_messages if message[0] == which), _SENT[which]
            )
            self._write(bucket, which, rows)
        yield bucket, b"\1"

    def apply_replies(self, block: int, answers: Iterable[bytes]) -> dict[str, Any]:
        if not any(answers):
            for which in (_KEPT, _DROPPED):
                self._write(block, which, np.zeros(0, _SENT[which]))
        return {}

    def _write(self, piece: int, which: int, rows: Array) -> None:
        rows = rows[np.lexsort((rows["where"], rows["key"], rows["shard"]))]
        first = piece * self.each
        last = min(first + self.each, self.shards)
        edges = np.searchsorted(rows["shard"], np.arange(first, last + 1))
        schema = (PLAN, DUPLICATES)[which]
        batches = (
            _batch(rows[begin:end], schema)
            for begin, end in zip(edges[:-1], edges[1:], strict=True)
        )
        write_arrow(_piece_file(self.directory, piece, which), schema, batches)

    def join(self, plan_file: str, duplicates_file: str | None) -> None:
        """Write the plan files of all shards, a record batch each."""
        for which, path in ((_KEPT, plan_file), (_DROPPED, duplicates_file)):
            if path is not None:
                write_by_shard(path, (PLAN, DUPLICATES)[which], self._joined(which))

    def _joined(self, which: int) -> Iterator[pa.RecordBatch]:
        for piece in range(self.pieces):
            with IntermediateFile(_piece_file(self.directory, piece, which)) as file:
                for number in range(file.batches):
                    yield file.batch(number)


def _piece_file(directory: str, piece: int, which: int) -> str:
    return storage.join(directory, ("plan", "duplicates")[which], f"{piece:06d}.arrow")


def _batch(rows: Array, schema: pa.Schema) -> pa.RecordBatch:
    columns = list(places_of(rows["where"]))
    if schema is PLAN:
        columns.append(rows["copy"].astype(np.int32))
    else:
        columns += [rows["reason"], *places_of(rows["of"])]
    return pa.RecordBatch.from_arrays(
        [pa.array(np.ascontiguousarray(column)) for column in columns], schema=schema
    )
