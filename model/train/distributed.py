"""The ranks of a training run, and the few collectives that the engines do not run.

Control messages (counts, stop requests, evaluation sums) use gloo on the CPU even if gradients
use NCCL. They thus never wait for the device.
"""

from __future__ import annotations

import atexit
import datetime
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import distributed

from cloze.core import errors, processes
from cloze.core.artifacts.fence import TOKEN, Fence
from cloze.core.errors import UsageError, error_class, error_event
from cloze.core.processes import HeartbeatWriter, RankPhase
from cloze.core.stages.execution import DeviceOptions
from cloze.model.train.precision import resolve_device
from cloze.model.train.throughput import TimeBreakdown

RELEASE_SECONDS = 0.1  # for gloo's threads to release the last message
# A rank that is silent for longer counts as dead, and all ranks end.
TIMEOUT = datetime.timedelta(minutes=10)
# Maximum time between the first and the last shard of a checkpoint.
SAVING_TIMEOUT = datetime.timedelta(hours=2)
# Interval at which rank 0 reports that it is still busy while the other ranks wait.
ALIVE_SECONDS = 60.0

K = TypeVar("K", int, str)


@dataclass(frozen=True, slots=True)
class World:
    """The ranks of a run, seen from this process.

    Attributes:
        control: gloo group of control messages; None: the default group is gloo.
        saving: gloo group of the checkpoint threads; None with one rank.
        pulse: heartbeat to the parent process.
        timeline: time breakdown of this process.
        fence: this launch's right to change the artifact.
    """

    rank: int
    size: int
    device: torch.device
    control: Any = None
    saving: Any = None
    pulse: HeartbeatWriter = field(default_factory=HeartbeatWriter)
    timeline: TimeBreakdown = field(default_factory=TimeBreakdown)
    fence: Fence = field(default_factory=Fence)

    @property
    def is_rank_zero(self) -> bool:
        """True for the rank that writes files and reports."""
        return self.rank == 0

    def all_reduce_sum(
        self, values: Sequence[int] | Sequence[float], dtype: torch.dtype = torch.int64
    ) -> list[Any]:
        """Return the sums of `values` over all ranks, exact for integers."""
        return self.all_reduce_sum_async(values, dtype)()

    def all_reduce_sum_async(
        self, values: Sequence[int] | Sequence[float], dtype: torch.dtype = torch.int64
    ) -> Callable[[], list[Any]]:
        """Start the reduction and return a function that waits for the sums.

        All ranks must start their reductions in the same order.
        """
        # On the CPU: a sum of counts must never wait for the GPU's queue.
        tensor = torch.tensor(values, dtype=dtype)
        work = (
            distributed.all_reduce(tensor, group=self.control, async_op=True)
            if self.size > 1
            else None
        )

        def sums() -> list[Any]:
            if work is not None:
                with self.pulse.phase(RankPhase.EXCHANGE), self.timeline.section("communication"):
                    work.wait()
            return list(tensor.tolist())

        return sums

    def all_reduce_min(self, value: int) -> int:
        """Return the minimum of the ranks' values."""
        tensor = torch.tensor(value, dtype=torch.int64)
        if self.size > 1:
            distributed.all_reduce(tensor, op=distributed.ReduceOp.MIN, group=self.control)
        return int(tensor)

    def all_reduce_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum a CPU tensor over all ranks, in place."""
        if self.size > 1:
            with self.pulse.phase(RankPhase.EXCHANGE), self.timeline.section("communication"):
                distributed.all_reduce(tensor, group=self.control)
        return tensor

    def gathered(self, value: Any, group: Any = None) -> list[Any]:
        """Return the values of all ranks, by rank."""
        values = [value] * self.size
        if self.size > 1:
            distributed.all_gather_object(values, value, group=group)
        return values

    def decide_on_rank_zero(self, decide: Callable[[], int]) -> int:
        """Return on all ranks the result of `decide` on rank 0.

        `decide` may take any time: rank 0 reports once a minute that it is still busy.

        Raises:
            ClozeError: `decide` failed; all ranks raise the same class and message.
        """
        if self.size == 1:
            return decide()
        if self.is_rank_zero:
            return self._decide(decide)
        done = failed = answer = 0
        # Rank 0 joins once a minute while it is busy, or the collective would run into its timeout.
        while not done:
            done, failed, answer = self.all_reduce_sum([0, 0, 0])
        if failed:
            event = self.gathered(None, self.control)[0]
            raise error_class(event)(event["error"])
        return int(answer)

    def _decide(self, decide: Callable[[], int]) -> int:
        with ThreadPoolExecutor(1, thread_name_prefix="decide") as pool:
            future = pool.submit(decide)
            while not wait([future], timeout=ALIVE_SECONDS).done:
                self.all_reduce_sum([0, 0, 0])
        if (error := future.exception()) is not None:
            self.all_reduce_sum([1, 1, 0])
            self.gathered(error_event(error), self.control)
        else:
            self.all_reduce_sum([1, 0, future.result()])
        return future.result()


def init_distributed(execution: DeviceOptions, path: str = "") -> World:
    """Join the process group of the environment (RANK, WORLD_SIZE, MASTER_ADDR, …), or run alone.

    Args:
        path: path of the artifact, whose checkpoints are fenced by rank 0's token.

    Raises:
        UsageError: the requested device is not available.
    """
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", str(size)))
    device = resolve_device(execution.device, local_rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        # TF32: fp32 products with ten bits of mantissa, up to eight times as fast.
        torch.set_float32_matmul_precision("high")
    threads = execution.threads or max(1, len(processes.available_cpus()) // local_size)
    torch.set_num_threads(threads)
    if size > 1 and not distributed.is_initialized():
        distributed.init_process_group(rank=rank, world_size=size, **group_options(device))
        atexit.register(_leave)
    if distributed.is_initialized() and distributed.get_world_size() != size:
        raise UsageError(
            f"WORLD_SIZE ({size}) is not that of the running process group "
            f"({distributed.get_world_size()})"
        )
    control = saving = None
    # NCCL runs on the device's queue; control messages must not wait behind a step.
    if size > 1 and device.type == "cuda":
        control = distributed.new_group(backend="gloo", timeout=TIMEOUT)
    if size > 1:
        # Its own group: two threads that share one would mix the order of their collectives.
        saving = distributed.new_group(backend="gloo", timeout=SAVING_TIMEOUT)
    world = World(
        rank, size, device, control, saving, HeartbeatWriter.from_env(), TimeBreakdown(device)
    )
    # A host that joins by hand has no token.
    token = world.gathered(os.environ.get(TOKEN, ""), saving)[0]
    return replace(world, fence=Fence(path, token if path else ""))


def group_options(device: torch.device) -> dict[str, Any]:
    """Return backend, timeout and device of the default process group.

    With its device, NCCL connects at once instead of in the first collective, runs barriers on
    this device, and splits the groups that DeepSpeed adds from this one.
    """
    if device.type == "cuda":
        return {"backend": "nccl", "timeout": TIMEOUT, "device_id": device}
    return {"backend": "gloo", "timeout": TIMEOUT}


def single_process_group(device: torch.device) -> None:
    """Create a process group of this process alone, for libraries that require one.

    The store is in memory; gloo still needs a network interface.
    """
    if not distributed.is_initialized():
        store = torch._C._distributed_c10d.HashStore()
        distributed.init_process_group(store=store, rank=0, world_size=1, **group_options(device))


def _leave() -> None:
    """End the process group before the interpreter ends.

    Gloo's threads release the tensors of the last message slightly later and take the interpreter's
    lock for it. During interpreter shutdown that aborts the process ("terminate called without an
    active exception", in a quarter of short runs). DeepSpeed has groups of its own, so destroying
    the default group does not end all threads.
    """
    time.sleep(RELEASE_SECONDS)
    if distributed.is_initialized():
        distributed.destroy_process_group()


class StopRequest:
    """A request to stop by SIGTERM or SIGINT. A second SIGINT ends the process at once.

    A second SIGTERM has no effect: Slurm sends one to every process of a job, and the parent
    process sends another.
    """

    def __init__(self) -> None:
        self.requested, self._interrupted = False, -math.inf
        self._before: dict[signal.Signals, Any] = {}

    def _ask(self, number: int, frame: object) -> None:
        if number == signal.SIGINT:
            is_echo = time.monotonic() - self._interrupted < errors.ECHO_SECONDS
            self._interrupted = time.monotonic()
            if self.requested and not is_echo:
                self._restore()
                # With the former handlers back, the second one ends the process as without Cloze.
                signal.raise_signal(number)
        self.requested = True

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    @classmethod
    @contextmanager
    def installed(cls) -> Iterator[StopRequest]:
        """Catch the signals inside the block; outside the main thread none are caught."""
        request = cls()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                request._before[number] = signal.signal(number, request._ask)
        try:
            yield request
        finally:
            request._restore()


def assign_owners(sizes: Mapping[K, int], ranks: int) -> dict[K, int]:
    """Assign each tensor to a rank: the largest first, each to the least loaded rank."""
    loads, owners = [0] * ranks, dict[K, int]()
    # Ties go by name, so all ranks find the same owners without a message.
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        owners[name] = loads.index(min(loads))
        loads[owners[name]] += sizes[name]
    return owners
