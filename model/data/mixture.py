"""Several datasets as one: which of them each sample of a run comes from, and their rows behind one table.

Sample g belongs to unit g // group, a unit to a block of `BLOCK`. In each block every dataset has its quota of units, in a random order
that follows from (seed, block) alone; a dataset's units count through all blocks. So sample g is sample k of one dataset, in whose own
shuffled order, with whose own epochs and mask copies, row k stands: a pure function of (seed, g) with no state to save, found in the time
of one block, the same for any number of ranks, batch or start. Quotas are exact: shares of a whole block are off by nothing, those of a
part of one by less than those of independent draws (it is drawn without putting back).

With datasets in length bins a unit is a group of rows of one bin (`model.data.sampler`), else one row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from model.data.rows import MaskedRows
from model.data.sampler import Bins, Sampler
from model.data.shards import Shards
from pipeline.core import random_keys
from pipeline.core.errors import UsageError
from pipeline.core.ragged import I64, offsets_of
from pipeline.dataset.schema import DatasetInfo

BLOCK = 1 << 16  # units: weights are told apart to a 65,536th
_SOURCES = 9  # random stream, beside the sampler's


def quotas(shares: Sequence[float]) -> tuple[int, ...]:
    """Units of a block for each share of it, by largest remainders: together `BLOCK`.

    Raises:
        ValueError: a share comes to none; its first argument is the share's place.
    """
    exact = BLOCK * np.asarray(shares, np.float64) / float(np.sum(shares))
    found = np.floor(exact).astype(np.int64)
    order = np.argsort(found - exact, kind="stable")
    found[order[: BLOCK - int(found.sum())]] += 1
    if not found.all():
        raise ValueError(int(np.argmin(found)))
    return tuple(found.tolist())


@lru_cache(maxsize=8)
def _block(quotas: tuple[int, ...], seed: int, number: int) -> tuple[I64, I64]:
    """Of each unit of block `number`: its dataset, and how many units of that dataset stand before it in the block."""
    order = np.argsort(random_keys.derive(seed, _SOURCES, number, np.arange(BLOCK)), kind="stable")
    sources, before = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    sources[order] = np.repeat(np.arange(len(quotas)), quotas)
    for source, quota in enumerate(quotas):
        before[sources == source] = np.arange(quota)
    return sources, before


@dataclass(frozen=True, slots=True)
class Draw:
    """Which dataset each sample comes from.

    Attributes:
        quotas: each dataset's units of a block.
        seed: of the order.
        group: samples of a unit.
    """

    quotas: tuple[int, ...]
    seed: int
    group: int = 1

    def locate(self, samples: I64) -> tuple[I64, I64]:
        """The dataset of each sample, and its number among that dataset's samples; both int64 of the same shape."""
        units, inside = np.divmod(samples, self.group)
        blocks, places = np.divmod(units, BLOCK)
        sources, numbers = np.empty_like(samples), np.empty_like(samples)
        sizes = np.asarray(self.quotas)
        for block in np.unique(blocks).tolist():
            mine = blocks == block
            source, before = _block(self.quotas, self.seed, block)
            sources[mine] = source[places[mine]]
            numbers[mine] = block * sizes[sources[mine]] + before[places[mine]]
        return sources, numbers * self.group + inside

    def before(self, samples: int) -> list[int]:
        """How many of the first `samples` samples come from each dataset."""
        units, inside = divmod(samples, self.group)
        block, place = divmod(units, BLOCK)
        source, _ = _block(self.quotas, self.seed, block)
        counts = block * np.asarray(self.quotas) + np.bincount(source[:place], minlength=len(self.quotas))
        found = counts * self.group
        found[source[place]] += inside
        return [int(count) for count in found]


@dataclass(frozen=True, slots=True)
class MixedSampler:
    """The order of a run over several datasets; see `model.data.sampler.Sampler`.

    Attributes:
        samplers: of each dataset.
        draw: which of them is drawn from.
        firsts: the sample that each dataset begins with.
    """

    samplers: tuple[Sampler, ...]
    draw: Draw
    firsts: tuple[int, ...]

    def locate(self, samples: npt.ArrayLike) -> tuple[I64, I64]:
        """Row number, counted through all datasets, and mask copy of each global sample number."""
        samples = np.asarray(samples, np.int64)
        sources, numbers = self.draw.locate(samples)
        starts = offsets_of(np.array([sampler.rows for sampler in self.samplers]))
        rows, copies = np.empty_like(samples), np.empty_like(samples)
        for number, sampler in enumerate(self.samplers):
            mine = sources == number
            if mine.any():
                found, copies[mine] = sampler.locate(self.firsts[number] + numbers[mine])
                rows[mine] = starts[number] + found
        return rows, copies

    def places(self, samples: int) -> list[int]:
        """Each dataset's next sample, after `samples` samples of the run."""
        return [first + count for first, count in zip(self.firsts, self.draw.before(samples), strict=True)]


class MixedShards:
    """The rows of one split of several datasets, one dataset's behind the other's; see `model.data.shards.Shards`.

    Args:
        parts: each dataset's, by name.
        shares: what each is of the mixture's rows.
    """

    def __init__(self, parts: Mapping[str, Shards], shares: Sequence[float]) -> None:
        self.parts = dict(parts)
        self.shares = dict(zip(self.parts, shares, strict=True))
        self._shards = tuple(self.parts.values())
        self._starts = offsets_of(np.array([len(part) for part in self._shards]))
        self.path = ", ".join(part.path for part in self._shards)

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def info(self) -> DatasetInfo | None:
        """What all of them say of their rows; of mask copies and seed, what the first does."""
        return self._shards[0].info

    @property
    def bins(self) -> Bins | None:
        """Those of the first that has some: rows of one length lie together."""
        return next((bins for part in self._shards if (bins := part.bins) is not None), None)

    def first(self, number: int) -> I64:
        """The numbers of each dataset's first rows, by its share of so many; int64."""
        shares = zip(self._shards, self.shares.values(), self._starts, strict=False)
        return np.concatenate([start + part.first(round(share * number)) for part, share, start in shares])

    def most_predictions(self) -> int:
        """The most predicted positions that a row has in any copy."""
        return max(part.most_predictions() for part in self._shards)

    def source(self, rows: I64) -> I64:
        """The number of each row's dataset, int64 [B]."""
        return np.searchsorted(self._starts, rows, side="right") - 1

    def local(self, rows: I64) -> I64:
        """Each row's number in its own dataset, int64 [B]."""
        found: I64 = rows - self._starts[self.source(rows)]
        return found

    def by_source(self, rows: I64, values: I64) -> list[int]:
        """The sum of the rows' values, for each dataset."""
        return [int(total) for total in np.bincount(self.source(rows), weights=values, minlength=len(self._shards))]

    def take(self, rows: I64, copies: I64) -> MaskedRows:
        """The rows, each with the mask copy asked for, in that order."""
        sources = self.source(rows)
        local = rows - self._starts[sources]
        order = np.argsort(sources, kind="stable")
        pieces = []
        for number in np.unique(sources).tolist():
            mine = order[sources[order] == number]
            pieces.append(self._shards[number].take(local[mine], copies[mine]))
        return MaskedRows.joined(pieces).ordered(np.argsort(order, kind="stable")) if len(rows) else MaskedRows.none()


SAME = {  # what the rows of a mixture must have in common: a field of `DatasetInfo`, in words, and what to do where it differs
    "tokenizer": ("tokenizer", "make both with one --tokenizer"),
    "vocab_size": ("vocabulary", "make both with one --tokenizer"),
    "special": ("special tokens", "make both with one --tokenizer"),
    "length": ("length", "make both with one --length"),
    "recipe": ("recipe", "make both with one --recipe"),
    "pair_task": ("pair task", "make both with one --recipe"),
    "packed": ("packing", "make both with one --recipe"),
    "masks": ("masking", "make both with the same masking options"),
}


def check_alike(infos: Mapping[str, DatasetInfo]) -> None:
    """Refuse datasets whose rows cannot stand in one batch, or would be learned from differently.

    Raises:
        UsageError: two differ.
    """
    (first, known), *others = infos.items()
    for name, info in others:
        for field, (what, remedy) in SAME.items():
            ours, theirs = getattr(known, field), getattr(info, field)
            if ours != theirs:
                told = f" ({_short(ours)} and {_short(theirs)})" if field not in ("special", "masks") else ""
                raise UsageError(f"datasets {first} and {name} differ in their {what}{told} and cannot be mixed; {remedy}")


def _short(value: object) -> str:
    return f"{value[:12]}…" if isinstance(value, str) and len(value) > 16 else str(value)
