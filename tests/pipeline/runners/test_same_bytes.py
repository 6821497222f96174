"""Whoever does the work, and in whatever pieces and order: the same bytes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.pipeline.runners.jobs import run, stage

pytestmark = pytest.mark.slow


def test_more_workers_other_bundles_and_another_order_of_files(
    local_run: dict[str, str], shelf: Path, samples: Path, tmp_path: Path
) -> None:
    """Three workers for two cores cut the units into other bundles; Beam's bundle repeat does each
    of them twice.
    """
    renamed = tmp_path / "elsewhere"
    renamed.mkdir()
    for source in sorted(
        shelf.iterdir(), reverse=True
    ):  # another directory, another order of entries
        shutil.copy(source, renamed / source.name)
    options = ["--workers", "3", "--beam-option=--direct_runner_bundle_repeat=1"]
    assert run(str(tmp_path / "out"), options, str(renamed), samples) == local_run


@pytest.mark.usefixtures("flink")
def test_embedded_flink(
    local_run: dict[str, str], shelf: Path, samples: Path, tmp_path: Path
) -> None:
    """The corpus has more documents than one process may compare here, so what has duplicates is
    found by Flink's shuffle.
    """
    out, options = str(tmp_path / "out"), ["--runner", "flink", "--workers", "2"]
    few = [*options, "--dedup-in-memory-documents", "5"]
    done = stage("corpus", out, few, str(shelf), samples)
    assert done.returncode == 0, done.stderr
    assert run(out, options, str(shelf), samples) == local_run
