"""A cluster of one job manager and two task managers, with a worker pool next to each: same bytes,
though a worker is killed.

It takes three minutes, so `make soak` runs it; `make test` has Flink inside a process
(test_same_bytes.py, test_flink.py).
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

from cloze.pipeline.runners.fan_out import fan_out
from tests.pipeline.corpus.duplicates.plans import by_engine, by_one
from tests.pipeline.corpus.duplicates.references import invented
from tests.pipeline.runners.conftest import Cluster, started
from tests.pipeline.runners.jobs import run
from tests.pipeline.runners.units import build, numbered, within, work

pytestmark = pytest.mark.soak


def workers(cluster: Cluster) -> list[psutil.Process]:
    """The processes that the pools' nurseries have forked."""
    return [
        worker
        for number in range(1, cluster.managers + 1)
        for worker in workers_beside(cluster, number)
    ]


def workers_beside(cluster: Cluster, number: int) -> list[psutil.Process]:
    """Those of the pool next to one task manager."""
    pool = psutil.Process(cluster.process(f"pool-{number}"))
    return [worker for fork_server in pool.children() for worker in fork_server.children()]


def running(cluster: Cluster) -> list[str]:
    with urlopen(f"http://{cluster.master}/jobs/overview", timeout=5) as answer:
        return [
            job["name"]
            for job in json.load(answer)["jobs"]
            if job["state"] not in ("FINISHED", "CANCELED", "FAILED")
        ]


def test_the_same_bytes_though_a_worker_is_killed(
    cluster: Cluster, library: Path, samples: Path, tmp_path: Path
) -> None:
    expected = run(str(tmp_path / "local"), [], str(library), samples)
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
    assert run(str(tmp_path / "out"), cluster.options, str(library), samples) == expected
    assert killed
    assert workers(cluster) == []  # the pools are ready for others


@pytest.mark.timeout(2400)
def test_the_same_plan_though_a_worker_and_a_task_manager_are_killed(
    flink_jar: str, tmp_path: Path
) -> None:
    """Of three task managers, for two workers: the search for duplicates loses a worker in one
    step, and a task manager in another.
    """
    references = invented(tmp_path, 1500, seed=5, hot=300)
    killed: list[str] = []

    def kill(cluster: Cluster) -> None:
        """In the middle of a step: some of its units are done."""
        deadline = time.monotonic() + 900
        for what, step in (("worker", "values"), ("taskmanager", "links")):
            done = tmp_path / "out-engine" / "_scratch" / f"dedup-by-5-{step}"
            while time.monotonic() < deadline and what not in killed:
                time.sleep(0.01)
                if not done.is_dir() or not any(done.iterdir()):
                    continue
                for number in range(1, cluster.managers + 1):
                    if own := workers_beside(cluster, number):
                        (
                            own[0]
                            if what == "worker"
                            else psutil.Process(cluster.process(f"taskmanager-{number}"))
                        ).kill()
                        killed.append(what)
                        break

    with started(tmp_path / "cluster", flink_jar, managers=3) as cluster:
        thread = threading.Thread(target=kill, args=[cluster], daemon=True)
        thread.start()
        execution = {"workers": 2, "flink_master": cluster.master, "worker_pool": cluster.pool}
        found = by_engine(tmp_path, references, exact=False, runner="flink", **execution)
        thread.join()
    assert killed == ["worker", "taskmanager"]
    assert found == by_one(tmp_path, references, exact=False)


def test_both_task_managers_work_and_a_stopped_stage_cancels_its_job(
    cluster: Cluster, tmp_path: Path
) -> None:
    how = (
        f"runner='flink', workers=2, flink_master={cluster.master!r}, worker_pool={cluster.pool!r}"
    )
    script = (
        "from pathlib import Path; from tests.pipeline.runners.units import *; from "
        "cloze.pipeline.runners.fan_out import fan_out\n"
        f"place = Path({str(tmp_path)!r})\n"
        f"begun = build(place / 'out', {how})\n"
        "with begun.cleanup:\n"
        "    fan_out(begun, 'work', numbered(place / 'notes', 4, seconds=60), work, "
        "unit_name='units')\n"
    )
    stage = subprocess.Popen(
        [sys.executable, "-c", script], cwd=Path(__file__).parents[3], stderr=subprocess.DEVNULL
    )
    try:
        notes = tmp_path / "notes"
        assert within(100, lambda: len(list(notes.glob("began-*"))) >= 2)
        nurseries = {psutil.Process(int(note.read_text())).ppid() for note in notes.glob("began-*")}
        assert len(nurseries) == 2  # a worker next to each task manager
        assert len(running(cluster)) == 1
        stage.send_signal(signal.SIGKILL)
        stage.wait(timeout=10)
        assert within(20, lambda: not running(cluster))
        assert within(20, lambda: not workers(cluster))
    finally:
        stage.kill()
    begun = build(
        tmp_path / "out",
        runner="flink",
        workers=2,
        flink_master=cluster.master,
        worker_pool=cluster.pool,
    )
    with begun.cleanup:
        assert (
            len(fan_out(begun, "other", numbered(tmp_path / "other", 4), work, unit_name="units"))
            == 4
        )
