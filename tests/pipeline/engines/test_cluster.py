"""A cluster of one job manager and two task managers, with a worker pool beside each: same bytes, though a worker is killed.

It takes three minutes, so `make soak` runs it; `make test` has Flink inside a process (test_same_bytes.py, test_flink.py).
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.request import urlopen

import psutil
import pytest

from pipeline.engines.fan_out import fan_out
from tests.pipeline.engines.conftest import Cluster
from tests.pipeline.engines.jobs import run
from tests.pipeline.engines.units import build, numbered, within, work

pytestmark = pytest.mark.soak


def workers(cluster: Cluster) -> list[psutil.Process]:
    """The processes that the two pools' nurseries have forked."""
    pools = [psutil.Process(cluster.process(f"pool-{number}")) for number in (1, 2)]
    return [worker for pool in pools for fork_server in pool.children() for worker in fork_server.children()]


def running(cluster: Cluster) -> list[str]:
    with urlopen(f"http://{cluster.master}/jobs/overview", timeout=5) as answer:
        return [job["name"] for job in json.load(answer)["jobs"] if job["state"] not in ("FINISHED", "CANCELED", "FAILED")]


def test_the_same_bytes_though_a_worker_is_killed(
    cluster: Cluster, local_run: dict[str, str], library: Path, samples: Path, tmp_path: Path
) -> None:
    killed: list[int] = []
    parts = tmp_path / "out" / "corpus" / "_scratch" / "read"

    def kill() -> None:
        """In the middle of the first step: some units are done, and some are not."""
        deadline = time.monotonic() + 200
        while time.monotonic() < deadline and not killed:
            if parts.is_dir() and any(parts.iterdir()):
                for worker in workers(cluster):
                    worker.kill()
                    killed.append(worker.pid)
                    break
            time.sleep(0.01)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    assert run(str(tmp_path / "out"), cluster.options, str(library), samples) == local_run
    assert killed
    assert workers(cluster) == []  # the pools are ready for others


def test_both_task_managers_work_and_a_stopped_stage_cancels_its_job(cluster: Cluster, tmp_path: Path) -> None:
    how = f"runner='flink', workers=2, flink_master={cluster.master!r}, worker_pool={cluster.pool!r}"
    script = (
        "from pathlib import Path; from tests.pipeline.engines.units import *; from pipeline.engines.fan_out import fan_out\n"
        f"place = Path({str(tmp_path)!r})\n"
        f"begun = build(place / 'out', {how})\n"
        "with begun.cleanup:\n"
        "    fan_out(begun, 'work', numbered(place / 'notes', 4, seconds=60), work, unit_name='units')\n"
    )
    stage = subprocess.Popen([sys.executable, "-c", script], cwd=Path(__file__).parents[3], stderr=subprocess.DEVNULL)
    try:
        notes = tmp_path / "notes"
        assert within(100, lambda: len(list(notes.glob("began-*"))) >= 2)
        nurseries = {psutil.Process(int(note.read_text())).ppid() for note in notes.glob("began-*")}
        assert len(nurseries) == 2  # a worker beside each task manager
        assert len(running(cluster)) == 1
        stage.send_signal(signal.SIGKILL)
        stage.wait(timeout=10)
        assert within(20, lambda: not running(cluster))
        assert within(20, lambda: not workers(cluster))
    finally:
        stage.kill()
    begun = build(tmp_path / "out", runner="flink", workers=2, flink_master=cluster.master, worker_pool=cluster.pool)
    with begun.cleanup:
        assert len(fan_out(begun, "other", numbered(tmp_path / "other", 4), work, unit_name="units")) == 4
