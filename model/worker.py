"""Worker process `python -m cloze.model.worker JOB`: one rank of a training or inference stage."""

from __future__ import annotations

import sys

from cloze.core.stages.worker import main

if __name__ == "__main__":
    sys.exit(main("cloze.model"))
