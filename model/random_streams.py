"""The random streams of a training's seed."""

from __future__ import annotations

from enum import IntEnum


class Stream(IntEnum):
    """First part after the seed of a key: `random_keys.fold_in(seed, Stream.ORDER, …)`.

    A number stands for the same draw for ever: results depend on it.
    """

    ORDER = 1  # of the training rows in each pass
    WEIGHTS = 2
    DROPOUT = 3
    THINNING = 8  # of stored masks, to the scheduled rate
    SOURCES = 9  # of a mixture's samples
    AUXILIARY_MASKS = 11  # in fine-tuning
    AUXILIARY_WEIGHTS = 12
    NOISE = 13  # of encoder-decoders
    PERMUTATION = 14
