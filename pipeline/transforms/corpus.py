"""Corpus stage: the two units of work that Beam spreads, and what is decided between them.

    ReadSplit    a split -> its documents in `parts/NAME.arrow`, and in `parts/NAME.refs.arrow` what is needed to find copies
    plan         all references -> which documents stay, in which shard and where in it
    WriteShard   a shard's number -> the shard, its documents taken from the parts

Only references, some 200 bytes a document, are ever held together; text stays on disk, a batch at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline import keys, schema, storage
from pipeline.corpora import find_reader
from pipeline.corpora.reader import Settings, Split, Tally
from pipeline.text import dedup, sentences
from pipeline.text.clean import clean
from pipeline.text.document import Document
from pipeline.text.filters import document_filters, first_reason
from pipeline.transforms.arrow import read_arrow, write_arrow

BATCH_CHARACTERS = 1 << 20
BATCH_DOCUMENTS = 1 << 10

REFERENCES = pa.schema(
    [
        pa.field("key", pa.uint64(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("characters", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("exact", pa.binary(dedup.EXACT_BYTES), nullable=False),
        pa.field("bands", pa.list_(pa.uint64(), dedup.BANDS), nullable=True),
        pa.field("batch", pa.int32(), nullable=False),  # of the part
        pa.field("row", pa.int32(), nullable=False),  # of the batch
    ]
)
PLAN = pa.schema([pa.field(name, pa.int32(), nullable=False) for name in ("part", "batch", "row")])


@dataclass(frozen=True, kw_only=True)
class ReadSplit:
    """Read, clean, filter and split into sentences the documents of one split.

    Attributes:
        parts: the directory to write to.
        near: whether signatures for near copies are made.
        Others as in `CorpusConfig`.
    """

    parts: str
    language: str
    stop: bool
    dropped_sections: tuple[str, ...]
    minimum_characters: int
    minimum_words: int
    maximum_characters: int
    minimum_letters: float
    heldout_fraction: float
    near: bool

    def __call__(self, unit: dict[str, Any]) -> dict[str, Any]:
        """Args: unit: `name` of the part and the `split`. Returns: counters, documents, bytes of text, what was rejected."""
        split = Split(**unit["split"])
        tally = Tally(split=split, stop=self.stop)
        references: list[dict[str, Any]] = []
        path = storage.join(self.parts, unit["name"])
        write_arrow(f"{path}.arrow", schema.CORPUS, self._batches(split, tally, references))
        table = pa.Table.from_pylist(references, schema=REFERENCES)
        write_arrow(f"{path}.refs.arrow", REFERENCES, table.combine_chunks().to_batches())
        return {
            "counters": dict(tally.counters),
            "documents": len(references),
            "bytes": sum(reference["bytes"] for reference in references),
            "rejected": [asdict(rejected) for rejected in tally.rejected],
        }

    def _batches(self, split: Split, tally: Tally, references: list[dict[str, Any]]) -> Iterator[pa.RecordBatch]:
        rows: list[dict[str, Any]] = []
        characters = batch = 0
        for row, text in self._rows(split, tally):
            signature = dedup.signature(text)
            references.append(
                {
                    "key": row["key"],
                    "id": row["id"],
                    "characters": len(text),
                    "bytes": len(text.encode("utf-8", "surrogatepass")),
                    "exact": signature.exact,
                    "bands": signature.bands if self.near else None,
                    "batch": batch,
                    "row": len(rows),
                }
            )
            rows.append(row)
            characters += len(text)
            if characters >= BATCH_CHARACTERS or len(rows) >= BATCH_DOCUMENTS:
                yield pa.RecordBatch.from_pylist(rows, schema=schema.CORPUS)
                rows, characters, batch = [], 0, batch + 1
        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema=schema.CORPUS)

    def _rows(self, split: Split, tally: Tally) -> Iterator[tuple[dict[str, Any], str]]:
        """(row of schema CORPUS, its text) of each document that is kept."""
        settings = Settings(stop=self.stop, dropped_sections=frozenset(self.dropped_sections))
        filters = document_filters(
            minimum_characters=self.minimum_characters,
            minimum_words=self.minimum_words,
            maximum_characters=self.maximum_characters,
            minimum_letters=self.minimum_letters,
        )
        for raw in find_reader(split.kind).read(split, settings, tally):
            document = clean(raw)
            reason = first_reason(document, filters)
            if reason is not None:
                tally.drop(reason)
                continue
            found = sentences.split(document.paragraphs, self.language)
            tally.drop_lines("formula", found.holes)
            if not found.texts:
                tally.drop("too_short")
                continue
            yield self._row(document, found), " ".join(found.texts)

    def _row(self, document: Document, found: sentences.Sentences) -> dict[str, Any]:
        key = keys.document_key(document.id)
        heldout = float(keys.uniform(keys.mix(key))) < self.heldout_fraction
        return {
            "key": key,
            "id": document.id,
            "source": document.source,
            "title": document.title,
            "split": schema.HELDOUT if heldout else schema.TRAIN,
            "sentences": found.texts,
            "paragraphs": found.paragraphs,
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """What stays.

    Attributes:
        table: schema PLAN; the documents that stay, by shard, and by key within a shard.
        begins: int64 [shards + 1]; shard `s` is rows begins[s] to begins[s + 1] of the table.
        dropped: documents dropped here, by reason.
        documents, bytes: what stays, by number of the part.
    """

    table: pa.Table
    begins: npt.NDArray[np.int64]
    dropped: Counter[str]
    documents: npt.NDArray[np.int64]
    bytes: npt.NDArray[np.int64]


def plan(references: list[pa.Table], shards: int, *, exact: bool, near: bool) -> Plan:
    """Find the copies, and place what stays.

    Of copies the longest document stays, of equally long ones the one with the smallest id. Two documents with one id
    (a page that a dump holds twice) are told by `duplicate_id`; the longer stays.

    Args:
        references: schema REFERENCES, one table a part.
        shards: how many shards there are.
        exact, near: which copies are dropped.
    """
    part = np.repeat(np.arange(len(references)), [table.num_rows for table in references])
    table = pa.concat_tables(references).append_column("part", pa.array(part, pa.int32()))
    order = [("characters", "descending"), *((name, "ascending") for name in ("id", "part", "batch", "row"))]
    by_rank = pc.sort_indices(table, order).to_numpy()
    rank = np.empty(by_rank.size, dtype=np.int64)
    rank[by_rank] = np.arange(by_rank.size)
    key = table["key"].to_numpy()

    again = np.zeros(rank.size, dtype=bool)
    by_key = np.lexsort((rank, key))
    again[by_key[1:]] = key[by_key[1:]] == key[by_key[:-1]]
    left = np.flatnonzero(~again)
    drop_exact, drop_near = np.zeros(left.size, dtype=bool), np.zeros(left.size, dtype=bool)
    if exact or near:
        hashes = np.frombuffer(b"".join(table["exact"].to_pylist()), dtype=np.dtype((np.void, dedup.EXACT_BYTES)))
        bands = _bands(table)[left] if near else None
        drop_exact, drop_near = dedup.copies(hashes[left], bands, np.argsort(np.argsort(rank[left])))
    counts = {"duplicate_id": again.sum(), "exact_duplicate": drop_exact.sum(), "near_duplicate": drop_near.sum()}
    kept = left[~(drop_exact | drop_near)]

    shard = (keys.mix(key[kept]) % np.uint64(shards)).astype(np.int64)
    kept = kept[np.lexsort((key[kept], shard))]
    return Plan(
        table=table.select(PLAN.names).take(kept).cast(PLAN),
        begins=np.concatenate(([0], np.cumsum(np.bincount(shard, minlength=shards)))),
        dropped=Counter({reason: int(count) for reason, count in counts.items() if count}),
        documents=np.bincount(part[kept], minlength=len(references)),
        bytes=np.bincount(part[kept], table["bytes"].to_numpy()[kept], minlength=len(references)).astype(np.int64),
    )


def _bands(table: pa.Table) -> keys.U64:
    chunks = [chunk.flatten().to_numpy().reshape(-1, dedup.BANDS) for chunk in table["bands"].chunks if len(chunk)]
    return np.concatenate([np.zeros((0, dedup.BANDS), dtype=np.uint64), *chunks])


@dataclass(frozen=True, kw_only=True)
class WriteShard:
    """Write one shard of the corpus.

    Attributes:
        parts: the parts' paths without their endings, by number.
        plan: the file that holds the plan's table.
        directory: where the shards go.
        shards: how many there are.
    """

    parts: tuple[str, ...]
    plan: str
    directory: str
    shards: int

    def __call__(self, unit: dict[str, int]) -> dict[str, Any]:
        """Args: unit: `number` of the shard, `begin` and `end` in the plan. Returns: documents held out."""
        places = read_arrow(self.plan).slice(unit["begin"], unit["end"] - unit["begin"])
        part, batch, row = (places[name].to_numpy() for name in PLAN.names)
        order = np.lexsort((row, batch, part))
        pieces = [pa.RecordBatch.from_pylist([], schema=schema.CORPUS)]
        for begin, end in _runs(part[order], batch[order]):
            chosen = order[begin:end]
            source = read_arrow(f"{self.parts[part[chosen[0]]]}.arrow").to_batches()[batch[chosen[0]]]
            pieces.append(source.take(pa.array(row[chosen])))
        table = pa.Table.from_batches(pieces).take(pa.array(np.argsort(order)))
        # made anew from values, so that the bytes say nothing of how the documents had been cut into parts
        columns = [pa.array(table[field.name].to_pylist(), field.type) for field in schema.CORPUS]
        path = storage.join(self.directory, schema.shard_name("corpus", unit["number"], self.shards))
        write_arrow(path, schema.CORPUS, [pa.RecordBatch.from_arrays(columns, schema=schema.CORPUS)])
        return {"heldout": pc.sum(pc.equal(table["split"], schema.HELDOUT)).as_py() or 0}


def _runs(*columns: npt.NDArray[Any]) -> Iterator[tuple[int, int]]:
    """(begin, end) of each run of rows in which all columns stay the same."""
    count = columns[0].size
    if not count:
        return
    change = np.flatnonzero(np.any([column[1:] != column[:-1] for column in columns], axis=0)) + 1
    borders = [0, *change.tolist(), count]
    yield from zip(borders[:-1], borders[1:], strict=True)
