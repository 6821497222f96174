"""BERT-large's state, 4 GB: killed in a save, stopped by a signal, and gone on with, to the bytes
of a training that nobody disturbs.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from cloze.core.artifacts import checkpoint_files, checkpoints
from cloze.model.families.registry import model_config
from tests import warm
from tests.model.datasets import write_dataset
from tests.model.train.ranks import config, digests, job, worker

STEPS, MEMORY, DISK = 4, 14e9, 20e9


def _ended(process: subprocess.Popen[bytes], log: Path, code: int) -> None:
    assert process.wait(timeout=900) == code, log.read_text()[-3000:]


@pytest.mark.soak
@pytest.mark.timeout(3000)
def test_four_gigabytes_survive_a_kill_in_the_save_and_a_signal(tmp_path: Path) -> None:
    if psutil.virtual_memory().available < MEMORY or shutil.disk_usage(tmp_path).free < DISK:
        pytest.skip(f"needs {MEMORY / 1e9:.0f} GB of memory and {DISK / 1e9:.0f} GB of disk")
    dataset = write_dataset(tmp_path / "dataset", vocab_size=30522, length=16, heldout=2)
    settings = config(steps=STEPS, global_batch=2, learning_rate=1e-5, heldout_rows=0).model_copy(
        update={"model": model_config("bert-large", vocab_size=30522)}
    )
    execution: dict[str, Any] = {"device": "cpu", "checkpoint_every": 1, "keep_checkpoints": 1}
    (straight,), log = worker(job(settings, dataset, tmp_path / "straight", **execution))
    _ended(straight, log, 0)
    (expected,) = checkpoints.complete_steps(str(tmp_path / "straight"))
    found = digests(Path(expected))
    assert sum(path.stat().st_size for path in Path(expected).rglob("*") if path.is_file()) > 4e9
    shutil.rmtree(expected)

    disturbed, out = (
        job(settings, dataset, tmp_path / "disturbed", **execution),
        tmp_path / "disturbed",
    )
    second = out / "checkpoints" / "step-00000002"
    (process,), log = worker(disturbed)
    while (
        not second.exists()
        or sum(path.stat().st_size for path in second.rglob("*") if path.is_file()) < 1e9
    ):
        assert process.poll() is None, log.read_text()[-3000:]
        time.sleep(0.01)
    warm.kill(process)
    _ended(process, log, -signal.SIGKILL)
    assert not (second / "checkpoint.json").exists(), "the kill came too late"
    assert [checkpoints.parse_step(left) for left in checkpoints.complete_steps(str(out))] == [1]

    (process,), log = worker(disturbed)
    while not (second / "checkpoint.json").exists():
        assert process.poll() is None, log.read_text()[-3000:]
        time.sleep(0.05)
    began = time.monotonic()
    process.terminate()
    _ended(process, log, 4)
    print(f"stopped with a checkpoint after {time.monotonic() - began:.1f} s")
    (stopped,) = checkpoints.complete_steps(str(out))
    assert 2 <= checkpoints.parse_step(stopped) < STEPS
    checkpoint_files.verify(stopped)

    (process,), log = worker(disturbed)
    _ended(process, log, 0)
    (last,) = checkpoints.complete_steps(str(out))
    assert digests(Path(last)) == found
