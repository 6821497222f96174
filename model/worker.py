"""`python -m model.worker JOB`: a training or inference stage in a process of its own, one of WORLD_SIZE ranks."""

from __future__ import annotations

import sys

from pipeline.core.worker import main

if __name__ == "__main__":
    sys.exit(main("model"))
