"""Worker process `python -m cloze.flows.worker JOB`: a stage such as the report, in a job."""

from __future__ import annotations

import sys

from cloze.core.stages.worker import main

if __name__ == "__main__":
    sys.exit(main("cloze.flows"))
