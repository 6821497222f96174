"""`python -m tests.operations.worker JOB`: a rank of a toy training."""

from __future__ import annotations

import sys

from cloze.core.stages.worker import main

if __name__ == "__main__":
    sys.exit(main("tests.operations"))
