"""`python -m flows.servers.page PORT`: the page of all runs, on loopback."""

from __future__ import annotations

import sys

import uvicorn

from flows.graph.plan import runs_directory
from flows.servers.page.app import application
from flows.servers.ports import LOOPBACK

if __name__ == "__main__":
    port = int(sys.argv[1])
    uvicorn.run(
        application(runs_directory(), port),
        host=LOOPBACK,
        port=port,
        timeout_graceful_shutdown=3,
        log_level="warning",
        access_log=False,
    )
