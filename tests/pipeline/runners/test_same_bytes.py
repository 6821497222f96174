"""Whoever does the work, wherever it lies, and in whatever pieces and order: the same bytes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cloze.core import storage
from tests.flows.test_cli import cloze
from tests.object_store import Store
from tests.pipeline.runners.jobs import STAGES, run, stage

# Three workers for two cores cut the units into other bundles; Beam's bundle repeat does each of
# them twice.
OTHER_BUNDLES = ["--workers", "3", "--beam-option=--direct_runner_bundle_repeat=1"]


def test_from_and_to_a_store_by_more_workers_in_other_bundles(
    store: Store, local_run: dict[str, str], shelf: Path, samples: Path
) -> None:
    dump = store.upload(shelf, "dump")
    assert run(store.path("made"), OTHER_BUNDLES, dump, samples) == local_run
    done = cloze("verify", store.path("made", "dataset"), "--json", cwd=samples)
    assert done.returncode == 0
    assert done.json["artifacts"][0]["content_sha256"] == local_run["dataset"]
    for name in STAGES:
        left = [
            key
            for key in storage.list_files(store.path("made", name))
            if key.startswith("_") and "_logs/" not in key
        ]
        assert left == []
    assert stage("corpus", store.path("made"), [], dump, samples).json["cached"]


@pytest.mark.soak
def test_another_directory_and_another_order_of_its_files(
    local_run: dict[str, str], shelf: Path, samples: Path, tmp_path: Path
) -> None:
    renamed = tmp_path / "elsewhere"
    renamed.mkdir()
    for source in sorted(shelf.iterdir(), reverse=True):
        shutil.copy(source, renamed / source.name)
    assert run(str(tmp_path / "out"), OTHER_BUNDLES, str(renamed), samples) == local_run


@pytest.mark.usefixtures("flink")
@pytest.mark.parametrize("stages", [("corpus",), STAGES], ids=["corpus", "all"])
@pytest.mark.soak
def test_embedded_flink(
    stages: tuple[str, ...], local_run: dict[str, str], shelf: Path, samples: Path, tmp_path: Path
) -> None:
    """The corpus has more documents than one process may compare here, so what has duplicates is
    found by Flink's shuffle.
    """
    out, options = str(tmp_path / "out"), ["--runner", "flink", "--workers", "2"]
    few = [*options, "--set", "run.dedup_in_memory_documents=5"]
    done = stage("corpus", out, few, str(shelf), samples)
    assert done.returncode == 0, done.stderr
    made = run(out, options, str(shelf), samples, stages)
    assert made == {name: local_run[name] for name in stages}
