"""Appending to a dataset: filter out documents that it contains, and reuse its files.

`documents.arrow` lists a dataset's documents: one column `key`, ascending. Each record batch covers
one equal range of the key space.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cloze.core import storage
from cloze.core.arrow import open_arrow, write_arrow
from cloze.core.artifacts import artifact
from cloze.core.artifacts.artifact import TRAIN, Manifest
from cloze.core.errors import DataError, UsageError
from cloze.core.humanize import an
from cloze.core.random_keys import U64
from cloze.pipeline.dataset import schema
from cloze.pipeline.dataset.ranges import bucket_borders
from cloze.pipeline.runners.exchange import Exchange

DOCUMENTS = "documents"  # prefix of the files' names
BATCH_KEYS = 1 << 20  # approximate keys per record batch
PLACE_KEYS = 1 << 23  # of all runs, which are sorted at a time
SCHEMA = pa.schema([pa.field("key", pa.uint64(), nullable=False)])


def key_exchange(directory: str, runs: int, documents: int) -> Exchange:
    """Return the exchange of about so many documents' keys; a place is a range of the key space."""
    places = max(1, documents // PLACE_KEYS)
    return Exchange(directory=storage.join(directory, DOCUMENTS), runs=runs, places=places)


def write_keys(exchange: Exchange, run: int, keys: U64) -> None:
    """Write the keys of a run's documents."""
    keys = np.sort(keys)
    places = np.repeat(np.arange(exchange.places), np.diff(bucket_borders(keys, exchange.places)))
    exchange.write(run, [(pa.Table.from_batches([_batch(keys)]), places)])


def _batch(keys: U64) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(keys)], schema=SCHEMA)


def write_documents(path: str, exchange: Exchange, total: int) -> None:
    """Merge the keys of all runs, a connected exchange, into one file, one place at a time."""
    ranges = max(1, -(-total // BATCH_KEYS))

    def batches() -> Iterator[pa.RecordBatch]:
        rest, number = np.zeros(0, np.uint64), 0  # keys of the range `number` and later ones
        for place in range(exchange.places):
            with exchange.read(SCHEMA, place, place + 1) as runs:
                found = (batch["key"].to_numpy() for batch in runs.batches(place))
                rest = np.unique(np.concatenate([rest, *found]))
            end = (place + 1) * ranges // exchange.places  # ranges that end with the place
            borders = bucket_borders(rest, ranges)
            for low, high in itertools.pairwise(borders[number : end + 1]):
                yield _batch(rest[low:high])
            rest, number = rest[borders[end] :], end

    write_arrow(path, SCHEMA, batches())


def known(keys: U64, files: Sequence[str], stamp: str) -> npt.NDArray[np.bool_]:
    """Return which keys are in one of the files: bool [D].

    Record batches of the files cover equal ranges of the key space.
    """
    is_known = np.zeros(len(keys), np.bool_)
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    for file in files:
        batches = _key_batches(file, stamp)
        # Batch n of a file covers part n of the key space, so a key is looked for in one batch.
        bounds = bucket_borders(ordered, len(batches))
        for number, (low, high) in enumerate(itertools.pairwise(bounds.tolist())):
            stored = batches[number]
            if low < high and len(stored):
                requested = ordered[low:high]
                positions = np.minimum(np.searchsorted(stored, requested), len(stored) - 1)
                is_known[order[low:high]] |= stored[positions] == requested
    return is_known


@functools.lru_cache(maxsize=64)
def _key_batches(file: str, stamp: str) -> tuple[U64, ...]:
    reader = open_arrow(file)
    return tuple(
        reader.get_batch(number)["key"].to_numpy() for number in range(reader.num_record_batches)
    )


# The finished dataset that new shards are appended to; its files are linked.

# summary values that add up
ADDED = "rows heldout_rows unmasked_rows shards documents tokens row_tokens masked".split()


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseDataset:
    """The dataset that is appended to."""

    path: str  # directory of the dataset
    manifest: Manifest  # manifest of the dataset
    generation: int  # number of appends including this one, from 1

    @classmethod
    def open(cls, path: str, version: int) -> BaseDataset:
        """Open the dataset at `path`; `version`: current version of the dataset stage.

        Raises:
            DataError: no finished dataset, or a shard is damaged.
            UsageError: another version of the stage made it.
        """
        manifest = artifact.read_manifest(path)
        if manifest.stage != "dataset":
            raise UsageError(
                f"{path} contains {an(manifest.stage)} artifact, not a dataset; --append takes one "
                f"that `cloze dataset` made"
            )
        if manifest.version != version:
            raise UsageError(
                f"{path} was made by version {manifest.version} of the dataset stage, this program "
                f"has version {version}, whose rows differ; make it again, then append"
            )
        generations = [0, *(_generation(entry.path) for entry in manifest.files)]
        return cls(path=path, manifest=manifest, generation=max(generations) + 1)

    @property
    def documents(self) -> tuple[str, ...]:
        """Files of the dataset's document keys."""
        names = (
            entry.path
            for entry in self.manifest.files
            if entry.path.startswith(DOCUMENTS) and entry.path.endswith(".arrow")
        )
        return tuple(storage.join(self.path, name) for name in sorted(names))

    @property
    def rows_a_shard(self) -> float:
        summary = self.manifest.summary
        return max(1.0, float(summary["rows"] / summary["shards"]))

    def check(self, info: schema.DatasetInfo, borders: tuple[int, ...]) -> None:
        """Raise `DataError` if the dataset's shards have other settings or length bins."""
        for entry in self.manifest.files:
            if entry.path.startswith(f"{TRAIN}-"):
                file = storage.join(self.path, entry.path)
                shard_schema = open_arrow(file).schema
                layout = schema.ShardLayout.from_schema(shard_schema, file)
                if (
                    schema.DatasetInfo.from_schema(shard_schema, file) != info
                    or layout is None
                    or layout.bin_boundaries != borders
                ):
                    raise DataError(
                        f"{file} was made with other settings or length_bins; use the same, or "
                        f"make the dataset without append"
                    )
                return


def prefix(split: str, generation: int) -> str:
    """Return the prefix of a split's shards, in sort order: `train`, then `train-a001`, …."""
    return f"{split}-a{generation:03d}" if generation else split


def _generation(name: str) -> int:
    fields = name.split("-")
    suffix = fields[1].removesuffix(".arrow") if len(fields) > 1 else ""
    return int(suffix[1:]) if suffix[:1] == "a" and suffix[1:].isdigit() else 0


def add_counts(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Add the summary values of the old and the new shards."""
    total = {name: old[name] + new[name] for name in ADDED}
    words = old.get("words"), new["words"]
    total["words"] = None if None in words else sum(words)
    total["pair_labels"] = {
        name: old["pair_labels"][name] + count for name, count in new["pair_labels"].items()
    }
    histograms = zip(old["length_histogram"], new["length_histogram"], strict=True)
    total["length_histogram"] = [sum(counts) for counts in histograms]
    return total
