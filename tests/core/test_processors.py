"""How many cores and how much memory a process may use: those of its control groups, if less."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloze.core import processes
from cloze.model import hardware

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


GB = 1 << 30
UNLIMITED = 9223372036854771712  # as version 1 says it


def in_group(
    monkeypatch: pytest.MonkeyPatch, directory: Path, line: str, files: dict[str, object]
) -> None:
    """Make this process a member of control groups with these files, on a machine of 64 GB."""
    own, groups = directory / "own", directory / "groups"
    own.write_text(f"{line}\n")
    for name, content in files.items():
        (groups / name).parent.mkdir(parents=True, exist_ok=True)
        (groups / name).write_text(f"{content}\n")
    monkeypatch.setattr(processes, "GROUPS", groups)
    monkeypatch.setattr(processes, "_OWN_GROUPS", own)
    sizes = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 64 * GB // 4096}
    monkeypatch.setattr(os, "sysconf", lambda name: sizes[name])


V2 = {"memory.current": 3 * GB, "memory.stat": f"anon {GB}\ninactive_file {2 * GB}"}
V1 = {
    "memory.usage_in_bytes": 3 * GB,
    "memory.stat": f"inactive_file 0\ntotal_inactive_file {2 * GB}",
}


@pytest.mark.parametrize(
    ("line", "groups", "limit", "free"),
    [
        ("0::/", {".": {**V2, "memory.max": 8 * GB}}, 8, 7),
        ("0::/", {".": {**V2, "memory.max": "max"}}, 64, 50),
        ("0::/job/step", {"job": {**V2, "memory.max": 8 * GB}}, 8, 7),
        (
            "0::/job/step",
            {
                "job": {**V2, "memory.max": 9 * GB},
                "job/step": {**V2, "memory.current": 6 * GB, "memory.max": 6 * GB},
            },
            6,
            2,
        ),
        ("0::/job", {"other": {**V2, "memory.max": 8 * GB}}, 64, 50),
        ("4:memory:/pod", {"memory/pod": {**V1, "memory.limit_in_bytes": 8 * GB}}, 8, 7),
        ("4:memory:/pod", {"memory": {**V1, "memory.limit_in_bytes": 8 * GB}}, 8, 7),
        ("4:memory:/pod", {"memory/pod": {**V1, "memory.limit_in_bytes": UNLIMITED}}, 64, 50),
        ("4:cpu:/pod", {"cpu/pod": {**V1, "memory.limit_in_bytes": 8 * GB}}, 64, 50),
    ],
)
def test_the_least_memory_of_the_groups_above_a_process_counts(
    line: str,
    groups: dict[str, dict[str, object]],
    limit: int,
    free: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 64 GB, 50 are available; files that the kernel drops at need are no use of memory."""
    files = {f"{group}/{name}": value for group, of in groups.items() for name, value in of.items()}
    in_group(monkeypatch, tmp_path, line, files)
    assert processes.memory_limit() == limit * GB
    assert hardware.this_cpu(4).memory == limit * GB
    assert processes.free_memory(50 * GB) == free * GB


def test_kills_are_counted_in_the_group_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_group(monkeypatch, tmp_path, "0::/job/step", {"job/step/memory.events": "oom_kill 3"})
    watch = processes.MemoryWatch()
    assert not watch.short()
    (tmp_path / "groups/job/step/memory.events").write_text("low 0\noom_kill 4\n")
    assert watch.short()
