"""How all of these benchmarks measure: every case in a fresh process, the cases of a round one
after the other, medians over rounds.

Wall time says what a user waits; CPU time (user and system, of the process and all that it started)
hardly changes when other work is on the machine, so ratios are taken of both. What it costs to
start falls out where two sizes of one input are measured: see `slope`. Peak memory is the kernel's
own figure for the largest process of a case; what of it is neither a mapped file nor shared is
sampled.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

REPOSITORY = Path(__file__).resolve().parents[2]
MEGABYTE = 1e6
POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One run of one case.

    Attributes:
        wall, cpu: seconds of what the case timed; of the whole process where it timed nothing
            itself.
        work: what was done, in the case's own unit.
        peak: MB (1e6 bytes) that the largest process held, mapped files included.
        anonymous: MB of the largest process that are its own: no mapped files; sampled.
        more: whatever else the case says.
    """

    wall: float
    cpu: float
    work: float = 0.0
    peak: float = 0.0
    anonymous: float = 0.0
    more: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`module:function` with its arguments, run in a process of its own; or a command of another
    program's.
    """

    function: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    cores: int | None = 1  # cores that the process and its children may use; None: all
    rounds: int | None = None  # fewer than the others have, for what takes minutes


class Clock:
    """Seconds and CPU seconds between entering and leaving. Children count from when they have
    ended.
    """

    wall = cpu = 0.0

    def __enter__(self) -> Clock:
        self._wall, self._cpu = time.perf_counter(), _cpu_seconds()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall, self.cpu = time.perf_counter() - self._wall, _cpu_seconds() - self._cpu

    def sample(self, work: float, **more: Any) -> dict[str, Any]:
        """What a case's function returns."""
        return {"wall": self.wall, "cpu": self.cpu, "work": work, "more": more}


def _cpu_seconds() -> float:
    found = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in found)


def run(case: Case) -> Sample:
    """Run one case to its end.

    Raises:
        RuntimeError: it failed; with the end of what it said.
    """
    command = list(case.command) or [
        sys.executable,
        "-m",
        "benchmarks.data.child",
        case.function,
        json.dumps(dict(case.arguments)),
    ]
    environment = {
        **os.environ,
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "1",
        **case.environment,
    }
    allowed = sorted(os.sched_getaffinity(0))
    chosen = set(allowed if case.cores is None else allowed[-case.cores :])
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        started = time.perf_counter()
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=errors,
            env=environment,
            cwd=REPOSITORY,
            preexec_fn=lambda: os.sched_setaffinity(0, chosen),
        )
        with _sampled(process.pid) as memory:
            _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        errors.seek(0)
        said, complaint = (
            output.read().decode(errors="replace"),
            errors.read().decode(errors="replace"),
        )
    if process.returncode:
        raise RuntimeError(
            f"{case.function or ' '.join(command[:3])} ended with {process.returncode}: "
            f"{complaint[-2000:]}"
        )
    last = said.strip().rpartition("\n")[2]
    measured = (
        json.loads(last)
        if last.startswith("{")
        else {"wall": wall, "cpu": usage.ru_utime + usage.ru_stime}
    )
    return Sample(**measured, peak=memory.peak / MEGABYTE, anonymous=memory.own / MEGABYTE)


@dataclass(slots=True)
class _Memory:
    """Bytes of the largest process of a tree: at its peak, and of what is no mapped file."""

    peak: int = 0
    own: int = 0


@contextmanager
def _sampled(pid: int) -> Iterator[_Memory]:
    """The memory of the tree under `pid`, looked at until the context is left.

    The peak is each process's own high-water mark. `ru_maxrss` would count what the process that
    started it held.
    """
    found, ended = _Memory(), threading.Event()

    def sample() -> None:
        try:
            root = psutil.Process(pid)
        except psutil.Error:
            return
        while not ended.wait(POLL_SECONDS):
            try:
                tree = [root, *root.children(recursive=True)]
            except psutil.Error:
                return
            found.own = max(found.own, *map(_own_bytes, tree))
            found.peak = max(found.peak, *map(_high_water, tree))

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


def _own_bytes(process: psutil.Process) -> int:
    try:
        memory = process.memory_info()
    except psutil.Error:
        return 0
    return int(memory.rss) - int(memory.shared)


def _high_water(process: psutil.Process) -> int:
    try:
        lines = (
            Path(f"/proc/{process.pid}/status")
            .read_text(encoding="ascii", errors="replace")
            .splitlines()
        )
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


def alternate(
    cases: Mapping[str, Case], rounds: int, say: Callable[[str], None] | None = None
) -> dict[str, list[Sample]]:
    """Run all cases in turn, `rounds` times."""
    samples: dict[str, list[Sample]] = {name: [] for name in cases}
    for number in range(rounds):
        for name, case in cases.items():
            if case.rounds is not None and number >= case.rounds:
                continue
            sample = run(case)
            samples[name].append(sample)
            (say or _say)(
                f"round {number + 1}/{rounds}  {name}: {sample.wall:.2f} s, CPU {sample.cpu:.2f} s"
            )
    return samples


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")


@dataclass(frozen=True, slots=True)
class Rate:
    """Work a second."""

    wall: float
    cpu: float

    def over(self, other: Rate) -> Rate:
        return Rate(self.wall / other.wall, self.cpu / other.cpu)


def whole(sample: Sample) -> Rate:
    """Work a second with all that the start costs."""
    return Rate(sample.work / sample.wall, sample.work / sample.cpu)


def slope(small: Sample, large: Sample) -> Rate:
    """Work a second between two sizes of one input: what each more of it costs, whatever the start
    costs.

    Under load a difference of wall times may come out at nothing or less; it is then no number
    (nan).
    """
    work = large.work - small.work
    times = (large.wall - small.wall, large.cpu - small.cpu)
    return Rate(*(work / seconds if seconds > 0 else float("nan") for seconds in times))


def slopes(small: Sequence[Sample], large: Sequence[Sample]) -> list[Rate]:
    """The slope of each round; where one of the two had fewer rounds, its last stands for those it
    lacks.
    """
    rounds = max(len(small), len(large))
    return [
        slope(small[min(n, len(small) - 1)], large[min(n, len(large) - 1)]) for n in range(rounds)
    ]


def median_rate(rates: Sequence[Rate]) -> Rate:
    return Rate(_median([rate.wall for rate in rates]), _median([rate.cpu for rate in rates]))


def median_ratio(ours: Sequence[Rate], theirs: Sequence[Rate]) -> Rate:
    """The median over the rounds of the ratio in each: what drifts from round to round
    falls out.
    """
    rounds = max(len(ours), len(theirs))
    return median_rate(
        [ours[min(n, len(ours) - 1)].over(theirs[min(n, len(theirs) - 1)]) for n in range(rounds)]
    )


def _median(values: Sequence[float]) -> float:
    numbers = [value for value in values if value == value]
    return statistics.median(numbers) if numbers else float("nan")


def machine() -> str:
    """The machine in a line, and how loaded it is: above the number of its cores wall times mean
    little.
    """
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(
            line.partition(":")[2].strip() for line in lines if line.startswith("model name")
        )
    except (OSError, StopIteration):
        pass
    memory = psutil.virtual_memory().total / 2**30
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    return (
        f"{name}, {cores} cores, {memory:.0f} GiB; Python {platform.python_version()}; load "
        f"{load:.1f} at the beginning"
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns are as wide as they must be."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in (head, *rows)
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)
