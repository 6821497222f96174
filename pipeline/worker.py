"""`python -m pipeline.worker JOB`: a data stage in a process of its own."""

from __future__ import annotations

import logging
import os
import sys

from pipeline.core.worker import main

STAGES = {
    "corpus": "pipeline.corpus.stage:STAGE",
    "vocab": "pipeline.vocab.stage:STAGE",
    "dataset": "pipeline.dataset.stage:STAGE",
}

if __name__ == "__main__":
    code = main(STAGES)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a runner's threads, waiting for a worker or a job server that has gone, would keep the process for minutes
