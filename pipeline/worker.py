"""`python -m pipeline.worker JOB`: a data stage in a process of its own."""

from __future__ import annotations

import sys

from pipeline.job import main

STAGES = {
    "corpus": "pipeline.jobs.corpus:STAGE",
    "vocab": "pipeline.jobs.vocab:STAGE",
    "dataset": "pipeline.jobs.dataset:STAGE",
}

if __name__ == "__main__":
    sys.exit(main(STAGES))
