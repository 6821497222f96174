"""The ranks of a training run: who we are, and the few collectives that are ours rather than the engine's.

Control messages (counts, requests to stop, evaluation sums) travel over gloo on the CPU even where gradients go by
NCCL, so that they never wait for the device.
"""

from __future__ import annotations

import atexit
import datetime
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import distributed

from model.train.precision import multiply_fp32, resolve_device
from model.train.timeline import Timeline
from pipeline.core import processors
from pipeline.core.errors import ClozeError, UsageError
from pipeline.core.execution import Execution
from pipeline.core.pulse import Phase, Pulse

SETTLE_SECONDS = 0.1  # for threads to let go of the last message
TIMEOUT = datetime.timedelta(minutes=10)  # a rank that is silent for longer is taken for dead, and all end
SAVING_TIMEOUT = datetime.timedelta(hours=2)  # between the first part of a checkpoint that is written and the last
ALIVE_SECONDS = 60.0  # how often the first rank says that it is still busy while the others wait for it


@dataclass(frozen=True, slots=True)
class World:
    """The ranks of a run, and which of them this process is.

    Attributes:
        rank: this process's number, from 0.
        size: how many there are.
        device: what this process computes on.
        control: the gloo group of control messages; None: the default group is one.
        saving: the gloo group of the threads that save; None where there is one rank.
        pulse: tells whoever started this process what it does.
        timeline: where this process's time goes.
    """

    rank: int
    size: int
    device: torch.device
    control: Any = None
    saving: Any = None
    pulse: Pulse = field(default_factory=Pulse)
    timeline: Timeline = field(default_factory=Timeline)

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes files and reports."""
        return self.rank == 0

    def total(self, values: Sequence[int] | Sequence[float], dtype: torch.dtype = torch.int64) -> list[Any]:
        """The sums of `values` over all ranks, exact for integers."""
        return self.begin_total(values, dtype)()

    def begin_total(self, values: Sequence[int] | Sequence[float], dtype: torch.dtype = torch.int64) -> Callable[[], list[Any]]:
        """Send `values` off; the function that is returned waits for the sums. All ranks must begin theirs in the same order."""
        tensor = torch.tensor(values, dtype=dtype)
        work = distributed.all_reduce(tensor, group=self.control, async_op=True) if self.size > 1 else None

        def sums() -> list[Any]:
            if work is not None:
                with self.pulse.within(Phase.EXCHANGE), self.timeline.part("communication"):
                    work.wait()
            return list(tensor.tolist())

        return sums

    def least(self, value: int) -> int:
        """The least of the ranks' values."""
        tensor = torch.tensor(value, dtype=torch.int64)
        if self.size > 1:
            distributed.all_reduce(tensor, op=distributed.ReduceOp.MIN, group=self.control)
        return int(tensor)

    def total_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum of a CPU tensor over all ranks."""
        if self.size > 1:
            with self.pulse.within(Phase.EXCHANGE), self.timeline.part("communication"):
                distributed.all_reduce(tensor, group=self.control)
        return tensor

    def first_decides(self, decide: Callable[[], int]) -> int:
        """What `decide` returns on the first rank, on all ranks. If it raises there, all ranks end.

        It may take as long as it likes: the first rank says once a minute that it is still busy.

        Raises:
            ClozeError: on the other ranks, when it raised on the first.
        """
        if self.size == 1:
            return decide()
        if self.first:
            return self._decide(decide)
        done = failed = answer = 0
        while not done:
            done, failed, answer = self.total([0, 0, 0])
        if failed:
            raise ClozeError("rank 0 failed; see its own message")
        return int(answer)

    def _decide(self, decide: Callable[[], int]) -> int:
        with ThreadPoolExecutor(1, thread_name_prefix="decide") as pool:
            answer = pool.submit(decide)
            while not wait([answer], timeout=ALIVE_SECONDS).done:
                self.total([0, 0, 0])
        if answer.exception() is not None:
            self.total([1, 1, 0])
        else:
            self.total([1, 0, answer.result()])
        return answer.result()


def join(execution: Execution) -> World:
    """Join the ranks that the environment names (RANK, WORLD_SIZE, MASTER_ADDR, …; alone where it names none).

    Raises:
        UsageError: the device asked for is not there.
    """
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    local_rank, local_size = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", str(size)))
    device = resolve_device(execution.device, local_rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        multiply_fp32(True, device)
    threads = execution.threads or max(1, len(processors.usable()) // local_size)
    torch.set_num_threads(threads)
    if size > 1 and not distributed.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        distributed.init_process_group(backend, rank=rank, world_size=size, timeout=TIMEOUT)
        atexit.register(_leave)
    if distributed.is_initialized() and distributed.get_world_size() != size:
        raise UsageError(f"WORLD_SIZE ({size}) is not that of the running process group ({distributed.get_world_size()})")
    control = distributed.new_group(backend="gloo", timeout=TIMEOUT) if size > 1 and device.type == "cuda" else None
    saving = distributed.new_group(backend="gloo", timeout=SAVING_TIMEOUT) if size > 1 else None
    return World(rank, size, device, control, saving, Pulse.ours(), Timeline(device))


def lone_group(device: torch.device) -> None:
    """A process group of this process alone, for a library that asks for one; nothing of ours does. Gloo wants a network interface even so."""
    if not distributed.is_initialized():
        store = torch._C._distributed_c10d.HashStore()
        backend = "nccl" if device.type == "cuda" else "gloo"
        distributed.init_process_group(backend, store=store, rank=0, world_size=1, timeout=TIMEOUT)


def _leave() -> None:
    """End the process group before the interpreter ends.

    Gloo's threads let go of the last message's tensors a moment after it is answered, for which they take the interpreter's
    lock; where the interpreter is already ending, that aborts the process ("terminate called without an active exception",
    in a quarter of short runs). DeepSpeed keeps groups of its own, so destroying the default one does not end all threads.
    """
    time.sleep(SETTLE_SECONDS)
    if distributed.is_initialized():
        distributed.destroy_process_group()


class StopRequest:
    """Whether this process was asked to stop by SIGTERM or SIGINT. A second SIGINT ends it at once.

    A second SIGTERM says nothing new: Slurm sends one to every process of a job, and whoever started this one sends it another.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[signal.Signals, Any] = {}

    def _ask(self, number: int, frame: object) -> None:
        if self.asked and number == signal.SIGINT:
            self._restore()
            signal.raise_signal(number)
        self.asked = True

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    @classmethod
    @contextmanager
    def heeded(cls) -> Iterator[StopRequest]:
        """Catch the signals inside the block. Only a main thread can; elsewhere nothing is ever asked."""
        request = cls()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                request._before[number] = signal.signal(number, request._ask)
        try:
            yield request
        finally:
            request._restore()
