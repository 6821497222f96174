"""Stages as processes: progress and outcome come back, faults become sentences, and nobody is left
behind.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import resource
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from cloze.core.errors import ClozeError, DataError, StoppedError, TimeLimitError, UsageError
from cloze.core.stages.execute import BuildResult, execute
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import NULL_REPORTER, Reporter
from cloze.flows.launch import coordinator
from cloze.flows.machine.retry_policy import RetryPolicy
from tests.checkout import import_path
from tests.conftest import REPOSITORY
from tests.flows.toy import STAGE, ToyConfig


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", import_path(REPOSITORY))


def run(
    out: Path,
    processes: int = 1,
    report: Reporter = NULL_REPORTER,
    grace: float = 25.0,
    minutes: float | None = None,
    restarts: int = 0,
    **config: Any,
) -> BuildResult:
    stage = dataclasses.replace(
        STAGE, run=coordinator.run_in_worker_processes(STAGE, "tests.flows.toy:STAGE")
    )
    execution = Execution(
        processes=processes, grace_seconds=grace, timeout_minutes=minutes, restarts=restarts
    )
    return execute(stage, ToyConfig(**config), {}, str(out), execution=execution, report=report)


@pytest.mark.parametrize(
    ("launcher", "field", "value", "owner"),
    [
        ("local", "slurm_options", ("--partition=gpu",), "slurm"),
        ("local", "hostfile", "hosts", "ssh"),
        ("slurm", "min_nodes", 1, "ssh"),
        ("kubernetes", "min_nodes", 1, "ssh"),
        ("srun", "kubernetes_options", ("image=x",), "kubernetes"),
        ("slurm", "ssh_options", ("Port=2222",), "ssh"),
    ],
)
def test_an_option_of_another_launcher_is_refused(
    launcher: str, field: str, value: Any, owner: str, tmp_path: Path
) -> None:
    stage = dataclasses.replace(
        STAGE, run=coordinator.run_in_worker_processes(STAGE, "tests.flows.toy:STAGE")
    )
    execution = Execution.model_validate({"launcher": launcher, field: value})
    with pytest.raises(
        UsageError, match=rf"{field} \(.*\) is for --launcher {owner}, not {launcher}"
    ):
        execute(stage, ToyConfig(), {}, str(tmp_path / "out"), execution=execution)


class Listener(Reporter):
    """Keeps what it is reported; `fault` is raised at every report."""

    def __init__(self, fault: BaseException | None = None) -> None:
        self.fault = fault
        self.events: list[tuple[Any, ...]] = []

    def _take(self, *event: Any) -> None:
        self.events.append(event)
        if self.fault is not None:
            raise self.fault

    def build_started(self, build_id: str) -> None:
        self._take("begin", build_id)

    def progress(
        self, done: float, total: float | None, unit: str, figures: Mapping[str, Any]
    ) -> None:
        self._take("progress", done, total, unit)

    def metrics(self, values: Mapping[str, Any]) -> None:
        self._take("metrics", values["step"], values["time"])


def living(out: Path) -> list[int]:
    return [
        pid for pid in (int(p.read_text()) for p in out.glob("_pid-*")) if psutil.pid_exists(pid)
    ]


def test_outcome_progress_and_counters_come_back(tmp_path: Path) -> None:
    listener = Listener()
    result = run(tmp_path / "a", processes=2, report=listener)
    assert (result.manifest.rows, result.manifest.summary, result.manifest.counters) == (
        1,
        {"rank": 0},
        {"seen": 5},
    )
    reported = [
        event
        for step in (1, 2, 3)
        for event in (("progress", step, 3, "steps"), ("metrics", step, 1.0))
    ]
    assert listener.events == [("begin", result.manifest.build), *reported]  # rank 0's alone
    assert run(tmp_path / "a", report=(cached := Listener())).cached
    assert cached.events == []
    assert (tmp_path / "a" / "out.txt").read_text() == "2"


def test_a_rank_that_takes_long_to_end_has_done_its_work(tmp_path: Path) -> None:
    assert run(tmp_path / "a", act="linger", grace=0.5).manifest.summary == {"rank": 0}
    assert living(tmp_path / "a") == []


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
def test_ranks_keep_freed_memory_unless_the_user_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = (1 << 27) // resource.getpagesize()
    assert run(tmp_path / "a", act="allocate").manifest.counters["faults"] < 10
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=1048576")
    assert run(tmp_path / "b", act="allocate").manifest.counters["faults"] >= pages


def test_chatter_goes_to_the_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run(tmp_path / "a", act="chat")
    assert "chatter" in (tmp_path / "a" / "_logs" / "rank0.log").read_text()
    assert "chatter" not in capfd.readouterr().out
    assert [entry.path for entry in run(tmp_path / "a", act="chat").manifest.files] == ["out.txt"]


def test_a_users_fault_keeps_its_kind_and_ends_the_peers(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="shard 3 is cut short"):
        run(tmp_path / "a", processes=2, act="fail", rank=1)
    assert living(tmp_path / "a") == []


def test_a_crash_names_the_log(tmp_path: Path) -> None:
    with pytest.raises(ClozeError, match=r"ZeroDivisionError: in a library \(log: .*_logs\)"):
        run(tmp_path / "a", act="crash")
    assert "Traceback" in (tmp_path / "a" / "_logs" / "rank0.log").read_text()


def test_a_killed_rank_is_named_and_its_peer_does_not_hang(tmp_path: Path) -> None:
    """Its peer's own error, that somebody is gone, is not what is reported."""
    with pytest.raises(
        ClozeError, match=r"^toy rank 1 was killed \(SIGKILL.*\); its output is in .*rank1.log$"
    ):
        run(tmp_path / "a", processes=2, act="die", rank=1)
    assert living(tmp_path / "a") == []


def test_the_killed_process_of_a_stage_with_one_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ClozeError, match=r"^toy was killed \(SIGKILL.*\); its output is in .*rank0.log$"
    ):
        run(tmp_path / "a", act="die")


def test_a_rank_that_hangs_after_its_error_is_ended(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="shard 3 is cut short"):
        run(tmp_path / "a", processes=2, act="fail and hang", rank=1)
    assert living(tmp_path / "a") == []


def test_a_fault_of_the_parent_is_no_stop(tmp_path: Path) -> None:
    """The ranks end as those that were stopped do, but nobody asked for it."""
    with pytest.raises(json.JSONDecodeError):
        run(tmp_path / "a", processes=2, act="garble")
    assert living(tmp_path / "a") == []


def test_a_fault_in_reporting_is_told_once_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    listener = Listener(OSError("the disk is full"))
    assert not run(tmp_path / "a", report=listener).cached
    assert len(listener.events) == 7  # each is tried
    assert [record.message for record in caplog.records] == [
        f"reporting ({kind}) failed, the stage continues: OSError: the disk is full"
        for kind in ("build_started", "progress", "metrics")
    ]


@pytest.mark.parametrize(("grace", "error"), [(0.5, KeyboardInterrupt), (25.0, StoppedError)])
def test_a_stop_waits_for_as_long_as_it_is_told(
    tmp_path: Path, grace: float, error: type[BaseException]
) -> None:
    class Interrupting(Reporter):
        def progress(
            self, done: float, total: float | None, unit: str, figures: Mapping[str, Any]
        ) -> None:
            raise KeyboardInterrupt

    with pytest.raises(error):
        run(tmp_path / "a", report=Interrupting(), grace=grace, act="slow")
    assert living(tmp_path / "a") == []


SCRIPT = """
    import sys
    from pathlib import Path
    from tests.flows.launch.test_local import run
    import signal
    from cloze.flows.cli import _interrupt
    signal.signal(signal.SIGTERM, _interrupt)
    from cloze.core.errors import StoppedError
    try:
        run(Path(sys.argv[1]), processes=2, act="hang")
    except StoppedError as error:
        print(error)
        sys.exit(4)
"""


def start_hanging(out: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), str(out)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    )
    deadline = time.monotonic() + 30
    while len(list(out.glob("_pid-*"))) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.3)  # until their handlers stand
    return process


class Stopping(Reporter):
    """Asks the stage to end as soon as it tells of itself."""

    def __init__(self) -> None:
        self.asked = False

    def progress(
        self, done: float, total: float | None, unit: str, figures: Mapping[str, Any]
    ) -> None:
        self.asked = True

    def stop_requested(self) -> bool:
        return self.asked


def test_a_run_that_is_asked_to_end_stops_its_ranks_from_any_thread(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool, pytest.raises(StoppedError, match="step 7"):
        pool.submit(run, tmp_path / "a", processes=2, report=Stopping(), act="slow").result(
            timeout=60
        )
    assert living(tmp_path / "a") == []


def test_a_stage_that_has_had_its_time_is_stopped_and_has_failed(tmp_path: Path) -> None:
    with pytest.raises(ClozeError, match=r"longer than timeout_minutes \(0\.05\)") as reported:
        run(tmp_path / "a", processes=2, grace=1.0, minutes=0.05, act="deaf")
    assert reported.value.exit_code == 1
    assert not RetryPolicy(Execution(retries=2)).should_retry(reported.value)
    assert living(tmp_path / "a") == []


def test_a_restart_does_not_extend_the_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "FIRST_SECONDS", 5.0)
    with pytest.raises(TimeLimitError, match="longer than timeout_minutes"):
        run(tmp_path / "a", restarts=1, minutes=0.08, act="die once")


def test_sigterm_is_passed_on_and_becomes_stopped(tmp_path: Path) -> None:
    process = start_hanging(tmp_path / "a")
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=30)
    assert (process.returncode, "checkpoint saved" in output) == (StoppedError.exit_code, True)
    assert living(tmp_path / "a") == []


def test_ranks_die_with_a_killed_parent(tmp_path: Path) -> None:
    process = start_hanging(tmp_path / "a")
    ranks = living(tmp_path / "a")
    assert len(ranks) == 2
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    deadline = time.monotonic() + 5
    while living(tmp_path / "a") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert living(tmp_path / "a") == []
