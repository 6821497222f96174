"""Distributed search: documents that share a key, an exact hash or a band with another document.

All other documents are kept without further comparison. A block sends each value once (8 bytes) and
receives those that another block also has. The rules on duplicates compare only documents that
share a value. Applied to these candidates in their order, the rules therefore give the same result
as on all documents.
"""

from __future__ import annotations

import logging
import math
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from cloze.core import storage
from cloze.core.arrow import write_arrow
from cloze.core.humanize import format_count
from cloze.core.random_keys import U64
from cloze.core.stages.stage import BuildContext
from cloze.pipeline.corpus.duplicates.distributed.blocks import (
    I64,
    SIZES,
    Array,
    Block,
    Sizes,
    block_file,
    cut_blocks,
    pack_messages,
    save,
    slice_of,
    unpack_messages,
    write_blocks,
)
from cloze.pipeline.corpus.duplicates.distributed.placement import (
    KEPT_ROWS,
    KINDS,
    TAKEN,
    AssignShards,
    Figures,
    added_up,
    write_dropped,
)
from cloze.pipeline.corpus.duplicates.plan import (
    KEPT,
    CorpusPlan,
    CorpusPlanRequest,
    find_duplicates,
    local_scratch_dir,
    mixed,
)
from cloze.pipeline.corpus.duplicates.search import SignatureColumns
from cloze.pipeline.corpus.options import MinHash
from cloze.pipeline.runners.fan_out import fan_out
from cloze.pipeline.runners.shuffle import run_shuffle

FOUND = "candidates"  # files of the step: signatures of the candidates, with `where`
_VALUE = np.dtype("<u8")


def lookup_columns(minhash: MinHash | None, exact: bool) -> tuple[str, ...]:
    """Return the columns in which duplicates share a value; half of the exact hash suffices."""
    bands = [] if minhash is None else [f"band_{band:02d}" for band in range(minhash.bands)]
    return ("key", *(["exact_high"] if exact else []), *bands)


@dataclass(frozen=True, kw_only=True)
class FindCandidates:
    """`ShuffleJob` that finds the candidates; see the module.

    Attributes:
        directory: scratch directory.
        columns: result of `lookup_columns`.
        slices: number of buckets per column.
    """

    directory: str
    columns: tuple[str, ...]
    slices: int

    def map_block(self, block: int) -> Iterator[tuple[int, bytes]]:
        columns = Block(self.directory, block).columns(*self.columns)
        for number, name in enumerate(self.columns):
            values = np.unique(columns[name])
            yield from pack_messages(
                number * self.slices + slice_of(values, self.slices), values, block
            )

    def reduce_bucket(self, bucket: int, messages: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
        senders, values = unpack_messages(messages, _VALUE)
        order = np.argsort(values, kind="stable")
        same = values[order][1:] == values[order][:-1]
        shared = np.zeros(values.size, dtype=bool)
        shared[1:] |= same
        shared[:-1] |= same
        chosen = order[shared]
        yield from pack_messages(senders[chosen], values[chosen], bucket // self.slices)

    def apply_replies(self, block: int, answers: Iterable[bytes]) -> dict[str, Any]:
        table = Block(self.directory, block).table()
        heads, values = unpack_messages(answers, _VALUE)
        is_candidate = np.zeros(table.num_rows, dtype=bool)
        for number, name in enumerate(self.columns):
            column = table[name].to_numpy()
            is_candidate |= _repeated(column) | np.isin(column, np.unique(values[heads == number]))
        table = table.filter(pa.array(is_candidate)).combine_chunks()
        write_arrow(block_file(self.directory, FOUND, block), table.schema, table.to_batches())
        return {"documents": int(is_candidate.size), "found": table.num_rows}


def _repeated(values: U64) -> Array:
    """Return which values occur more than once in the block, bool [n]."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    occurrences: I64 = counts[inverse.reshape(-1)]
    return occurrences > 1


# Driver of distributed deduplication.

_LOGGER = logging.getLogger(__name__)
COMPARED_BYTES = 65  # of memory per candidate


def shuffled_plan(
    build: BuildContext,
    references: Sequence[str],
    documents: Sequence[int],
    request: CorpusPlanRequest,
    sizes: Sizes = SIZES,
) -> CorpusPlan:
    """Compute the plan of `cloze.pipeline.corpus.duplicates.plan.plan` on the build's engine.

    Args:
        references: one file of signatures per intermediate file, visible to all workers.
        documents: number of documents per intermediate file.
        sizes: limits on what a worker holds at once.
    """
    search = _Search(build, references, documents, request, sizes)
    search.find()
    return search.place()


class _Search:
    """Steps of the search, in order; a step that an earlier run finished returns at once."""

    def __init__(
        self,
        build: BuildContext,
        references: Sequence[str],
        documents: Sequence[int],
        request: CorpusPlanRequest,
        sizes: Sizes,
    ) -> None:
        self.build, self.request, self.sizes = build, request, sizes
        self.directory = storage.join(build.scratch, "dedup")
        blocks = cut_blocks(references, documents, sizes.block)
        write_blocks(storage.join(self.directory, "blocks"), blocks)
        self.blocks, self.documents = len(blocks), sum(documents)

    def find(self) -> None:
        """Find the duplicates and write those of each block to a file."""
        columns = lookup_columns(self.request.minhash, self.request.exact)
        slices = max(1, math.ceil(self.documents / self.sizes.bucket))
        screen = FindCandidates(directory=self.directory, columns=columns, slices=slices)
        screened = run_shuffle(self.build, "dedup-screen", screen, self.blocks)
        candidates = sum(result["found"] for result in screened)
        _LOGGER.info(
            "%s of %s documents share a value with another; one process compares them in about %sB",
            f"{candidates:,}", f"{self.documents:,}", format_count(candidates * COMPARED_BYTES),
        )  # fmt: skip
        self._compare()

    def _compare(self) -> None:
        """Compare the candidates in this process."""
        request = self.request
        parent = local_scratch_dir(self.directory)
        with tempfile.TemporaryDirectory(prefix="cloze-plan-", dir=parent) as local_directory:
            columns = SignatureColumns(local_directory)
            columns.gather(
                [block_file(self.directory, FOUND, number) for number in range(self.blocks)]
            )
            duplicates = find_duplicates(columns, request.minhash, request.exact, request.threshold)
            where = columns.load("where")
        dropped = np.flatnonzero(duplicates.reason != KEPT)
        of = duplicates.of[dropped]
        size = np.zeros(of.size, np.uint32)
        _, first, counts = np.unique(of, return_index=True, return_counts=True)
        size[first] = counts
        edges = np.searchsorted(dropped, columns.begins)
        for number, (begin, end) in enumerate(zip(edges[:-1], edges[1:], strict=True)):
            block_rows = dropped[begin:end]
            rows = (
                where[block_rows],
                duplicates.reason[block_rows],
                where[of[begin:end]],
                size[begin:end],
            )
            write_dropped(self.directory, number, *rows)

    def place(self) -> CorpusPlan:
        """Assign the kept documents to shards and add up the figures."""
        request, names = self.request, sorted(set(self.request.kinds))
        kinds = np.array([names.index(kind) for kind in request.kinds], np.int16)
        save(storage.join(self.directory, KINDS), kinds=kinds)
        mixed_by = "" if request.mix is None else request.mix.mixture_by
        work = Figures(directory=self.directory, examples=request.examples, mixed_by=mixed_by)
        units = [(f"{number:06d}", {"number": number}) for number in range(self.blocks)]
        totals = added_up(
            fan_out(self.build, "dedup-figures", units, work, unit_name="blocks"),
            names,
            request.examples,
        )
        if request.mix is not None:
            totals |= self._mix(names, totals["dropped"])
        shards = max(1, math.ceil(totals["bytes"] / request.shard_bytes))
        each = max(1, math.ceil(shards * self.sizes.bucket / max(1, self.documents)))
        place = AssignShards(
            directory=self.directory,
            shards=shards,
            each=each,
            chosen=request.mix is not None,
            duplicates=request.duplicates_file is not None,
        )
        run_shuffle(self.build, "dedup-place", place, self.blocks, place.pieces)
        place.join(request.plan_file, request.duplicates_file)
        return CorpusPlan(shards=shards, **totals)

    def _mix(self, names: list[str], dropped: Any) -> dict[str, Any]:
        """Apply the mixture to the kept documents in this process; return the changed figures."""
        assert self.request.mix is not None
        with tempfile.TemporaryDirectory(
            prefix="cloze-plan-", dir=local_scratch_dir(self.directory)
        ) as local_directory:
            columns = SignatureColumns(local_directory)
            columns.gather(
                [block_file(self.directory, KEPT_ROWS, number) for number in range(self.blocks)]
            )
            key, words, heldout, group = (
                columns.load(name) for name in ("key", "words", "heldout", "group")
            )
            size = columns.load("bytes")
        mixture = mixed(key, words, heldout, group, names, self.request.mix)
        order = np.argsort(mixture.numbers, kind="stable")
        numbers, copies = mixture.numbers[order], mixture.copies[order]
        edges = np.searchsorted(numbers, columns.begins)
        for block, (begin, end) in enumerate(zip(edges[:-1], edges[1:], strict=True)):
            rows = numbers[begin:end] - columns.begins[block]
            save(
                block_file(self.directory, TAKEN, block, "npz"), rows=rows, copies=copies[begin:end]
            )
        return {
            "documents": int(numbers.size),
            "bytes": int(size[numbers].sum(dtype=np.int64)),
            "heldout": int(np.count_nonzero(heldout[numbers])),
            "dropped": dropped + mixture.dropped,
            "mixed": mixture.groups,
        }
