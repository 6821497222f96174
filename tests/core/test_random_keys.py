"""Random numbers from keys: known values, uniformity, independence of shape."""

from __future__ import annotations

import numpy as np

from cloze.core import random_keys


def test_splitmix64_known_values() -> None:
    """The first outputs of splitmix64 seeded with 1234567, as published with the
    reference C code.
    """
    state = [(1234567 + n * 0x9E3779B97F4A7C15) % 2**64 for n in range(3)]
    assert random_keys.splitmix64(np.array(state, dtype=np.uint64)).tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


def test_a_value_does_not_depend_on_its_batch() -> None:
    batch = random_keys.fold_in(3, np.arange(1000), 5)
    assert int(random_keys.fold_in(3, 417, 5)) == int(batch[417])
    assert int(random_keys.fold_in(3, 417, 6)) != int(batch[417])
    assert int(random_keys.fold_in(1, 2)) != int(random_keys.fold_in(2, 1))


def test_uniform_and_below() -> None:
    numbers = random_keys.uniform(random_keys.fold_in(1, np.arange(100_000)))
    assert 0 <= numbers.min() < 1e-4
    assert 1 - 1e-4 < numbers.max() < 1
    assert abs(numbers.mean() - 0.5) < 0.005
    counts = np.bincount(
        random_keys.randint_below(random_keys.fold_in(2, np.arange(70_000)), 7).astype(int),
        minlength=7,
    )
    assert counts.size == 7
    assert np.abs(counts - 10_000).max() < 400
