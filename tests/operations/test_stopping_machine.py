"""What happens to the machine of a training: it is asleep, its storage stalls, its clock is set
back. A real training goes on, and is stopped and continued after it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cloze.flows.run import status_file
from tests import faulty_host, warm
from tests.model.datasets import lines, write_dataset
from tests.operations.stopping import Home, Row, Terminal, until

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(900),
    pytest.mark.skipif(faulty_host.missing() is not None, reason=str(faulty_host.missing())),
]
LIMIT = 5.0  # seconds that a step may take; the usual is a minute


@dataclass(frozen=True)
class Training:
    """A training in a terminal, on a host with faults."""

    home: Home
    terminal: Terminal
    host: faulty_host.FaultyHost
    out: Path

    @property
    def step(self) -> int:
        path = self.out / "metrics.jsonl"
        return int(lines(path)[-1]["step"]) if path.exists() and path.read_text() else 0

    def record(self) -> dict[str, Any]:
        return status_file.read(self.home.runs, str(self.out))


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Training]:
    place = tmp_path_factory.mktemp("machine")
    host = faulty_host.FaultyHost(place / "host")
    home = Home(place / "home", f"sqlite:///{place}/mlflow.db")
    dataset, out = write_dataset(place / "dataset"), place / "out"
    words = (
        "pretrain", "--dataset", str(dataset), "--model", "bert-tiny", "--steps", "100000",
        "--global-batch", "8", "--precision", "fp32", "--device", "cpu", "--threads", "1",
        "--set", "warmup_steps=1", "--set", "log_every=1", "--checkpoint-every", "100",
        "--set", f"run.hang_seconds={LIMIT}", "--out", str(out),
    )  # fmt: skip
    environment = {**home.environment(), **host.environment}
    del environment["MLFLOW_TRACKING_URI"]
    with Terminal(words, home.directory, environment, warm.ENTRY) as terminal:
        found = Training(home, terminal, host, out)
        until(lambda: found.step > 10 or terminal.process.poll() is not None)
        assert terminal.process.poll() is None, terminal.said
        yield found


def goes_on(training: Training, way: str) -> None:
    before = training.step
    ended = training.terminal.process.poll
    until(lambda: training.step > before + 10 or ended() is not None)
    assert ended() is None, training.terminal.said[-2000:]
    state = str(training.record()["state"])
    Row(way, None, "–", state, "–", "–", "goes on by itself").keep()
    assert state == "running"


@pytest.mark.parametrize("who", ["all", "the head of a run", "a rank of a run"])
def test_a_machine_that_is_asleep(training: Training, who: str) -> None:
    """All its processes stand still for longer than a step may take, or one of them."""
    head, *ranks = training.terminal.family()
    asleep = {"all": [head, *ranks], "the head of a run": [head], "a rank of a run": ranks}[who]
    for process in asleep:
        process.suspend()
    time.sleep(LIMIT + 8)
    for process in reversed(asleep):
        process.resume()
    goes_on(training, f"{'machine' if who == 'all' else who} asleep, without Prefect")


def test_storage_that_stalls(training: Training) -> None:
    """Who writes waits, for longer than a step may take."""
    training.host.has(stalls=True)
    time.sleep(4 * LIMIT)
    training.host.has()
    goes_on(training, "storage stalls")


def test_a_clock_that_is_set_back(training: Training) -> None:
    training.host.has(seconds_ahead=-7200)
    goes_on(training, "clock set back two hours")
    seconds = training.terminal.stop(lambda: training.terminal.type("\x03"), processes=2)
    record = training.record()
    assert training.terminal.process.returncode == 4, training.terminal.said
    (checkpoint, *_) = sorted((training.out / "checkpoints").iterdir(), reverse=True)
    step = int(checkpoint.name.partition("-")[2])
    assert f"stopped after step {step}" in str(record["error"]), record["error"]
    assert json.loads((checkpoint / "checkpoint.json").read_text())
    shown = training.home.cloze("status", f"{training.out}/")
    assert "cancelled" in shown.stdout
    assert "-" not in shown.stdout.partition("took")[2].partition("s")[0]
    Row(
        "Ctrl-C after the clock was set back", seconds, "–", "cancelled", "–", f"step {step}",
        "same command",
    ).keep()  # fmt: skip
