"""The cores that this process may use: fewer than the machine has, where it is pinned to some or a container has a quota of their time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")  # where systemd, Docker and Kubernetes have them
_OWN = Path("/proc/self/cgroup")


def usable() -> tuple[int, ...]:
    """By the kernel's numbers, in order; one at least. Under a quota of Q cores' time the first Q, rounded down: more threads would be held up."""
    try:
        cores = sorted(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        cores = list(range(os.cpu_count() or 1))
    return tuple(cores[: max(1, int(min([len(cores), *_quotas()])))])


def _quotas() -> Iterator[float]:
    """What each control group of this process, and of those above it, may take of a second, in cores' seconds."""
    try:
        lines = _OWN.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = GROUPS / "cpu" if controllers else GROUPS
        inside = root / group.lstrip("/")
        for place in (inside, *inside.parents):
            if not place.is_relative_to(root):
                break
            quota, period = _version_1(place) if controllers else _version_2(place)
            if quota > 0 and period > 0:
                yield quota / period


def _version_1(place: Path) -> tuple[int, int]:
    """Microseconds, and of how many; (-1, 0) without a quota."""
    try:
        return int((place / "cpu.cfs_quota_us").read_text()), int((place / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return -1, 0


def _version_2(place: Path) -> tuple[int, int]:
    try:
        quota, period = (place / "cpu.max").read_text().split()
        return int(quota), int(period)
    except (OSError, ValueError):  # no such file, or "max 100000"
        return -1, 0
