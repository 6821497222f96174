"""The held-out rows, frequency bands of their targets, and losses of context-free guessing.

Losses are also reported by frequency band of the target token. Each of the three bands makes up a
third of the text. The frequent band is learned in the first minutes, the rare band takes the rest
of the training. Separate losses therefore say more than the mean.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cloze.model.data.batch import (
    BIDIRECTIONAL,
    AttentionModes,
    Batch,
    collate,
    empty_batch,
)
from cloze.model.data.layouts import LayoutKind
from cloze.model.data.mixture import ConcatenatedRows
from cloze.model.data.sampler import shard_range
from cloze.model.data.shards import RowTable
from cloze.model.objectives.losses import BANDS
from cloze.model.train.distributed import World
from cloze.pipeline.tokenizer.special import SpecialTokens

BAND_ROWS = 4096  # training rows in which tokens are counted
COUNT_ROWS = 4096  # rows read at once to count targets
UNIGRAM_ROWS = 20_000  # training rows from which the unigram distribution is counted
FEWEST_ROWS = 64  # minimum for a meaningful mean
I64 = npt.NDArray[np.int64]


def bands_of(counts: np.ndarray[Any, Any]) -> Tensor:
    """Return each token's frequency band; each band makes up about a third of all occurrences.

    Args:
        counts: occurrences of each token, [V].

    Returns:
        int64 [V], indices in `BANDS`. A token on a border belongs to the more frequent band.
    """
    order = np.argsort(-counts, kind="stable")
    more_frequent = np.cumsum(counts[order]) - counts[order]
    bands = np.zeros(len(counts), np.int64)
    bands[order] = np.maximum(
        0, len(BANDS) - 1 - (len(BANDS) * more_frequent) // max(1, int(counts.sum()))
    )
    bands[counts == 0] = 0
    return torch.from_numpy(bands)


def training_bands(shards: RowTable, special: SpecialTokens, vocabulary: int) -> Tensor:
    """Compute the bands from the first `BAND_ROWS` training rows; special tokens count as 0."""
    rows = shards.first(BAND_ROWS)
    counts = np.bincount(shards.take(rows, np.zeros_like(rows)).ids, minlength=vocabulary).astype(
        np.int64
    )
    counts[list(special.ids)] = 0
    return bands_of(counts)


@dataclass(frozen=True, slots=True)
class HeldoutSet:
    """The first `rows` held-out rows with mask copy 0, in the attention modes of training.

    Row r is read as sample r. Shards are sorted by a hash, so the first rows are a fair sample.

    Attributes:
        bands: int64 [V], frequency bands (see `bands_of`); None: the loss is not split by band.
    """

    shards: RowTable
    rows: int
    batch: int
    pad: int
    mask: int
    longest: int
    layout: LayoutKind = "rows"
    directions: AttentionModes = BIDIRECTIONAL
    bands: torch.Tensor | None = None

    def parts(self) -> list[tuple[str, HeldoutSet]]:
        """Return the set of each dataset by name; a single dataset has the name "".

        A mixture's rows are divided by its weights, but each dataset has at least `FEWEST_ROWS`
        divided by the number of datasets.
        """
        if not isinstance(self.shards, ConcatenatedRows):
            return [("", self)]
        datasets, shares = self.shards.parts, self.shards.shares
        min_rows = min(self.rows, FEWEST_ROWS) // len(datasets)
        rows = {
            name: min(len(dataset), max(min_rows, round(shares[name] * self.rows)))
            for name, dataset in datasets.items()
        }
        return [
            (name, replace(self, shards=dataset, rows=rows[name]))
            for name, dataset in datasets.items()
        ]

    def batches(self, world: World) -> list[tuple[int, int]]:
        """Return this rank's batches as row ranges, equally many on every rank.

        Some ranges may be empty.
        """
        max_rows = -(-self.rows // world.size)
        batch_count = -(-max_rows // self.batch)
        rank_range = shard_range(0, self.rows, world.rank, world.size)
        return [shard_range(*rank_range, index, batch_count) for index in range(batch_count)]

    def load(self, start: int, stop: int) -> Batch:
        if start == stop:
            return empty_batch(pad=self.pad, directions=self.directions)
        rows = np.arange(start, stop)
        masked_rows = self.shards.take(rows, np.zeros_like(rows))
        return collate(
            masked_rows,
            pad=self.pad,
            longest=self.longest,
            layout=self.layout,
            directions=self.directions,
            samples=rows,
        )

    def target_counts(self, vocabulary: int) -> I64:
        """Count how many times each id is a target, int64 [V]."""
        counts = np.zeros(vocabulary, np.int64)
        for _, dataset in self.parts():
            for start in range(0, dataset.rows, COUNT_ROWS):
                labels = dataset.load(start, min(start + COUNT_ROWS, dataset.rows))[
                    "masked_labels"
                ].numpy()
                counts += np.bincount(labels[labels >= 0], minlength=vocabulary)
        return counts


def target_count_rows(heldout: HeldoutSet, train: RowTable) -> HeldoutSet:
    """Return the training rows whose targets are counted, read like the held-out rows."""
    return replace(heldout, shards=train, rows=min(len(train), UNIGRAM_ROWS))


def unigram_baselines(train: HeldoutSet, heldout: HeldoutSet, vocabulary: int) -> dict[str, float]:
    """Return the losses of context-free guessing, in nats per held-out target.

    A trained model must be below both.

    Returns:
        unigram_entropy: entropy of the held-out targets' own distribution, which no such guesser
        can beat; far too low with few held-out rows. unigram_loss: loss of the training targets'
        distribution, with add-one smoothing.
    """
    heldout_counts, train_counts = (
        heldout.target_counts(vocabulary),
        train.target_counts(vocabulary) + 1.0,
    )
    if not heldout_counts.sum():
        return {}
    shares = heldout_counts / heldout_counts.sum()
    return {
        "unigram_entropy": round(entropy(heldout_counts), 6),
        "unigram_loss": round(
            float(-(shares * np.log(train_counts / train_counts.sum())).sum()), 6
        ),
    }


def entropy(counts: I64) -> float:
    """Return the entropy in nats of the distribution with these counts, which are not all 0."""
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())
