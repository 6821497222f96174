"""Mixtures of datasets: assignment of samples to datasets, and their rows as one table.

Sample g belongs to unit g // group, a unit to a block of `BLOCK` units. In each block every dataset
has its quota of units, in a random order that depends on (seed, block) alone. A dataset's units are
numbered through all blocks, so sample g is sample k of one dataset's own shuffled order. The
assignment is a pure function of (seed, g): it has no state, takes the time of one block, and does
not depend on the number of ranks or the batch size. Quotas are exact for a whole block, and closer
than independent draws within one, because units are drawn without replacement.

With length bins a unit is a group of rows of one bin (`cloze.model.data.sampler`), else one row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from cloze.core import random_keys
from cloze.core.errors import UsageError
from cloze.core.ragged import I64, offsets_of
from cloze.model.data.masks import DynamicMasker
from cloze.model.data.rows import MaskedRows
from cloze.model.data.sampler import Sampler
from cloze.model.data.shards import ShardedRows
from cloze.model.random_streams import Stream
from cloze.pipeline.dataset.schema import DatasetInfo

BLOCK = 1 << 16  # units; weights have a resolution of 1 / 65,536


def quotas(shares: Sequence[float]) -> tuple[int, ...]:
    """Return the units per block of each share, by largest remainders; their sum is `BLOCK`.

    Raises:
        ValueError: a share rounds to zero units; the first argument is its index.
    """
    exact = BLOCK * np.asarray(shares, np.float64) / float(np.sum(shares))
    units = np.floor(exact).astype(np.int64)
    # Rounded down, then one more for the largest remainders: the sum is `BLOCK` exactly.
    order = np.argsort(units - exact, kind="stable")
    units[order[: BLOCK - int(units.sum())]] += 1
    if not units.all():
        raise ValueError(int(np.argmin(units)))
    return tuple(units.tolist())


@lru_cache(maxsize=8)
def _block(quotas: tuple[int, ...], seed: int, number: int) -> tuple[I64, I64]:
    """Return each unit's dataset, and the number of that dataset's earlier units in the block."""
    # Sorting random keys shuffles the quotas: drawing without replacement, as one array.
    keys = random_keys.fold_in(seed, Stream.SOURCES, number, np.arange(BLOCK))
    order = np.argsort(keys, kind="stable")
    sources, before = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    sources[order] = np.repeat(np.arange(len(quotas)), quotas)
    for source, quota in enumerate(quotas):
        before[sources == source] = np.arange(quota)
    return sources, before


@dataclass(frozen=True, slots=True)
class MixtureAssignment:
    """Assignment of samples to datasets.

    Attributes:
        quotas: units per block of each dataset.
        group: samples per unit.
    """

    quotas: tuple[int, ...]
    seed: int
    group: int = 1

    def locate(self, samples: I64) -> tuple[I64, I64]:
        """Return the dataset of each sample and its number within that dataset; both int64 [B]."""
        units, inside = np.divmod(samples, self.group)
        blocks, slots = np.divmod(units, BLOCK)
        sources, numbers = np.empty_like(samples), np.empty_like(samples)
        sizes = np.asarray(self.quotas)
        for block in np.unique(blocks).tolist():
            selected = blocks == block
            source, before = _block(self.quotas, self.seed, block)
            sources[selected] = source[slots[selected]]
            numbers[selected] = block * sizes[sources[selected]] + before[slots[selected]]
        return sources, numbers * self.group + inside

    def before(self, samples: int) -> list[int]:
        """Count how many of the first `samples` samples come from each dataset."""
        units, inside = divmod(samples, self.group)
        block, slot = divmod(units, BLOCK)
        source, _ = _block(self.quotas, self.seed, block)
        # Whole blocks have exactly their quotas, so only the last one is looked at.
        counts = block * np.asarray(self.quotas) + np.bincount(
            source[:slot], minlength=len(self.quotas)
        )
        totals = counts * self.group
        totals[source[slot]] += inside
        return [int(count) for count in totals]


@dataclass(frozen=True, slots=True)
class MixtureSampler:
    """Sampler over several datasets; same interface as `cloze.model.data.sampler.Sampler`.

    Attributes:
        draw: assignment of samples to datasets.
        firsts: number of the first sample of each dataset.
    """

    samplers: tuple[Sampler, ...]
    draw: MixtureAssignment
    firsts: tuple[int, ...]

    def locate(self, samples: npt.ArrayLike) -> tuple[I64, I64]:
        """Return row number, counted through all datasets, and mask copy of each global sample."""
        samples = np.asarray(samples, np.int64)
        sources, numbers = self.draw.locate(samples)
        starts = offsets_of(np.array([sampler.rows for sampler in self.samplers]))
        rows, copies = np.empty_like(samples), np.empty_like(samples)
        for number, sampler in enumerate(self.samplers):
            selected = sources == number
            if selected.any():
                # An earlier phase may have read some of this dataset; it goes on behind them.
                local, copies[selected] = sampler.locate(self.firsts[number] + numbers[selected])
                rows[selected] = starts[number] + local
        return rows, copies

    def next_samples(self, samples: int) -> list[int]:
        """Return each dataset's next sample number after `samples` samples of the run."""
        return [
            start + count
            for start, count in zip(self.firsts, self.draw.before(samples), strict=True)
        ]


class ConcatenatedRows:
    """Rows of one split of several datasets, concatenated.

    Args:
        parts: rows by dataset name.
        shares: share of each dataset in the mixture's rows.
    """

    def __init__(self, parts: Mapping[str, ShardedRows], shares: Sequence[float]) -> None:
        self.parts = dict(parts)
        self.shares = dict(zip(self.parts, shares, strict=True))
        self._shards = tuple(self.parts.values())
        self._starts = offsets_of(np.array([len(dataset) for dataset in self._shards]))

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def info(self) -> DatasetInfo | None:
        """Dataset properties that all parts share; `copies` and `seed` are those of the first."""
        return self._shards[0].info

    @property
    def is_binned(self) -> bool:
        """Whether the rows of a dataset are in bins of similar length."""
        return any(dataset.is_binned for dataset in self._shards)

    def most_predictions(self) -> int:
        """Return the maximum number of predictions of a row in any mask copy."""
        return max(dataset.most_predictions() for dataset in self._shards)

    def source(self, rows: I64) -> I64:
        """Return the dataset number of each row, int64 [B]."""
        return np.searchsorted(self._starts, rows, side="right") - 1

    def local(self, rows: I64) -> I64:
        """Return each row's number in its own dataset, int64 [B]."""
        numbers: I64 = rows - self._starts[self.source(rows)]
        return numbers

    def by_source(self, rows: I64, values: I64) -> list[int]:
        """Sum the rows' values per dataset."""
        sources, count = self.source(rows), len(self._shards)
        return [int(total) for total in np.bincount(sources, weights=values, minlength=count)]

    def take(self, rows: I64, copies: I64) -> MaskedRows:
        """Return the rows with the given mask copies, in the given order."""
        if not len(rows):
            return MaskedRows.none()
        sources = self.source(rows)
        local = rows - self._starts[sources]
        order = np.argsort(sources, kind="stable")
        pieces = []
        for number in np.unique(sources).tolist():
            selected = order[sources[order] == number]
            pieces.append(self._shards[number].take(local[selected], copies[selected]))
        # The argsort of a permutation undoes it: rows are in the order that was asked for.
        return MaskedRows.concatenate(pieces).ordered(np.argsort(order, kind="stable"))


RowTable = ShardedRows | ConcatenatedRows  # what samplers number


# Fields of `DatasetInfo` that must agree in a mixture: their name for people, and a remedy.
SAME = {
    "tokenizer": ("tokenizer", "make both with one --tokenizer"),
    "vocab_size": ("vocabulary", "make both with one --tokenizer"),
    "special": ("special tokens", "make both with one --tokenizer"),
    "length": ("length", "make both with one --length"),
    "recipe": ("recipe", "make both with one --recipe"),
    "pair_task": ("pair task", "make both with one --recipe"),
    "packed": ("packing", "make both with one --recipe"),
    "masks": ("masking", "make both with the same masking options"),
}


def check_compatible(infos: Mapping[str, DatasetInfo]) -> None:
    """Check that the datasets' rows can share a batch and have equal training settings.

    Raises:
        UsageError: two datasets differ in a field of `SAME`.
    """
    (first_name, first_info), *others = infos.items()
    for name, info in others:
        for field, (description, remedy) in SAME.items():
            expected, actual = getattr(first_info, field), getattr(info, field)
            if expected != actual:
                values = (
                    f" ({_short(expected)} and {_short(actual)})"
                    if field not in ("special", "masks")
                    else ""
                )
                raise UsageError(
                    f"datasets {first_name} and {name} differ in their {description}{values} "
                    f"and cannot be mixed; {remedy}"
                )


def _short(value: object) -> str:
    return f"{value[:12]}…" if isinstance(value, str) and len(value) > 16 else str(value)


# Training data of a run: shards with stored or dynamic masks, and their sampler.

# Consecutive rows of one length bin: a small micro-batch, and several bins in a large step.
LENGTH_GROUP = 32


def training_shards(dataset: str, dynamic: bool) -> ShardedRows:
    """Open the training split of `dataset` with stored masks, or with dynamic masking if `dynamic`.

    Raises:
        DataError: a shard is damaged.
        UsageError: the dataset does not support dynamic masking.
    """
    shards = ShardedRows(dataset)
    if not dynamic or shards.info is None:
        return shards
    return ShardedRows(dataset, info=shards.info, fresh=DynamicMasker.of(dataset, shards.info))


def make_sampler(
    shards: ShardedRows, seed: int, dynamic: bool, global_batch: int, group: int | None = None
) -> Sampler:
    """Return the sampler of a training run.

    Args:
        shards: rows to draw from; not empty.
        dynamic: draw new masks in every epoch.
        global_batch: sequences per step.
        group: consecutive rows of one length bin. None: `LENGTH_GROUP`, at most `global_batch`.
    """
    copies = None if dynamic or shards.info is None else shards.info.copies
    return Sampler(
        rows=len(shards),
        copies=copies,
        seed=seed,
        bins=shards.bins,
        group=group or min(LENGTH_GROUP, global_batch),
        window=shards.window,
        drawings=shards.drawings,
    )
