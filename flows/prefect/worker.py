"""`python -m cloze.flows.prefect.worker ARGUMENTS`: `prefect worker start` that loses no training.

At SIGTERM Prefect's process worker kills its flows at once (PrefectHQ/prefect#22528). But a flow
whose worker is gone saves a checkpoint and reports it (`graph_run.watch_parent`). So a worker with
flows is killed instead, and its flows are waited for. *Retry* continues them.
"""

from __future__ import annotations

import functools
import signal
import subprocess
import sys
import threading

import psutil

from cloze.core.processes import request_death_signal
from cloze.core.stages.execution import SCHEDULER_GRACE_SECONDS

MARGIN_SECONDS = 20.0  # for a flow to end and report, added to the longest usual grace period
POLL_SECONDS = 0.2


def main(arguments: list[str]) -> int:
    """Run the worker and return its exit code; after SIGTERM, SIGINT or SIGHUP: 0."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: stop.set())
    command = [sys.executable, "-m", "prefect", "worker", "start", *arguments]
    # SIGKILL: if this process is killed, the flows save as well
    dies = functools.partial(request_death_signal, signal.SIGKILL)
    worker = subprocess.Popen(command, preexec_fn=dies, start_new_session=True)
    while worker.poll() is None:
        if stop.wait(POLL_SECONDS):
            flows = psutil.Process(worker.pid).children(recursive=True)
            if flows:
                worker.kill()
            else:
                worker.terminate()
            worker.wait()
            psutil.wait_procs(flows, timeout=SCHEDULER_GRACE_SECONDS + MARGIN_SECONDS)
            return 0
    return worker.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
