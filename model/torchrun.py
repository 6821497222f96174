"""`python -m model.torchrun ARGUMENTS`: torchrun, which dies with the process that started it, and whose workers die with it."""

from __future__ import annotations

import os
import sys

from pipeline.core.processes import PARENT_PID, die_with_parent

if __name__ == "__main__":
    die_with_parent()
    os.environ[PARENT_PID] = str(os.getpid())  # the workers'
    from torch.distributed import run

    run.main(sys.argv[1:])
