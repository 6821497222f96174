"""The dataset stage on a full disk, where nothing can be written, and killed: one sentence, nothing
half-done, and going on.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloze.core.artifacts import artifact
from cloze.core.errors import ClozeError
from cloze.core.stages.execute import BuildResult
from cloze.pipeline.corpus.files import shards as corpus_shards
from cloze.pipeline.dataset import build, shards
from tests.faults.disks import Disk, fill
from tests.pipeline.corpus.corpora import made_documents, write_corpus
from tests.pipeline.dataset.datasets import make, write_vocab
from tests.slices import few

ROW_UNITS = 6
SETTINGS = {"mask_copies": 30}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    directory = tmp_path_factory.mktemp("inputs")
    return write_corpus(directory / "corpus", made_documents(60), shards=ROW_UNITS), write_vocab(
        directory
    )


@pytest.fixture(scope="module")
def whole(inputs: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> BuildResult:
    """What every interrupted run must come to."""
    return make(*inputs, tmp_path_factory.mktemp("whole"), **SETTINGS)


@pytest.fixture(autouse=True)
def a_run_a_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small shards do not share a run."""
    monkeypatch.setattr(corpus_shards, "run_bytes", lambda total, least: 0)


@contextlib.contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, list[str]]]:
    """The units that are done, by step, while the context lasts."""
    done: dict[str, list[str]] = {"rows": [], "shards": []}
    with monkeypatch.context() as patch:
        for step, kind in (("rows", build.BuildRows), ("shards", shards.WriteDatasetShard)):
            original = kind.__call__

            def call(
                self: object, unit: dict[str, object], original=original, step: str = step
            ) -> dict[str, object]:
                done[step].append(str(unit.get("path")))
                return original(self, unit)

            patch.setattr(kind, "__call__", call)
        yield done


def test_a_disk_that_is_too_small_is_seen_before_shards_are_written(
    small_disk: Disk, inputs: tuple[str, str], whole: BuildResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(small_disk, 600_000)
    with (
        counted(monkeypatch) as done,
        pytest.raises(ClozeError, match=r"GB free, the shards will take some .*; free some space"),
    ):
        make(*inputs, small_disk.path / "out", **SETTINGS)
    assert (len(done["rows"]), len(done["shards"])) == (ROW_UNITS, 0)
    (small_disk.path / "filler").unlink()
    with counted(monkeypatch) as done:
        result = make(*inputs, small_disk.path / "out", **SETTINGS)
    assert (len(done["rows"]), len(done["shards"])) == (0, 5)
    assert result.manifest.content_sha256 == whole.manifest.content_sha256


def test_a_disk_that_fills_up(
    small_disk: Disk, inputs: tuple[str, str], whole: BuildResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of the shards: the sentence names the file and the remedy; then only what is
    not finished is done.
    """
    monkeypatch.setattr(
        build, "check_disk_space", lambda *arguments: 0
    )  # as if something else filled the disk meanwhile
    size = max(entry.size for entry in whole.manifest.files)
    fill(small_disk, 3 * size)
    with (
        counted(monkeypatch) as first,
        pytest.raises(ClozeError, match=r"No space left on device; free some space"),
    ):
        make(*inputs, small_disk.path / "out", **SETTINGS)
    finished = {path.name for path in (small_disk.path / "out").glob("*.arrow")}
    assert 0 < len([name for name in finished if name.startswith("train-")]) < 4
    assert not artifact.is_artifact(str(small_disk.path / "out"))
    (small_disk.path / "filler").unlink()
    with counted(monkeypatch) as done:
        result = make(*inputs, small_disk.path / "out", **SETTINGS)
    assert done["rows"] == []
    assert 0 < len(done["shards"]) < 5
    assert len(first["rows"]) == ROW_UNITS
    assert result.manifest.content_sha256 == whole.manifest.content_sha256
    assert result.manifest.counters == whole.manifest.counters
    assert artifact.verify(result.artifact).ok


def test_appending_on_a_full_disk_leaves_the_old_dataset_alone(
    small_disk: Disk, inputs: tuple[str, str], tmp_path: Path
) -> None:
    old = make(*inputs, small_disk.path / "old", **SETTINGS)
    more = write_corpus(
        tmp_path / "more", [(f"x/{name}", text) for name, text in made_documents(40)]
    )
    fill(small_disk, 100_000)
    with pytest.raises(ClozeError):
        make(
            more,
            f"{old.artifact}/tokenizer",
            small_disk.path / "new",
            append=old.artifact,
            **SETTINGS,
        )
    assert artifact.verify(old.artifact).ok
    assert not artifact.is_artifact(str(small_disk.path / "new"))
    small_disk.remount("size=32m")
    bigger = make(
        more, f"{old.artifact}/tokenizer", small_disk.path / "new", append=old.artifact, **SETTINGS
    )
    assert artifact.verify(bigger.artifact).ok
    assert artifact.verify(old.artifact).ok


def test_where_nothing_can_be_written(small_disk: Disk, inputs: tuple[str, str]) -> None:
    small_disk.remount("ro")
    command = [
        sys.executable,
        "-m",
        "cloze.flows.cli",
        "dataset",
        "--corpus",
        inputs[0],
        "--tokenizer",
        inputs[1],
    ]
    code = "import sys; from cloze.flows.cli import main; sys.exit(main(sys.argv[1:]))"
    found = subprocess.run(
        [sys.executable, "-c", code, *command[3:], "--out", str(small_disk.path / "out")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 1
    last = found.stderr.strip().splitlines()[-1]
    assert last.startswith("cloze: ")
    assert "Read-only file system" in last
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize("step", few(["rows", "shards"], "shards"))
def test_a_killed_worker_is_told_and_what_it_finished_is_kept(
    inputs: tuple[str, str],
    whole: BuildResult,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    """kill -9 on the stage's process under `cloze dataset`, after its first finished unit."""
    out = tmp_path / "out"
    code = (
        "import sys, time; from cloze.flows.cli import main; from cloze.pipeline.dataset import "
        "append as documents;sys.exit(main(sys.argv[1:]))"
    )
    slow = tmp_path / "sitecustomize.py"
    slow.write_text(SLOW)
    path = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
    settings = ["--length", "48", "--drawings", "1", "--mask-copies", "30"]
    settings += ["--seed", "7", "--shards", "4"]
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            code,
            "dataset",
            "--corpus",
            inputs[0],
            "--tokenizer",
            inputs[1],
            *settings,
            "--out",
            str(out),
        ],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "CLOZE_TEST_SLOW": "1"},
        cwd=Path(__file__).resolve().parents[2],
    )
    deadline = time.monotonic() + 120
    while (
        not list((out / "_scratch" / step).glob("*.json"))
        and process.poll() is None
        and time.monotonic() < deadline
    ):
        time.sleep(0.005)
    [worker] = _children(process.pid)
    os.kill(worker, signal.SIGKILL)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "was killed (SIGKILL" in told.strip().splitlines()[-1]
    assert not artifact.is_artifact(str(out))
    finished = len(list((out / "_scratch" / step).glob("*.json")))
    units = {"rows": ROW_UNITS, "shards": 5}
    assert 0 < finished < units[step]
    with counted(monkeypatch) as done:
        result = make(*inputs, out, **SETTINGS)
    assert len(done[step]) == units[step] - finished
    assert result.manifest.content_sha256 == whole.manifest.content_sha256
    assert result.manifest.counters == whole.manifest.counters


SLOW = """
import os, sys
if os.environ.get("CLOZE_TEST_SLOW"):
    import builtins, time
    real = builtins.__import__
    def slow_import(name, *rest, **more):
        module = real(name, *rest, **more)
        found = sys.modules.get("cloze.pipeline.runners.fan_out")
        if found is not None and hasattr(found, "_Unit") and not hasattr(found, "slowed"):
            found.slowed = True
            process = found._Unit.process
            def waits(self, element):
                time.sleep(0.3)
                return process(self, element)
            found._Unit.process = waits
        if name == "cloze.pipeline.runners.sizes":
            module.run_bytes = lambda total, least: 0  # a run a shard
        return module
    builtins.__import__ = slow_import
"""


def _children(process: int) -> list[int]:
    return [
        int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()
    ]
