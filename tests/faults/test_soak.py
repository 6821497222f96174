"""Kills at random moments: others at each commit, hundreds in `make soak`."""

from __future__ import annotations

import pytest

from tests.faults.soak import soak


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_other_moments_at_each_commit(pytestconfig: pytest.Config) -> None:
    seed = int((pytestconfig.getoption("--slice") or "1/1").partition("/")[0])
    trainings, data = soak(12, 6, seed=seed)
    assert trainings.equal == trainings.killed
    assert data.equal == data.killed
    assert (trainings.killed.total(), data.killed.total()) == (12, 6)
