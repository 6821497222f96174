"""Corpus stage: block by block, what stays and what was dropped, as `dedup.plan.Plan` tells it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.core.arrow import write_arrow
from pipeline.corpus.dedup.plan import EXACT, NEAR, REASONS
from pipeline.corpus.dedup.shuffled.blocks import Block, block_file
from pipeline.corpus.dedup.shuffled.origins import read_dropped
from pipeline.corpus.dedup.shuffled.records import Array, load, places_of

KINDS = "kinds.npz"  # `kinds`: int16, of each part the number of its kind of source
KEPT_ROWS = "kept"
KEPT_SCHEMA = pa.schema(
    [
        pa.field("key", pa.uint64(), nullable=False),
        pa.field("bytes", pa.uint32(), nullable=False),
        pa.field("heldout", pa.bool_(), nullable=False),
        pa.field("words", pa.uint32(), nullable=False),
        pa.field("group", pa.uint32(), nullable=False),  # the number of its kind of source, or its language
    ]
)


def kept_of(directory: str, block: int, *names: str) -> dict[str, Array]:
    """The columns, and `where`, of a block's documents that are no duplicates of others."""
    columns = Block(directory, block).columns(*names)
    kept = ~np.isin(columns["where"], read_dropped(directory, block)["where"], assume_unique=True)
    return {name: column[kept] for name, column in columns.items()}


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What `fan_out` does to each block.

    Attributes:
        examples: how many pairs of duplicates of each kind are told of.
        mixed_by: `source` or `language`: write what the choice among documents looks at; empty: nothing is chosen.
    """

    directory: str
    examples: int
    mixed_by: str

    def __call__(self, unit: dict[str, int]) -> dict[str, Any]:
        """Args: unit: `number` of the block. Returns: sums, and examples of duplicates as (reason, key, where, where what stays stands)."""
        number = unit["number"]
        weighed = ("words", *(["language"] if self.mixed_by == "language" else [])) if self.mixed_by else ()
        kept = kept_of(self.directory, number, "key", "bytes", "heldout", *weighed)
        kinds = load(f"{self.directory}/{KINDS}")["kinds"]
        if self.mixed_by:
            group = kept["language"] if self.mixed_by == "language" else kinds[places_of(kept["where"])[0]]
            columns = [kept[name] for name in ("key", "bytes", "heldout", "words")] + [group.astype(np.uint32)]
            rows = pa.RecordBatch.from_arrays(
                [pa.array(column, field.type) for column, field in zip(columns, KEPT_SCHEMA, strict=True)], schema=KEPT_SCHEMA
            )
            write_arrow(block_file(self.directory, KEPT_ROWS, number), KEPT_SCHEMA, [rows])
        gone = read_dropped(self.directory, number)
        pairs = Counter(
            zip(
                kinds[places_of(gone["where"])[0]].tolist(),
                kinds[places_of(gone["of"])[0]].tolist(),
                gone["reason"].tolist(),
                strict=True,
            )
        )
        return {
            "documents": int(kept["key"].size),
            "bytes": int(kept["bytes"].sum(dtype=np.int64)),
            "heldout": int(kept["heldout"].sum()),
            "pairs": [[*names, count] for names, count in sorted(pairs.items())],
            "groups": int(np.count_nonzero(gone["size"])),
            "largest": int(gone["size"].max(initial=0)),
            "chosen": self._chosen(number, gone),
        }

    def _chosen(self, number: int, gone: dict[str, Array]) -> list[list[Any]]:
        columns = Block(self.directory, number).columns("key")
        key = columns["key"][np.searchsorted(columns["where"], gone["where"])]
        found = []
        for why in (NEAR, EXACT):
            own = np.flatnonzero(gone["reason"] == why)
            for at in own[np.argsort(key[own], kind="stable")[: self.examples]].tolist():
                found.append([why, int(key[at]), int(gone["where"][at]), int(gone["of"][at])])
        return found


def added_up(results: Sequence[dict[str, Any]], names: Sequence[str], examples: int) -> dict[str, Any]:
    """The figures of all blocks together, as fields of `Plan`. Args: names: of the kinds of source."""
    pairs: Counter[tuple[str, str, str]] = Counter()
    for result in results:
        for kind, of, why, count in result["pairs"]:
            pairs[names[kind], names[of], REASONS[why]] += count
    dropped: Counter[str] = Counter()
    for (_, _, reason), count in pairs.items():
        dropped[reason] += count
    chosen = []
    for why in (NEAR, EXACT):
        found = sorted(row for result in results for row in result["chosen"] if row[0] == why)
        chosen += [(REASONS[why], _place(gone), _place(stays)) for _, _, gone, stays in found[:examples]]
    return {
        **{name: sum(result[name] for result in results) for name in ("documents", "bytes", "heldout", "groups")},
        "largest": max((result["largest"] for result in results), default=0),
        "dropped": dropped,
        "pairs": pairs,
        "chosen": chosen,
    }


def _place(where: int) -> tuple[int, int, int]:
    part, batch, row = (int(column[0]) for column in places_of(np.array([where], np.uint64)))
    return part, batch, row
