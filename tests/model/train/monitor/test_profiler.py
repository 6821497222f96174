"""`--profile-steps`: a trace and a table, and the same weights."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tests.model.datasets import write_dataset
from tests.model.train.ranks import config, digests, here


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_dataset(tmp_path_factory.mktemp("data") / "dataset")


def test_a_profile_tells_of_its_steps_and_changes_none(dataset: str, tmp_path: Path) -> None:
    settings = config(steps=10, heldout_rows=0)
    run = here(settings, dataset, tmp_path / "run", profile_steps=3)
    assert "profiled 3 steps from step 6 on" in run.said("note")
    directory = tmp_path / "run" / "_logs" / "profile"
    table = (directory / "operations.txt").read_text()
    assert table.count("aten::") >= 10
    assert "Self CPU time total" in table
    assert "Input Shapes" in table
    trace = json.loads(gzip.decompress((directory / "trace.json.gz").read_bytes()))
    names = {event.get("name") for event in trace["traceEvents"]}
    assert names & {"aten::addmm", "cloze::product"}  # the latter on an AMD with AVX-512
    plain = here(settings, dataset, tmp_path / "plain")
    assert digests(plain.checkpoint) == digests(run.checkpoint)
    assert not (tmp_path / "plain" / "_logs").exists()


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        (7, "profiled 2 steps from step 6 on"),
        (5, "nothing was profiled"),
        (3, "nothing was profiled"),
    ],
)
def test_a_training_that_ends_first_says_so(
    dataset: str, tmp_path: Path, steps: int, told: str
) -> None:
    run = here(config(steps=steps, heldout_rows=0), dataset, tmp_path / "run", profile_steps=50)
    assert told in run.said("note")
