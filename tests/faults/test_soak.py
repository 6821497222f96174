"""Kills at random moments: a few of them always, hundreds in `make soak`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.faults.soak import soak, table

TABLE = REPOSITORY / "runs" / "soak.md"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_few_kills_at_random_moments() -> None:
    trainings, data = soak(2, 1, seed=7)
    assert trainings.equal == trainings.killed
    assert data.equal == data.killed
    assert (trainings.killed.total(), data.killed.total()) == (2, 1)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_hundreds_of_kills_at_random_moments(capsys: pytest.CaptureFixture[str]) -> None:
    trainings, data = soak(200, 100)
    TABLE.parent.mkdir(exist_ok=True)
    Path(TABLE).write_text(table([trainings, data]))
    with capsys.disabled():
        print(f"\n{table([trainings, data])}")
    assert (trainings.killed.total(), data.killed.total()) == (200, 100)
    assert trainings.equal == trainings.killed
    assert data.equal == data.killed
