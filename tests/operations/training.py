"""A toy training of several ranks that saves a checkpoint when it is stopped and goes on from it.
It waits for files to be taken away.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from cloze.core import storage
from cloze.core.config import StageConfig
from cloze.core.errors import DataError, StoppedError
from cloze.core.stages.stage import BuildContext, InputSpec, Stage, StageResult

TABLE = {
    "letters": "tests.flows.toy_run:LETTERS",
    "train": "tests.operations.training:TRAIN",
    "count": "tests.flows.toy_run:COUNT",
}


class TrainConfig(StageConfig):
    """How long it trains, and what goes wrong."""

    seed: int = 0
    hold: str | None = None
    """A file; as long as it is there, training does not come to its end."""

    fault: str | None = None
    """A file; while it is there, the training fails in a way that may pass. It is taken away by
    that.
    """

    bad: bool = False
    """Whether its input is bad."""

    leaky: bool = False
    """Whether it fails with a secret of the environment's in what it says."""

    deaf: int | None = None
    """The rank that does not hear SIGTERM."""

    every: int = 1
    """Steps from one checkpoint to the next."""

    saving: float = 0.0
    """Seconds that it saves when it is stopped."""


def agreed(file: Path, rank: int, step: int) -> int:
    """Return the step of rank 0, whose checkpoint counts; its own if rank 0 does not stop."""
    if rank == 0:
        storage.write_bytes(str(file), str(step).encode())
    deadline = time.monotonic() + 30
    while not file.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return int(file.read_text()) if file.exists() else step


def train(config: TrainConfig, build: BuildContext) -> StageResult:
    """Count steps of a tenth of a second; rank 0 keeps the number."""
    rank, checkpoint = int(os.environ["RANK"]), Path(build.path) / "_checkpoint"
    stop: list[int] = []
    signal.signal(
        signal.SIGTERM, signal.SIG_IGN if rank == config.deaf else lambda *_: stop.append(1)
    )
    first = step = int(checkpoint.read_text()) if checkpoint.exists() else 0
    if config.bad:
        raise DataError("shard 3 is cut short; make it again")
    if config.leaky:
        raise RuntimeError(f"the store refused {os.environ['PLANTED_TOKEN']}")
    if config.fault and Path(config.fault).exists():
        Path(config.fault).unlink()
        raise RuntimeError("a cable was pulled")
    while (config.hold and Path(config.hold).exists()) or rank == config.deaf:
        step += 1
        time.sleep(0.1)
        build.report.progress(step, 1000, "steps", {"loss": 1.0 / step})
        if stop:
            time.sleep(config.saving)
            step += config.every > 1 and step % config.every == 0  # no step of a periodic one
        if rank == 0 and (stop or step % config.every == 0):
            storage.write_bytes(str(checkpoint), str(step).encode())
        if stop:
            step = agreed(Path(build.path) / f"_stopped-{first}", rank, step)
            raise StoppedError(f"training was stopped after step {step}, checkpoint saved")
    if rank == 0:
        storage.write_bytes(build.file("weights.txt"), str(step).encode())
    return StageResult(rows=1, summary={"steps": step, "resumed": first})


TRAIN = Stage(
    name="train",
    version=1,
    config=TrainConfig,
    run=train,
    inputs={"letters": InputSpec(kinds=("letters",), required=True)},
    worker="tests.operations",
    parallel=True,
)
