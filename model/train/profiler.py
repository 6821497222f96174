"""`--profile STEPS`: what so many steps of a training are made of, as torch's profiler sees them on the first rank.

    _logs/profile/trace.json.gz   for chrome://tracing or ui.perfetto.dev
    _logs/profile/profile.html    the dearest operations, where the time goes, memory; one file, no script
    _logs/profile/profile.json    the same figures

Tracing slows training down, by a tenth as a rule, and changes nothing in it. It takes no part in any fingerprint.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from model.train.distributed import World
from model.train.metrics import memory
from model.train.timeline import OTHER, PARTS
from pipeline.core import storage
from pipeline.core.humanize import size
from pipeline.core.worker import LOGS

DIRECTORY, TRACE, PAGE, FIGURES = f"{LOGS}/profile", "trace.json.gz", "profile.html", "profile.json"
WARM = 5  # steps before: they allocate, compile, and meet the first shapes
DEAREST = 10  # operations that are told
SHAPES = 3  # of an operation, the dearest first


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operator, all its calls together.

    Attributes:
        seconds: its own, without the operators that it calls; on a GPU those of its kernels.
        share: of the seconds of all.
        shapes: of its inputs, those that took longest first.
        more: further shapes.
        allocated: bytes that it took and did not give back itself; below 0: it gave back what others took.
    """

    name: str
    seconds: float
    share: float
    calls: int
    shapes: tuple[str, ...]
    more: int
    allocated: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What was found.

    Attributes:
        first, steps: the number of the first traced step, from 1, and how many there are.
        seconds: of the wall clock.
        device: what computed.
        threads: of the first rank, on a CPU.
        processes: ranks.
        operations: the dearest.
        others: operators that are not told, and their share.
        parts: shares of the wall clock; see `model.train.timeline`.
        memory: as log lines have it.
    """

    first: int
    steps: int
    seconds: float
    device: str
    threads: int
    processes: int
    operations: tuple[Operation, ...]
    others: tuple[int, float]
    parts: Mapping[str, float]
    memory: Mapping[str, float]


class Profiler:
    """Waits until training is warm, traces, and writes. Without steps it does nothing, and on other ranks than the first."""

    def __init__(self, steps: int | None, path: str, world: World) -> None:
        """Args: path: the artifact's."""
        self._left = steps if steps is not None and world.first else 0
        self._path, self._world, self._warm = path, world, WARM
        self._running: profile | None = None
        self._first = 0
        self._before: dict[str, float] = {}

    @property
    def asked(self) -> bool:
        """Whether there is anything left to do."""
        return self._left > 0

    def stepped(self, step: int) -> str | None:
        """Step `step` (from 1) is done, with its line and all. A sentence, once there is something to look at."""
        if not self._left:
            return None
        if self._running is None:
            self._warm -= 1
            if self._warm <= 0:
                self._start(step + 1)
            return None
        self._left -= 1
        return None if self._left else self._write(step)

    def close(self, step: int) -> str | None:
        """No more steps will come, `step` was the last: write what there is."""
        if not self._left:
            return None
        self._left = 0
        if self._running is None or step < self._first:
            if self._running is not None:
                self._running.stop()
            return f"nothing was profiled: the first {WARM} steps only warm up, and training ended after step {step}"
        return self._write(step)

    def _start(self, first: int) -> None:
        activities = [ProfilerActivity.CPU]
        if self._world.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        self._first = first
        self._running = profile(activities=activities, record_shapes=True, profile_memory=True)
        self._running.start()
        self._before = self._world.timeline.seconds()

    def _write(self, step: int) -> str:
        running, self._running = self._running, None
        assert running is not None
        on_gpu = self._world.device.type == "cuda"
        if on_gpu:
            torch.cuda.synchronize(self._world.device)
        now = self._world.timeline.seconds()
        running.stop()
        seconds = now["wall"] - self._before["wall"]
        dearest, others = dearest_operations(running.key_averages(group_by_input_shape=True), on_gpu=on_gpu)
        found = Profile(
            first=self._first,
            steps=step + 1 - self._first,
            seconds=seconds,
            device=torch.cuda.get_device_name(self._world.device) if on_gpu else "cpu",
            threads=torch.get_num_threads(),
            processes=self._world.size,
            operations=tuple(dearest),
            others=others,
            parts=dict(_shares(self._before, now)),
            memory=memory(self._world.device),
        )
        directory = storage.join(self._path, DIRECTORY)
        storage.make_dirs(directory)
        storage.write_bytes(storage.join(directory, TRACE), _trace(running))
        storage.write_bytes(storage.join(directory, FIGURES), (json.dumps(asdict(found), indent=1) + "\n").encode())
        page = storage.join(directory, PAGE)
        storage.write_bytes(page, render(found).encode())
        return f"profiled {found.steps} step{'s' if found.steps > 1 else ''} from step {found.first} on: {page}"


@dataclass(slots=True)
class _Sum:
    """An operator's calls, by the shapes of its inputs."""

    seconds: float = 0.0
    calls: int = 0
    allocated: int = 0
    shapes: dict[str, float] = field(default_factory=dict)


def dearest_operations(averages: Iterable[Any], *, on_gpu: bool) -> tuple[list[Operation], tuple[int, float]]:
    """The operators that take longest, and how many others there are, with their share of the time.

    Args:
        averages: `torch.profiler`'s, grouped by input shapes.
        on_gpu: whether kernels' time counts, and not that of the host.
    """
    sums: dict[str, _Sum] = {}
    for item in averages:
        seconds = (item.self_device_time_total if on_gpu else item.self_cpu_time_total) / 1e6
        if item.is_user_annotation or (on_gpu and item.device_type != DeviceType.CPU):
            continue  # a stretch of Python; a kernel, whose operator has its time
        found = sums.setdefault(item.key, _Sum())
        found.seconds += seconds
        found.calls += item.count
        found.allocated += item.self_device_memory_usage if on_gpu else item.self_cpu_memory_usage
        shapes = _told_shapes(item.input_shapes)
        if shapes:
            found.shapes[shapes] = found.shapes.get(shapes, 0.0) + seconds
    whole = max(sum(item.seconds for item in sums.values()), 1e-12)
    names = sorted(sums, key=lambda name: -sums[name].seconds)
    dearest = [
        Operation(
            name=name,
            seconds=sums[name].seconds,
            share=sums[name].seconds / whole,
            calls=sums[name].calls,
            shapes=tuple(sorted(sums[name].shapes, key=lambda shape: -sums[name].shapes[shape])[:SHAPES]),
            more=max(0, len(sums[name].shapes) - SHAPES),
            allocated=sums[name].allocated,
        )
        for name in names[:DEAREST]
    ]
    rest = names[DEAREST:]
    return dearest, (len(rest), sum(sums[name].seconds for name in rest) / whole)


def render(found: Profile) -> str:
    """The page."""
    from pipeline.core.pages import templates_in  # templates are for those who ask for a profile

    environment = templates_in(Path(__file__).parent / "templates")
    environment.filters |= {"bytes": lambda value: f"{'−' if value < 0 else ''}{size(abs(value))}"}
    return environment.get_template("profile.html").render(found=found, trace=TRACE)


def _told_shapes(shapes: Any) -> str:
    """`[[32, 128], [], [128]]` -> 32×128, 128."""
    return ", ".join("×".join(map(str, shape)) for shape in shapes or () if shape)


def _shares(before: Mapping[str, float], now: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """Of the wall clock, the largest first."""
    found = {name: max(0.0, now[name] - before[name]) for name in PARTS}
    wall = max(now["wall"] - before["wall"], sum(found.values()), 1e-9)
    shares: dict[str, float] = {name: seconds / wall for name, seconds in found.items()}
    shares[OTHER] = max(0.0, 1.0 - sum(shares.values()))
    yield from sorted(shares.items(), key=lambda item: -item[1])


def _trace(running: profile) -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "trace.json"
        running.export_chrome_trace(str(file))
        return gzip.compress(file.read_bytes(), 6)
