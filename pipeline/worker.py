"""`python -m pipeline.worker JOB`: a data stage in a process of its own."""

from __future__ import annotations

import logging
import os
import sys

from pipeline.core.worker import main

if __name__ == "__main__":
    code = main("pipeline")
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a runner's threads, waiting for a worker or a job server that has gone, would keep the process for minutes
