"""`cloze pretrain` asked to stop, and `cloze resume`: exit code 4, then the same end as a run that
was never stopped.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from cloze.model.checkpoint import load
from tests import warm
from tests.flows.test_cli import cloze
from tests.model.datasets import write_dataset

SIZES = (
    "hidden_size=32",
    "num_attention_heads=2",
    "intermediate_size=48",
    "max_position_embeddings=40",
)
ARGUMENTS = [
    "--model",
    "bert-tiny",
    *(f"--set=model.{size}" for size in SIZES),
    "--steps",
    "60",
    "--global-batch",
    "8",
    "--precision",
    "fp32",
    "--checkpoint-every",
    "10",
]


def test_stopped_then_resumed_is_as_never_stopped(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "dataset")
    straight = cloze("pretrain", "--dataset", dataset, *ARGUMENTS, "--out", tmp_path / "straight")
    assert straight.returncode == 0, straight.stderr
    command = [warm.python(), "-c", warm.ENTRY, "pretrain", "--dataset", str(dataset), *ARGUMENTS]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path / "stopped")],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ},
    )
    deadline = time.monotonic() + 120
    while not list((tmp_path / "stopped" / "checkpoints").glob("step-*/checkpoint.json")):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 4, told
    assert "is saved: run again to continue" in told
    resumed = cloze("resume", tmp_path / "stopped", "--json")
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.json["steps"] == 60
    states = [load(str(tmp_path / name)).state for name in ("straight", "stopped")]
    assert all(value.equal(states[1][name]) for name, value in states[0].items())
    assert cloze("resume", tmp_path / "stopped", "--json").json["cached"] is True
