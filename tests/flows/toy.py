"""A toy stage in a worker process, whose ranks do what the config says: report, fail,
hang, stop.
"""

from __future__ import annotations

import atexit
import os
import resource
import signal
import time
from dataclasses import replace
from pathlib import Path

from cloze.core import storage
from cloze.core.config import StageConfig
from cloze.core.errors import DataError, StoppedError
from cloze.core.stages.stage import BuildContext, Stage, StageResult
from cloze.core.stages.worker import EVENTS_FD, PipeReporter


class ToyConfig(StageConfig):
    """What each rank does; `rank` the one that misbehaves."""

    act: str = "work"
    rank: int = 0


def run(config: ToyConfig, build: BuildContext) -> StageResult:
    """Write one's process id, then act."""
    rank = int(os.environ["RANK"])
    stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
    storage.write_bytes(build.file(f"_pid-{rank}"), str(os.getpid()).encode())
    if rank == config.rank:
        if config.act == "linger":
            atexit.register(time.sleep, 3600)  # as libraries do that take their time to end
        if config.act == "fail":
            raise DataError("shard 3 is cut short; make it again")
        if config.act == "crash":
            raise ZeroDivisionError("in a library")
        if config.act == "die" or (
            config.act == "die once" and not storage.exists(build.file("_died"))
        ):
            storage.write_bytes(build.file("_died"), b"")
            os.kill(os.getpid(), signal.SIGKILL)
        if config.act == "fail and hang":
            PipeReporter().send(
                {"error": "shard 3 is cut short; make it again", "exit_code": DataError.exit_code}
            )
            time.sleep(3600)
        if config.act == "garble":
            while len(list(Path(build.path).glob("_pid-*"))) < int(
                os.environ["WORLD_SIZE"]
            ):  # until all can be stopped
                time.sleep(0.02)
            os.write(int(os.environ[EVENTS_FD]), b"no JSON\n")
        if config.act == "chat":
            print("chatter of a library on standard output")
        if config.act == "allocate":
            build.counters["faults"] += _faults_of_the_second()
    if config.act == "die" and rank != config.rank:
        time.sleep(0.2)
        raise ConnectionResetError("a peer is gone")
    if config.act == "twice" and not storage.exists(
        build.file("_again")
    ):  # stopped once, it is done the next time
        build.report.progress(1, 3, "steps", {})
        while not stop:
            time.sleep(0.02)
        storage.write_bytes(build.file(f"_again{rank}"), b"")
        while not all(
            storage.exists(build.file(f"_again{other}"))
            for other in range(int(os.environ["WORLD_SIZE"]))
        ):
            time.sleep(0.02)
        storage.write_bytes(build.file("_again"), b"")
        raise StoppedError("stopped at step 7, checkpoint saved; run again to continue")
    while config.act == "wait" and not storage.exists(build.file("_go")):
        time.sleep(0.02)
    if config.act == "slow":
        build.report.progress(1, 3, "steps", {})
        while not stop:
            time.sleep(0.02)
        time.sleep(1.5)  # a large checkpoint
        raise StoppedError("stopped at step 7, checkpoint saved; run again to continue")
    if config.act in ("fail", "crash", "hang", "deaf", "fail and hang", "garble"):
        deadline = time.monotonic() + 3600  # a hang meets the limit of the tests
        while time.monotonic() < deadline and (not stop or config.act == "deaf"):
            time.sleep(0.02)
        raise StoppedError("stopped at step 7, checkpoint saved; run again to continue")
    for done in range(3):
        build.report.progress(done + 1, 3, "steps", {"loss": 1.0 / (done + 1)})
        build.report.metrics({"step": done + 1, "time": 1.0, "loss": 1.0 / (done + 1)})
    build.counters["seen"] += 5
    if rank == 0:
        storage.write_bytes(build.file("out.txt"), os.environ["WORLD_SIZE"].encode())
    return StageResult(rows=1, summary={"rank": rank})


def _faults_of_the_second() -> int:
    """Page faults of a block as large as one that was just freed."""
    block = bytearray(b"x") * (1 << 27)
    del block
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = bytearray(b"x") * (1 << 27)
    del block
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


STAGE = Stage(name="toy", version=1, config=ToyConfig, run=run, worker="tests.flows", parallel=True)
SINGLE = replace(STAGE, name="toy-single", parallel=False)
