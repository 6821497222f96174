"""`python -m cloze.flows.ui.process_guard COMMAND …`: run COMMAND so that it ends with its parent.

The kernel sends SIGTERM when the parent dies. The setting survives `exec`, so the server keeps the
process id that the supervisor knows.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from cloze.core.processes import PARENT_PID

_PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if os.getppid() != int(os.environ[PARENT_PID]):  # the parent died before prctl
        sys.exit(1)
    os.execv(sys.argv[1], sys.argv[1:])
