"""How much of a batch is text, and how much of it a model computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from model.data.batch import LAYOUT
from model.layers.unpadded import Tokens


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of one or several batches.

    Attributes:
        tokens: real ones.
        positions: that run through the layers, padding included.
        seen: over all tokens, how many each of them sees in a layer that sees its whole sequence: the squares of lengths, summed.
    """

    tokens: int = 0
    positions: int = 0
    seen: int = 0

    def __add__(self, other: Sizes) -> Sizes:
        return Sizes(self.tokens + other.tokens, self.positions + other.positions, self.seen + other.seen)


def sizes(batch: Mapping[str, Any]) -> Sizes:
    """Of a batch on the CPU, as a collator makes it; zeros where it says of no token whether it is real."""
    mask = batch.get("attention_mask")
    if mask is None:
        return Sizes()
    real = mask.numpy().astype(bool)
    lengths = real.sum(axis=-1).ravel().astype(np.int64)
    first = batch.get("sequence_first")
    if first is not None:  # rows of several sequences, which do not see each other
        lengths = np.bincount(np.cumsum(first.numpy().ravel())[real.ravel()]).astype(np.int64)
    layout = batch.get(LAYOUT)
    positions = len(layout.places) if isinstance(layout, Tokens) else real.size
    return Sizes(int(real.sum()), positions, int((lengths**2).sum()))
