"""Which rows a step trains on: a pure function of (seed, how many samples were consumed), with no state to save.

Sample g of a run is position g % N of epoch g // N, and an epoch visits every row once, in an order of its own: a
format-preserving permutation (a Feistel network on the next power of four, walked until the value lies below N; Black
and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). Any sample is found in O(1), so resuming at any step is
instantaneous, and the order is the same on every number of ranks: a rank takes its slice of each step's samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline import keys

I64 = npt.NDArray[np.int64]
ROUNDS = 6  # four make a pseudorandom permutation (Luby and Rackoff); small domains like a few more
_ORDER = 1  # random stream, beside the trainer's


def permute(position: npt.ArrayLike, count: int, key: npt.ArrayLike) -> I64:
    """The bijection on [0, count) that `key` names, at `position`.

    Args:
        position: integers in [0, count).
        count: N, at least 1.
        key: uint64; broadcasts with `position`.

    Returns:
        int64 of the broadcast shape.
    """
    value = np.array(np.broadcast_arrays(np.asarray(position, np.uint64), np.asarray(key, np.uint64))[0])
    key = np.broadcast_to(np.asarray(key, np.uint64), value.shape)
    half = np.uint64(max(1, (max(count - 1, 1).bit_length() + 1) // 2))
    pending = np.ones(value.shape, bool)
    while pending.any():  # fewer than four tries each on average, as the domain is below 4 N
        value[pending] = _feistel(value[pending], key[pending], half)
        pending[pending] = value[pending] >= np.uint64(count)
    return value.astype(np.int64)


def _feistel(value: keys.U64, key: keys.U64, half: np.uint64) -> keys.U64:
    low = (np.uint64(1) << half) - np.uint64(1)
    left, right = value >> half, value & low
    for number in range(ROUNDS):
        left, right = right, left ^ (keys.mix(keys.mix(key ^ np.uint64(number)) ^ right) & low)
    return (left << half) | right


@dataclass(frozen=True, slots=True)
class Sampler:
    """The order of a run: `rows` rows of `copies` mask copies each; epoch e trains on copy e % copies (RoBERTa, section 4.1)."""

    rows: int
    copies: int
    seed: int

    def locate(self, samples: npt.ArrayLike) -> tuple[I64, I64]:
        """Row number and mask copy of each global sample number; both int64 of the same shape."""
        samples = np.asarray(samples, np.int64)
        epochs = samples // self.rows
        return permute(samples % self.rows, self.rows, keys.derive(self.seed, _ORDER, epochs)), epochs % self.copies


def share(start: int, stop: int, part: int, parts: int) -> tuple[int, int]:
    """Part `part` of [start, stop) cut into `parts` pieces whose sizes differ by at most one."""
    size = stop - start
    return start + size * part // parts, start + size * (part + 1) // parts
