"""A run in a terminal of its own, the ways to stop it, and the table of what came of them.

    python -m tests.operations.stopping    write runs/stopping.md from what the tests have measured

Each test of a row of docs/how-to/incidents.md, "Ways to stop", leaves a file in runs/stopping.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from cloze.core.artifacts import artifact
from cloze.flows.run import status_file
from cloze.flows.tracking import spool_sender
from cloze.flows.tracking.mlflow_writer import MlflowWriter
from cloze.flows.tracking.spool import DIRECTORY
from cloze.flows.tracking.spool_sender import SpoolSender
from cloze.flows.tracking.spool_state import connect
from tests.checkout import import_path
from tests.conftest import REPOSITORY

MEASURED = REPOSITORY / "runs" / "stopping"
TABLE = REPOSITORY / "runs" / "stopping.md"
HEADINGS = (
    "what is done", "seconds", "Prefect", "`cloze status`", "MLflow", "checkpoint", "afterwards",
    "test",
)  # fmt: skip
PATIENCE = 300.0  # seconds: the machine may have other work
PROGRAM = "from tests.operations import stopping; stopping.program()"


@dataclass(frozen=True, slots=True)
class Row:
    """What came of a stop. Attributes: seconds: until it had ended; none: it went on."""

    done: str
    seconds: float | None
    prefect: str
    status: str
    mlflow: str
    checkpoint: str
    afterwards: str
    test: str = ""

    def keep(self) -> None:
        """Leave it for the table."""
        test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
        MEASURED.mkdir(parents=True, exist_ok=True)
        name = "".join(letter if letter.isalnum() else "-" for letter in test)
        content = {**asdict(self), "test": test}
        (MEASURED / f"{name}.json").write_text(json.dumps(content))


def table() -> str:
    """All rows, in Markdown, and where and when they were measured."""
    rows = [json.loads(path.read_text()) for path in MEASURED.glob("*.json")]
    rows.sort(key=lambda row: (row["prefect"] == "–", row["test"], row["done"]))
    lines = [" | ".join(HEADINGS), "|".join("---" for _ in HEADINGS)]
    for row in rows:
        seconds = "–" if row["seconds"] is None else f"{row['seconds']:.1f}"
        test = row["test"].rpartition("/")[2].partition("[")[0]
        lines.append(" | ".join({**row, "seconds": seconds, "test": f"`{test}`"}.values()))
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True,
        check=False,
    ).stdout.strip()  # fmt: skip
    table = "\n".join(f"| {line} |" for line in lines)
    return f"{table}\n\nMeasured at commits up to {commit} on {time.strftime('%Y-%m-%d')}."


def program() -> None:
    """The command line, with toy stages and without a sender of records."""
    from cloze.flows.cli import entry
    from cloze.flows.graph import stages
    from cloze.flows.launch.protocol import LAUNCHERS
    from cloze.flows.launch.slurm import cli as slurm
    from cloze.flows.tracking.spool import Spool
    from cloze.labs.kubernetes import launcher as kubernetes
    from tests.operations import training

    stages.TABLE.clear()
    stages.TABLE.update(training.TABLE)
    LAUNCHERS["here"] = "tests.flows.launch.here:LAUNCHER"
    kubernetes.POLL_SECONDS, slurm.POLL_SECONDS = 0.5, (0.1, 0.5)
    Spool.start_sender = lambda spool: None  # type: ignore[method-assign]
    entry()


def mlflow(runs: Path, tracking: str, name: str) -> str:
    """The state of a run in MLflow, once a later run's sender has sent its records."""
    sender = SpoolSender(MlflowWriter(tracking, runs / DIRECTORY))
    for spool in sorted((runs / DIRECTORY).glob("*.jsonl")):
        spool_sender._send_orphan(sender, spool)
    client = connect(tracking)
    (experiment,) = client.search_experiments(filter_string="name = 'cloze'")
    (newest, *_) = client.search_runs(
        [experiment.experiment_id],
        filter_string=f"tags.cloze.name = '{name}'",
        order_by=["start_time DESC"],
    )
    return str(newest.info.status)


class Home:
    """A directory of a test's own, with a run of toys that trains until `release`."""

    def __init__(
        self, directory: Path, tracking: str, saving: float = 1.0, every: int = 10, **run: Any
    ) -> None:
        """Args: tracking: MLflow's address; saving, every: of the training; run: the section."""
        self.directory, self.tracking, self.name = directory, tracking, f"toys{time.time_ns()}"
        self.runs, self.hold = directory / "runs", directory / "hold"
        self.more: dict[str, str] = {}  # environment variables
        directory.mkdir(parents=True, exist_ok=True)
        self.hold.touch()
        how = {"processes": 2, "grace_seconds": 20, **run}
        train = {"hold": str(self.hold), "saving": saving, "every": every}
        content = {"letters": {"launcher": "local"}, "train": train, "run": how}
        (directory / f"{self.name}.yaml").write_text(yaml.safe_dump(content))

    def environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        return {
            **kept,
            "PYTHONPATH": import_path(REPOSITORY), "TERM": "xterm",
            "DO_NOT_TRACK": "1", "CLOZE_RUNS_DIR": str(self.runs),
            "CLOZE_SLOTS_DIR": str(self.directory / "slots"),
            "MLFLOW_TRACKING_URI": self.tracking, **self.more,
        }  # fmt: skip

    def cloze(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command, to its end."""
        return subprocess.run(
            [sys.executable, "-c", PROGRAM, *arguments],
            env=self.environment(), cwd=self.directory, capture_output=True, text=True,
            check=False, timeout=PATIENCE,
        )  # fmt: skip

    def terminal(self, log: Path | None = None, hears: bool = True) -> Terminal:
        """A terminal in which `cloze run` has begun to train; see `Terminal`."""
        words = ("run", f"{self.name}.yaml", "--no-prefect")
        found = Terminal(words, self.directory, self.environment(), log=log, hears=hears)
        before = self.step
        until(lambda: self.step > before or found.process.poll() is not None)
        assert found.process.poll() is None, found.said
        return found

    @property
    def step(self) -> int:
        """The step of the checkpoint; 0: there is none."""
        for checkpoint in self.runs.glob(f"{self.name}/train-*/_checkpoint"):
            with suppress(ValueError):
                return int(checkpoint.read_text())
        return 0

    @property
    def record(self) -> dict[str, Any]:
        return status_file.read(self.runs, self.name)

    def status(self) -> str:
        """What `cloze status` says of the run and of its training."""
        record = self.record
        return f"{record['state']}, {record['nodes']['train']['state']}"

    def mlflow(self) -> str:
        return mlflow(self.runs, self.tracking, self.name)

    def resumed(self) -> int:
        """Continue the run to its end; the step from which it went on."""
        self.hold.unlink()
        done = self.cloze("resume", self.name, "--no-prefect")
        assert done.returncode == 0, done.stderr
        return self.resumed_from

    @property
    def resumed_from(self) -> int:
        """The step from which the finished training went on."""
        manifest = artifact.read_manifest(str(self.runs / self.name / "train"))
        return int(manifest.summary["resumed"])


class Terminal:
    """A process in a terminal of its own, whose foreground it is."""

    def __init__(
        self,
        words: Sequence[str],
        directory: Path,
        environment: Mapping[str, str],
        program: str = PROGRAM,
        log: Path | None = None,
        hears: bool = True,
    ) -> None:
        """Args: log: where its output goes instead; hears: of the end of the terminal."""
        self._ours, theirs = pty.openpty()
        output = theirs if log is None else os.open(log, os.O_WRONLY | os.O_CREAT)
        self.said = ""

        def lead() -> None:
            for number in (signal.SIGINT, signal.SIGQUIT):  # tests in the background ignore them
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGHUP, signal.SIG_DFL if hears else signal.SIG_IGN)
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            [sys.executable, "-c", program, *words],
            stdin=theirs, stdout=output, stderr=output, cwd=directory, env=environment,
            preexec_fn=lead,
        )  # fmt: skip
        os.close(theirs)
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with suppress(OSError):
            while content := os.read(self._ours, 4096):
                self.said += content.decode(errors="replace")

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def close(self) -> None:
        """Shut the window."""
        os.close(self._ours)

    def family(self) -> list[psutil.Process]:
        """It and its ranks."""
        with suppress(psutil.NoSuchProcess):
            first = psutil.Process(self.process.pid)
            return [first, *first.children(recursive=True)]
        return []

    def stop(self, act: Callable[[], object], processes: int = 3) -> float:
        """The seconds from an act to the end of it and its ranks, of which there are some."""
        family, began = self.family(), time.monotonic()
        assert len(family) >= processes, self.said
        act()
        self.process.wait(PATIENCE)
        _, left = psutil.wait_procs(family, timeout=10)
        assert not [process for process in left if process.status() != psutil.STATUS_ZOMBIE]
        return time.monotonic() - began

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.family():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()


def until(what: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """The first result of `what` that is true."""
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, f"{what} did not come true in {seconds:.0f} s"
        time.sleep(0.05)
    return found


if __name__ == "__main__":
    TABLE.write_text(f"{table()}\n")
    print(TABLE.read_text())
