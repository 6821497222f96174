"""Corpus stage: blocks, the units of the search beyond one process: pieces of parts' references, about so many documents each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.core import storage
from pipeline.core.errors import UsageError
from pipeline.corpus.dedup.columns import flat
from pipeline.corpus.dedup.shuffled.records import MOST_BATCHES, MOST_PARTS, MOST_ROWS, where_of
from pipeline.corpus.parts import PartFile

WHERE = pa.field("where", pa.uint64(), nullable=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What is held at once, in records; none of it shows in the result.

    Attributes:
        block: documents of a block, and of a range of ranks.
        bucket: values that meet in a bucket.
        sampled: one document of so many tells where ranges are cut.
        rounds: of comparing on the engine; what is undecided then, one process decides.
    """

    block: int = 1 << 18
    bucket: int = 1 << 20
    sampled: int = 1 << 12
    rounds: int = 32


SIZES = Sizes()


@dataclass(frozen=True, slots=True)
class Piece:
    """The batches of a part's references from `numerator` to `numerator` + 1 of `denominator` equal shares."""

    part: int
    path: str
    numerator: int
    denominator: int


def cut_blocks(references: Sequence[str], documents: Sequence[int], size: int) -> list[list[Piece]]:
    """The references of all parts in their order, about `size` documents a block.

    Args:
        references: a file a part.
        documents: of each part.
    """
    if len(references) > MOST_PARTS:
        raise UsageError(
            f"the sources are {len(references):,} parts, {MOST_PARTS:,} at most; join small files, or raise driver_references"
        )
    blocks: list[list[Piece]] = []
    room = 0
    for number, (path, count) in enumerate(zip(references, documents, strict=True)):
        shares = max(1, -(-count // size))
        for share in range(shares):
            if room <= 0:
                blocks.append([])
                room = size
            blocks[-1].append(Piece(number, path, share, shares))
            room -= max(1, count // shares)
    return blocks


def write_blocks(directory: str, blocks: Sequence[Sequence[Piece]]) -> None:
    """For workers: a file a block, so that nobody is sent the list of all parts."""
    storage.make_dirs(directory)
    for number, pieces in enumerate(blocks):
        rows = [[piece.part, piece.path, piece.numerator, piece.denominator] for piece in pieces]
        storage.write_bytes(storage.join(directory, f"{number:06d}.json"), json.dumps(rows).encode())


def block_file(directory: str, step: str, number: int, ending: str = "arrow") -> str:
    """Where a step's file of a block lies."""
    return storage.join(directory, step, f"{number:06d}.{ending}")


class Block:
    """A block's references."""

    def __init__(self, directory: str, number: int) -> None:
        """Args: directory: of `write_blocks`, its parent."""
        rows = json.loads(storage.read_text(block_file(directory, "blocks", number, "json")))
        self._pieces = [Piece(*row) for row in rows]

    def _batches(self) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        for piece in self._pieces:
            with PartFile(piece.path) as file:
                if file.batches > MOST_BATCHES:
                    raise UsageError(
                        f"{piece.path} has {file.batches:,} batches, {MOST_BATCHES:,} at most; cut the source into more files"
                    )
                first, last = (file.batches * edge // piece.denominator for edge in (piece.numerator, piece.numerator + 1))
                for number in range(first, last):
                    yield piece.part, number, file.batch(number)

    def columns(self, *names: str) -> dict[str, Any]:
        """The columns of these names, and `where`: uint64 [n] of its documents."""
        found: dict[str, list[Any]] = {name: [] for name in (*names, "where")}
        for part, number, batch in self._batches():
            assert batch.num_rows <= MOST_ROWS
            found["where"].append(where_of(part, number, batch.num_rows))
            for name in names:
                found[name].append(flat(batch[name]))
        return {name: np.concatenate(pieces) if pieces else np.zeros(0, np.uint64) for name, pieces in found.items()}

    def table(self) -> pa.Table:
        """All columns, and `where`."""
        pieces = [
            pa.Table.from_batches([batch]).append_column(WHERE, pa.array(where_of(part, number, batch.num_rows)))
            for part, number, batch in self._batches()
        ]
        return pa.concat_tables(pieces) if pieces else self.schema().empty_table()

    def schema(self) -> pa.Schema:
        """Of `table`."""
        with PartFile(self._pieces[0].path) as file:
            return file.schema.append(WHERE)
