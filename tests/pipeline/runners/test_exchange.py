"""Work whose pieces must meet, by Beam's own shuffle; `tests/pipeline/corpus/duplicates` has what it is
for.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cloze.core.errors import ClozeError
from cloze.pipeline.runners.shuffle import run_shuffle
from tests.pipeline.runners.units import Remainders, build


def test_everybody_hears_of_all_that_is_alike(tmp_path: Path) -> None:
    """Blocks send their numbers to buckets by the remainder; a bucket tells each how many there
    are; block 7 asks nobody.
    """
    begun = build(tmp_path / "out", runner="FnApiRunner")
    with begun.cleanup:
        found = run_shuffle(begun, "count", Remainders(str(tmp_path)), 8)
        assert found == [
            {"block": block, "replies": [3 if block % 3 == 0 else 2]} for block in range(7)
        ] + [{"block": 7, "replies": []}]
        assert (
            run_shuffle(begun, "count", Remainders(str(tmp_path), fails="apply"), 8) == found
        )  # it is finished


@pytest.mark.parametrize("step", ["map", "reduce", "apply"])
def test_what_fails_is_told_and_can_be_done_again(step: str, tmp_path: Path) -> None:
    begun = build(tmp_path / "out", runner="FnApiRunner")
    with begun.cleanup:
        with pytest.raises(
            ClozeError,
            match=r"count, (block|bucket) 1 did not fit in memory.*; run again to continue",
        ):
            run_shuffle(begun, "count", Remainders(str(tmp_path), fails=step), 3)
        assert len(run_shuffle(begun, "count", Remainders(str(tmp_path)), 3)) == 3


@pytest.mark.soak
@pytest.mark.usefixtures("flink")
def test_a_killed_worker_costs_one_try(tmp_path: Path) -> None:
    begun = build(tmp_path / "out", workers=2, runner="flink")
    with begun.cleanup:
        found = run_shuffle(begun, "count", Remainders(str(tmp_path), fails="kill"), 8)
        assert [result["replies"] for result in found] == [[3], [2], [2], [3], [2], [2], [3], []]
        assert (tmp_path / "killed").exists()
