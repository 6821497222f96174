"""What the processes of a node use of the machine, looked at from outside every few seconds: it costs them nothing.

    system/rank0_cpu_percent    of one core, the rank and its children together
    system/rank0_rss_gb         resident memory
    system/cpu_percent, system/memory_percent, system/disk_free_gb    of the machine
    system/gpu0_utilization_percent, system/gpu0_memory_gb            where NVIDIA's library (nvidia-ml-py) is installed

MLflow's page shows names that begin with `system/` in a place of their own; one slash more would make it another for each rank.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import psutil

SECONDS, SOON = 10.0, 1.0
GB = 1e9

log = logging.getLogger(__name__)


class Sampler:
    """A thread that samples processes until it is closed: once soon, so that short nodes have a figure, then at intervals.

    Args:
        ids: process ids by rank.
        report: gets each sample: figures by name.
        directory: on the disk whose free space counts.
    """

    def __init__(
        self, ids: Mapping[int, int], report: Callable[[Mapping[str, float]], None], directory: str, seconds: float = SECONDS
    ) -> None:
        self._ids, self._report, self._directory, self._seconds = dict(ids), report, directory, seconds
        self._before: dict[int, psutil.Process] = {}  # a process's share of a core is since it was last asked
        self._ended = threading.Event()
        self._gpus = _gpus()
        self._thread = threading.Thread(target=self._run, name="system-sampler", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it."""
        self._ended.set()
        self._thread.join(timeout=self._seconds)

    def _run(self) -> None:
        self.sample()  # the first says no share of a core: it counts from here
        try:
            wait = min(SOON, self._seconds)
            while not self._ended.wait(wait):
                self._report(self.sample())
                wait = self._seconds
        except Exception as error:  # the figures are worth less than the run
            log.warning("the machine's load is not recorded any more: %s: %s", type(error).__name__, error)

    def sample(self) -> dict[str, float]:
        """The figures of now."""
        found = {
            "system/cpu_percent": psutil.cpu_percent(),
            "system/memory_percent": psutil.virtual_memory().percent,
        }
        with suppress(OSError):
            found["system/disk_free_gb"] = psutil.disk_usage(self._directory).free / GB
        for rank, number in self._ids.items():
            with suppress(psutil.Error):
                cpu, rss = self._of_tree(number)
                found |= {f"system/rank{rank}_cpu_percent": cpu, f"system/rank{rank}_rss_gb": rss / GB}
        for number, gpu in enumerate(self._gpus):
            with suppress(Exception):
                found |= {f"system/gpu{number}_{name}": value for name, value in gpu().items()}
        return found

    def _of_tree(self, number: int) -> tuple[float, int]:
        """Percent of a core, and resident bytes, of a process and all below it."""
        top = self._before.setdefault(number, psutil.Process(number))
        cpu, rss = 0.0, 0
        for process in (top, *top.children(recursive=True)):
            with suppress(psutil.Error):
                known = self._before.setdefault(process.pid, process)
                cpu += known.cpu_percent()
                rss += known.memory_info().rss
        return cpu, rss


def _gpus() -> list[Callable[[], dict[str, float]]]:
    """What to ask of each GPU; none where NVIDIA's library is not there."""
    try:
        import pynvml  # type: ignore[import-not-found, unused-ignore]

        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(pynvml.nvmlDeviceGetCount())]
    except Exception:
        return []

    def ask(handle: Any) -> Callable[[], dict[str, float]]:
        return lambda: {
            "utilization_percent": float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu),
            "memory_gb": pynvml.nvmlDeviceGetMemoryInfo(handle).used / GB,
        }

    return [ask(handle) for handle in handles]
