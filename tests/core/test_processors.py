"""How many cores a process may use: pinned ones, and those of a quota."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloze.core import processes

ASK = [sys.executable, "-c", "from cloze.core import processes; print(processes.available_cpus())"]
CPU_GROUP = Path("/sys/fs/cgroup/cpu/cloze-test")


def asked(join: Path | None = None) -> tuple[int, ...]:
    """What a process of its own says, as a member of the control group `join`."""
    enter = (lambda: (join / "cgroup.procs").write_text(str(os.getpid()))) if join else None
    output = subprocess.run(
        ASK, capture_output=True, text=True, check=True, preexec_fn=enter
    ).stdout
    return tuple(int(number) for number in output.strip("()\n").split(",") if number)


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group of CPU time, of the first version."""
    try:
        CPU_GROUP.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    yield CPU_GROUP
    CPU_GROUP.rmdir()


def test_a_pinned_process_has_the_cores_it_is_pinned_to() -> None:
    cores = os.sched_getaffinity(0)
    last = max(cores)
    os.sched_setaffinity(0, {last})
    try:
        assert asked() == (last,)
    finally:
        os.sched_setaffinity(0, cores)


@pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="a quota below one core equals one core"
)
def test_a_quota_of_a_real_control_group_counts(group: Path) -> None:
    (group / "cpu.cfs_quota_us").write_text("150000")
    assert len(asked(group)) == 1
    (group / "cpu.cfs_quota_us").write_text("-1")
    assert asked(group) == processes.available_cpus()


@pytest.mark.parametrize(
    ("group", "quotas", "cores"),
    [
        ("/", {".": "max 100000"}, 8),
        ("/", {".": "300000 100000"}, 3),
        ("/pod/container", {"pod": "200000 100000", "pod/container": "max 100000"}, 2),
        ("/pod/container", {"pod": "600000 100000", "pod/container": "450000 100000"}, 4),
        ("/pod", {"pod": "20000 100000"}, 1),
        ("/pod", {"pod": "900000 100000"}, 8),
        ("/pod", {"other": "100000 100000"}, 8),
    ],
)
def test_the_smallest_quota_above_a_process_counts(
    group: str, quotas: dict[str, str], cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, groups = tmp_path / "own", tmp_path / "groups"
    own.write_text(f"0::{group}\n")
    for name, quota in quotas.items():
        (groups / name).mkdir(parents=True, exist_ok=True)
        (groups / name / "cpu.max").write_text(f"{quota}\n")
    monkeypatch.setattr(processes, "GROUPS", groups)
    monkeypatch.setattr(processes, "_OWN_GROUPS", own)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert processes.available_cpus() == tuple(range(cores))
