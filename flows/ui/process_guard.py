"""`python -m cloze.flows.ui.process_guard COMMAND …`: run COMMAND so that it ends with its parent.

The kernel sends SIGTERM when the parent dies. The setting survives `exec`, so the server keeps the
process id that the supervisor knows.
"""

from __future__ import annotations

import os
import signal
import sys

from cloze.core.processes import die_with_parent

if __name__ == "__main__":
    die_with_parent(signal.SIGTERM)
    os.execv(sys.argv[1], sys.argv[1:])
