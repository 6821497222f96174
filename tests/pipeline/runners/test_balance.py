"""Equal shares of work."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cloze.pipeline.runners.fan_out import IDLE, balance_units


@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=30), st.integers(1, 8))
def test_every_unit_comes_once_and_no_worker_has_much_more_than_its_share(
    weights: list[float], workers: int
) -> None:
    """Graham, "Bounds on Multiprocessing Timing Anomalies", 1969: list scheduling exceeds an equal
    share by less than one unit.
    """
    order = balance_units([(str(n), n) for n in range(len(weights))], weights, workers)
    count = min(workers, len(weights))
    lists = [
        [unit for name, unit in order[worker::count] if name != IDLE] for worker in range(count)
    ]
    assert sorted(unit for own in lists for unit in own) == list(range(len(weights)))
    longest = max(sum(weights[unit] for unit in own) for own in lists)
    assert longest <= sum(weights) / count + max(weights) * (1 - 1 / count) + 1e-6


def test_one_worker_begins_with_the_heaviest() -> None:
    assert [name for name, _ in balance_units([("a", 0), ("b", 1), ("c", 2)], [1, 9, 5], 1)] == [
        "b",
        "c",
        "a",
    ]
