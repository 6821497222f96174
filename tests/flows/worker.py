"""`python -m tests.flows.worker JOB`: a toy stage in a process of its own."""

from __future__ import annotations

import sys

from cloze.core.stages.worker import main

if __name__ == "__main__":
    sys.exit(main("tests.flows"))
