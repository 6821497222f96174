"""Deduplication of a corpus with too many documents for one process, with the same result.

A shuffle finds the candidates: documents that share a key, an exact hash or a band with another
one. A block sends each value once (8 bytes) and receives those that another block also has. The
rules on duplicates compare only documents that share a value, so they give the same result on the
candidates, in their order, as on all documents.

One process then compares the candidates and writes the plan. It needs about 65 bytes of memory per
candidate and 3 bytes per document; with a mixture 60 bytes per kept document.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from cloze.core import storage
from cloze.core.arrow import write_arrow
from cloze.core.errors import UsageError
from cloze.core.humanize import format_bytes
from cloze.core.processes import memory_limit
from cloze.core.random_keys import U64
from cloze.core.stages.stage import BuildContext
from cloze.pipeline.corpus.duplicates.plan import (
    CorpusPlan,
    CorpusPlanRequest,
    find_duplicates,
    local_columns,
    write_plan,
)
from cloze.pipeline.corpus.duplicates.repeated_ids import are_records
from cloze.pipeline.corpus.duplicates.search import I64, Bools
from cloze.pipeline.corpus.files.intermediate import IntermediateFile
from cloze.pipeline.corpus.options import MinHash
from cloze.pipeline.runners.shuffle import run_shuffle

CANDIDATES = "candidates"  # directory of signatures of the candidates, a file per block
ROW = pa.field("row", pa.uint32(), nullable=False)  # number of a candidate in its block
CANDIDATE_BYTES = 65  # of memory per candidate
MOST_CANDIDATES = 1 << 31  # numbered by int32

_LOGGER = logging.getLogger(__name__)
_HALF = np.uint64(32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Limits on what a worker holds in memory; the result does not depend on them.

    Attributes:
        block: documents per block.
        bucket: values per bucket.
    """

    block: int = 1 << 18
    bucket: int = 1 << 20


SIZES = Sizes()


def write_blocks(
    directory: str, references: Sequence[str], documents: Sequence[int], size: int
) -> int:
    """Divide the signatures of all files, in order, into blocks; return the number of blocks.

    A file per block names its ranges of batches, so that workers need no list of all files: [path,
    i, n] is the share i of n equal shares of the batches at `path`.

    Args:
        directory: scratch directory of the search.
        references: file of signatures per intermediate file.
        documents: number of documents per file.
        size: approximate number of documents per block.
    """
    blocks: list[list[tuple[str, int, int]]] = []
    room = 0
    for path, count in zip(references, documents, strict=True):
        shares = max(1, -(-count // size))
        for share in range(shares):
            if room <= 0:
                blocks.append([])
                room = size
            blocks[-1].append((path, share, shares))
            room -= max(1, count // shares)
    storage.make_dirs(storage.join(directory, "blocks"))
    for number, ranges in enumerate(blocks):
        storage.write_bytes(_file(directory, "blocks", number, "json"), json.dumps(ranges).encode())
    return len(blocks)


def _file(directory: str, kind: str, block: int, ending: str = "arrow") -> str:
    return storage.join(directory, kind, f"{block:06d}.{ending}")


def read_block(directory: str, block: int, names: Sequence[str] | None = None) -> pa.Table:
    """Read the signatures of a block.

    Args:
        names: columns to read. Default: all.
    """
    batches: list[pa.RecordBatch] = []
    schema = pa.schema([])
    for path, share, shares in json.loads(
        storage.read_text(_file(directory, "blocks", block, "json"))
    ):
        with IntermediateFile(path, names) as file:
            schema = file.schema
            first, last = (file.batches * edge // shares for edge in (share, share + 1))
            batches += [file.batch(number) for number in range(first, last)]
    return pa.Table.from_batches(batches, schema=schema)


def shared_columns(minhash: MinHash | None, exact: bool) -> tuple[str, ...]:
    """Return the columns in which duplicates share a value; half of the exact hash suffices."""
    bands = [] if minhash is None else [f"band_{band:02d}" for band in range(minhash.bands)]
    return ("key", *(["exact_high"] if exact else []), *bands)


@dataclass(frozen=True, kw_only=True)
class FindCandidates:
    """`ShuffleJob` that writes the signatures of the candidates; see the module.

    Attributes:
        directory: scratch directory of the search.
        columns: result of `shared_columns`.
        slices: number of buckets per column; a bucket has a range of the values.
    """

    directory: str
    columns: tuple[str, ...]
    slices: int

    def map_block(self, block: int) -> Iterator[tuple[int, bytes]]:
        table = read_block(self.directory, block, self.columns)
        for number, name in enumerate(self.columns):
            values = np.unique(table[name].to_numpy())
            slice_numbers = ((values >> _HALF) * np.uint64(self.slices)) >> _HALF
            buckets = number * self.slices + slice_numbers.astype(np.int64)
            yield from pack_messages(buckets, values, block)

    def reduce_bucket(self, bucket: int, messages: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
        senders, values = unpack_messages(messages)
        shared = _repeated(values)
        yield from pack_messages(senders[shared], values[shared], bucket // self.slices)

    def apply_replies(self, block: int, replies: Iterable[bytes]) -> dict[str, Any]:
        table = read_block(self.directory, block)
        numbers, values = unpack_messages(replies)
        is_candidate = np.zeros(table.num_rows, dtype=bool)
        for number, name in enumerate(self.columns):
            column = table[name].to_numpy()
            is_candidate |= _repeated(column) | np.isin(column, values[numbers == number])
        rows = pa.array(np.flatnonzero(is_candidate).astype(np.uint32))
        candidates = table.filter(pa.array(is_candidate)).append_column(ROW, rows).combine_chunks()
        write_arrow(
            _file(self.directory, CANDIDATES, block), candidates.schema, candidates.to_batches()
        )
        return {"documents": table.num_rows, "candidates": candidates.num_rows}


def pack_messages(receivers: I64, values: U64, head: int) -> Iterator[tuple[int, bytes]]:
    """Yield one message per receiver: the number `head`, then its values in order."""
    order = np.argsort(receivers, kind="stable")
    values = values[order]
    numbers, begins = np.unique(receivers[order], return_index=True)
    edges = itertools.pairwise([*begins.tolist(), values.size])
    for receiver, (begin, end) in zip(numbers.tolist(), edges, strict=True):
        yield receiver, head.to_bytes(4, "little") + values[begin:end].astype("<u8").tobytes()


def unpack_messages(messages: Iterable[bytes]) -> tuple[I64, U64]:
    """Return the values of all messages, and for each value the head of its message."""
    received = list(messages)
    heads = np.array([int.from_bytes(message[:4], "little") for message in received], np.int64)
    counts = [len(message) // 8 for message in received]
    values = np.frombuffer(b"".join(message[4:] for message in received), "<u8")
    return np.repeat(heads, counts), values


def _repeated(values: U64) -> Bools:
    """Return which values occur more than once, bool [n]."""
    order = np.argsort(values, kind="stable")
    same = values[order][1:] == values[order][:-1]
    repeated = np.zeros(values.size, dtype=bool)
    repeated[order[1:][same]] = True
    repeated[order[:-1][same]] = True
    return repeated


def plan_by_shuffle(
    build: BuildContext,
    references: Sequence[str],
    documents: Sequence[int],
    request: CorpusPlanRequest,
    sizes: Sizes = SIZES,
) -> CorpusPlan:
    """Compute the plan of `cloze.pipeline.corpus.duplicates.plan.plan` on the build's runner.

    Args:
        build: the build; a shuffle that an earlier run finished is not run again.
        references: file of signatures per intermediate file, visible to all workers.
        documents: number of documents per intermediate file.
        request: parameters of the plan.
        sizes: limits on what a worker holds in memory.

    Raises:
        UsageError: too many candidates for the memory of this process.
    """
    directory = storage.join(build.scratch, "dedup")
    blocks = write_blocks(directory, references, documents, sizes.block)
    job = FindCandidates(
        directory=directory,
        columns=shared_columns(request.minhash, request.exact),
        slices=max(1, math.ceil(sum(documents) / sizes.bucket)),
    )
    results = run_shuffle(build, "dedup-screen", job, blocks)
    _check_memory(sum(result["candidates"] for result in results), sum(documents))
    counts = [int(result["documents"]) for result in results]
    begins = np.cumsum([0, *counts])[:-1]
    files = [_file(directory, CANDIDATES, number) for number in range(blocks)]
    with local_columns(request.directory) as columns:
        columns.gather(files)
        rows = columns.load("row").astype(np.int64)
        numbers = rows + np.repeat(begins, np.diff(columns.begins))
        records = are_records(request.kinds, documents)[numbers]
        found = find_duplicates(columns, request.minhash, request.exact, request.threshold, records)
        duplicates = replace(
            found,
            numbers=numbers[found.numbers],
            of=numbers[found.of],
            repeated=replace(found.repeated, numbers=numbers[found.repeated.numbers]),
        )
    names = ["key", "bytes", "heldout", *(["words", "language"] if request.mix else [])]
    with local_columns(request.directory) as columns:
        columns.gather(references, names=names)
        return write_plan(columns, duplicates, request)


def _check_memory(candidates: int, documents: int) -> None:
    """Log the memory that the candidates need, and check that this host has it.

    Raises:
        UsageError: too many candidates.
    """
    needed, limit = candidates * CANDIDATE_BYTES, memory_limit()
    _LOGGER.info(
        "%s of %s documents share a value with another one; this process compares them in %s of "
        "memory",
        f"{candidates:,}", f"{documents:,}", format_bytes(needed),
    )  # fmt: skip
    if needed > limit or candidates >= MOST_CANDIDATES:
        raise UsageError(
            f"{candidates:,} documents share a value with another one. One process compares them, "
            f"which takes {format_bytes(needed)} of the {format_bytes(limit)} of this host, and at "
            f"most {MOST_CANDIDATES:,}. Continue on a host with more memory, or set dedup: exact"
        )
