"""Pieces by how often they occur: three bands, each of which makes up a third of the text.

The frequent third is learned in the first minutes of a training, the rare one is what the rest of it goes to: their held-out losses apart
say more than their mean.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from model.data.shards import Rows
from model.objectives.bands import BANDS
from pipeline.tokenizer.special import SpecialTokens

ROWS = 4096  # training rows that occurrences are counted in


def bands_of(counts: np.ndarray[Any, Any]) -> Tensor:
    """Each piece's band: the most frequent pieces that make up a third of all occurrences, those that make up the next, and the rest.

    Args:
        counts: how often each piece occurs, [V].

    Returns:
        int64 [V], indices in `BANDS`. A piece that lies across a border belongs to the more frequent side.
    """
    order = np.argsort(-counts, kind="stable")
    more_frequent = np.cumsum(counts[order]) - counts[order]
    found = np.zeros(len(counts), np.int64)
    found[order] = np.maximum(0, len(BANDS) - 1 - (len(BANDS) * more_frequent) // max(1, int(counts.sum())))
    found[counts == 0] = 0
    return torch.from_numpy(found)


def training_bands(shards: Rows, special: SpecialTokens, vocabulary: int) -> Tensor:
    """Those of a vocabulary of that size, by some rows of training; special tokens, which are never predicted, count for nothing."""
    rows = shards.first(ROWS)
    counts = np.bincount(shards.take(rows, np.zeros_like(rows)).ids, minlength=vocabulary).astype(np.int64)
    counts[list(special.ids)] = 0
    return bands_of(counts)
