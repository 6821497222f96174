"""`python -m pipeline.engines.supervisor SPEC`: keeps a job server for as long as the stage that asked for it lives.

It sits between the stage and the Java process, in a session of its own, and reads from a pipe that the stage holds open. When
the pipe closes, by the stage's word or by its death (kill -9 included), the supervisor cancels what the stage still has on a Flink
cluster, kills the job server and removes its temporary files. If the supervisor itself dies, the kernel kills the job server.

SPEC is JSON: `command`, `log` (a file), `directory` (temporary), and for a cluster `rest` (its URL) and `job_prefix`.
Standard library only, so that it starts at once.
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
    from pipeline.core.processes import before_exec

    for number in (signal.SIGINT, signal.SIGTERM):  # meant for the stage, which then closes the pipe
        signal.signal(number, signal.SIG_IGN)
    with open(spec["log"], "ab") as log:
        process = subprocess.Popen(
            spec["command"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=spec["directory"],
            preexec_fn=before_exec(),
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
    """Cancel the jobs whose name starts with `prefix` and that are not over; returns their ids. Silent if nobody answers."""
    cancelled = []
    with suppress(OSError, ValueError, KeyError):
        with urlopen(f"{rest}/jobs/overview", timeout=REST_SECONDS) as answer:
            jobs = json.load(answer)["jobs"]
        for job in jobs:
            if job["name"].startswith(prefix) and job["state"] not in OVER:
                request = Request(f"{rest}/jobs/{job['jid']}?mode=cancel", method="PATCH")
                with suppress(OSError), urlopen(request, timeout=REST_SECONDS):
                    cancelled.append(job["jid"])
    return cancelled


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
