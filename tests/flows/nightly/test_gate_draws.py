"""The bootstraps of two tasks share no draws, however many examples they have."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cloze.flows.nightly import promotion_gate as gate

NAME = st.text(min_size=1, max_size=12)


@given(first=NAME, second=NAME, examples=st.integers(1, 400), seed=st.integers(0, 9))
def test_each_task_draws_for_itself(first: str, second: str, examples: int, seed: int) -> None:
    draws = [
        gate._resampled(gate._generator(name, seed, examples), 64, examples)
        for name in (first, first, second)
    ]
    assert np.array_equal(draws[0], draws[1]), "the same task twice is the same"
    if first != second and examples > 8:
        assert not np.array_equal(draws[0], draws[2])


def test_comparisons_of_tasks_with_equal_counts_have_different_errors() -> None:
    losses = np.random.default_rng(1).normal(2.0, 0.1, (2, 200))
    old, new = (
        gate.TextLosses(examples="a", losses=tuple(row.tolist()), predictions=(10,) * 200)
        for row in losses
    )
    found = {gate.compare(task, old, new, 0.95, 200, 0).low for task in ("cola", "sst2", "rte")}
    assert len(found) == 3
