"""A disk that fills up under a training: a sentence, the older checkpoint intact, and the same end
once there is room.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

import pytest

from cloze.core.artifacts import checkpoint_files, checkpoints
from cloze.core.errors import ClozeError
from cloze.model.train.plan import micro_batch
from tests import warm
from tests.faults.disks import Disk, fill
from tests.flows.test_cli import cloze
from tests.model.datasets import lines, write_dataset
from tests.model.train.ranks import TINY, config, digests, here, start

SETTINGS = config(steps=8, evaluate_every=8)
EVERY = {"checkpoint_every": 2, "keep_checkpoints": 2}


def test_a_full_disk_leaves_the_older_checkpoint(
    small_disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        micro_batch, "check_disk", lambda *arguments: 0
    )  # as if something else filled the disk meanwhile
    dataset = write_dataset(tmp_path / "dataset")
    straight = here(SETTINGS, dataset, tmp_path / "straight", **EVERY)
    size = sum(file.stat().st_size for file in straight.checkpoint.rglob("*") if file.is_file())
    fill(small_disk, int(1.6 * size))
    with pytest.raises(
        ClozeError,
        match=(
            r"step-00000004 could not be written \(No space left on device\); older ones are intact"
        ),
    ):
        here(SETTINGS, dataset, small_disk.path / "run", **EVERY)
    (left,) = (small_disk.path / "run" / "checkpoints").iterdir()
    checkpoint_files.verify(str(left))
    (small_disk.path / "filler").unlink()
    again = here(SETTINGS, dataset, small_disk.path / "run", **EVERY)
    assert "resuming from checkpoints/step-00000002" in again.said("note")
    assert digests(again.checkpoint) == digests(straight.checkpoint)


def test_checkpoints_that_are_there_need_no_space_twice(small_disk: Disk, tmp_path: Path) -> None:
    dataset, out = write_dataset(tmp_path / "dataset"), small_disk.path / "run"
    stopped = here(SETTINGS, dataset, out, stop_at=6, **EVERY)
    size = sum(file.stat().st_size for file in stopped.checkpoint.rglob("*") if file.is_file())
    fill(small_disk, int(1.6 * size))
    with pytest.raises(ClozeError, match=r"other has \d+kB free, 3 checkpoints take"):
        here(SETTINGS, dataset, small_disk.path / "other", **EVERY)
    assert here(SETTINGS, dataset, out, **EVERY).checkpoint.name == "step-00000008"


TWO_RANKS = """
import os
from cloze.model.train.distributed import init_distributed
from cloze.core.errors import ClozeError
from cloze.core.stages.execution import Execution

world = init_distributed(Execution(device="cpu", threads=1))

def decide():
    raise {error}

try:
    world.decide_on_rank_zero(decide)
except {kind} as found:
    if isinstance(found, ClozeError):
        print("told:", type(found).__name__, found)
"""


@pytest.mark.parametrize(
    ("error", "kind", "told"),
    [
        (
            "ClozeError('/data has 2MB free; free some space')",
            "ClozeError",
            "ClozeError /data has 2MB free; free some space",
        ),
        (
            "OSError(28, 'No space left on device', '/data/x')",
            "(OSError, ClozeError)",
            "ClozeError /data/x: No space left on device; free some space and run again",
        ),
    ],
)
def test_all_ranks_know_why_the_first_one_could_not(
    error: str, kind: str, told: str, tmp_path: Path
) -> None:
    """Whichever rank is heard first, its sentence is the cause."""
    processes = start(["-c", TWO_RANKS.format(error=error, kind=kind)], 2, tmp_path / "log")
    assert [process.wait(timeout=200) for process in processes] == [0, 0], (
        tmp_path / "log"
    ).read_text()
    ranks = 2 if error.startswith("Cloze") else 1  # the first one raises what it met
    assert (tmp_path / "log").read_text().count(f"told: {told}\n") == ranks


@pytest.mark.soak
def test_a_disk_that_fills_up_under_two_ranks_is_named_and_gone_on_after(
    small_disk: Disk, tmp_path: Path
) -> None:
    """Their logs lie on it, too, so that nothing can be written there of what went wrong."""
    dataset, out = write_dataset(tmp_path / "dataset"), small_disk.path / "run"
    sizes = [f"--set=model.{name}={value}" for name, value in TINY.items()]
    command = [
        "pretrain", "--dataset", dataset, "--model", "bert-tiny", *sizes, "--steps", "60",
        "--global-batch", "8", "--precision", "fp32",
        "--set=log_every=1", "--set=heldout_rows=8", "--checkpoint-every", "20", "--threads", "1",
        "--processes", "2", "--device", "cpu",
        "--out", out,
    ]  # fmt: skip
    process = subprocess.Popen(
        [warm.python(), "-c", warm.ENTRY, *map(str, command)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ},
    )
    deadline = time.monotonic() + 200
    while not checkpoints.complete_steps(str(out)):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    fill(small_disk, 0)
    _, told = process.communicate(timeout=120)
    assert process.returncode == 1, told
    sentence = next(line for line in told.splitlines() if line.startswith("cloze: "))
    assert str(out) in sentence
    assert "No space left on device" in sentence
    assert "free some space and run again" in sentence
    assert (out / "_logs" / "rank0.log").stat().st_size == 0
    before = cloze(*command)
    assert before.returncode == 1, before.stderr
    assert re.search(
        r"run has \d+B free, 3 checkpoints take \d+kB; free some space|No space left on device",
        before.stderr,
    )
    (small_disk.path / "filler").unlink()
    again = cloze(*command, "--json")
    assert again.returncode == 0, again.stderr
    assert [line["step"] for line in lines(out / "metrics.jsonl")] == list(range(1, 61))
