"""The load of a node's processes: a busy one is seen as busy, with what it holds, and one that is
gone is left out.
"""

from __future__ import annotations

import subprocess
import sys
import time
import types

import pytest

from cloze.flows.tracking.metadata import SystemMetricsSampler

BUSY = (
    "import time\nheld = bytearray(b'x') * 200_000_000\nprint('ready', flush=True)\nwhile True: "
    "pass"
)


def test_a_busy_process_is_seen() -> None:
    process = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    seen: list[dict[str, float]] = []
    sampler = SystemMetricsSampler(
        {3: process.pid, 4: 2**22 - 1}, lambda figures: seen.append(dict(figures)), ".", seconds=0.3
    )
    try:
        deadline = time.monotonic() + 20
        while len(seen) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        sampler.close()
    assert len(seen) >= 3
    assert (
        max(figures["system/rank3_cpu_percent"] for figures in seen) > 10
    )  # whatever else the machine does
    assert 0.2 < seen[-1]["system/rank3_rss_gb"] < 0.4
    assert not [name for name in seen[0] if "rank4" in name]
    assert 0 < seen[0]["system/memory_percent"] < 100
    assert seen[0]["system/disk_free_gb"] > 0


def test_gpus_are_seen_where_nvidias_library_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a stand-in of the library, of two GPUs of which one is lost."""
    library = types.ModuleType("pynvml")

    def memory(handle: int) -> types.SimpleNamespace:
        if handle == 1:
            raise RuntimeError("GPU is lost")
        return types.SimpleNamespace(used=3 * 10**9)

    for name, answer in {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda number: number,
        "nvmlDeviceGetUtilizationRates": lambda handle: types.SimpleNamespace(gpu=40 + handle),
        "nvmlDeviceGetMemoryInfo": memory,
    }.items():
        setattr(library, name, answer)
    monkeypatch.setitem(sys.modules, "pynvml", library)
    sampler = SystemMetricsSampler({}, lambda figures: None, ".")
    try:
        found = {name: value for name, value in sampler.sample().items() if "gpu" in name}
    finally:
        sampler.close()
    assert found == {"system/gpu0_utilization_percent": 40.0, "system/gpu0_memory_gb": 3.0}
