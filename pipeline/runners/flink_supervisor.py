"""Supervisor of a job server: `python -m cloze.pipeline.runners.flink_supervisor SPEC`.

The supervisor runs between the stage and the Java process, in its own session, and reads from a
pipe that the stage keeps open. The pipe closes when the stage closes it or dies (kill -9
included). Then the supervisor cancels the stage's jobs on a Flink cluster, kills the job server and
removes its temporary files. If the supervisor itself dies, the kernel kills the job server.

SPEC is JSON: `command`, `log` (a file), `directory` (temporary), and for a cluster `rest` (URL) and
`job_prefix`. Standard library only, for a fast start.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from typing import Any
from urllib.request import Request, urlopen

POLL_SECONDS = 0.1
REST_SECONDS = 5.0
OVER = ("FINISHED", "CANCELED", "FAILED")


def main(spec: dict[str, Any]) -> int:
    from cloze.core.accounts import open_unlinked
    from cloze.core.processes import request_death_signal

    # meant for the stage, which then closes the pipe
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with open(spec["log"], "ab", opener=open_unlinked) as log:
        process = subprocess.Popen(
            spec["command"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=spec["directory"],
            preexec_fn=request_death_signal,
        )
    try:
        while process.poll() is None:
            ready, _, _ = select.select([sys.stdin], [], [], POLL_SECONDS)
            if ready and not os.read(sys.stdin.fileno(), 1024):
                break
        if spec.get("rest"):
            cancel_jobs(spec["rest"], spec["job_prefix"])
        return process.poll() or 0
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(spec["directory"], ignore_errors=True)


def cancel_jobs(rest: str, prefix: str) -> list[str]:
    """Cancel the active jobs whose names start with `prefix`, and return their ids.

    Does nothing if the cluster does not answer.
    """
    cancelled = []
    with suppress(OSError, ValueError, KeyError):
        with urlopen(f"{rest}/jobs/overview", timeout=REST_SECONDS) as response:
            jobs = json.load(response)["jobs"]
        for job in jobs:
            if job["name"].startswith(prefix) and job["state"] not in OVER:
                request = Request(f"{rest}/jobs/{job['jid']}?mode=cancel", method="PATCH")
                with suppress(OSError), urlopen(request, timeout=REST_SECONDS):
                    cancelled.append(job["jid"])
    return cancelled


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
