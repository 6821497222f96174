"""Which code a run is of: the commit of the checkout that it runs from."""

from __future__ import annotations

import functools
import getpass
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SECONDS = 5.0


@functools.cache
def tags() -> dict[str, str]:
    """Tags of MLflow's and our own: user, host, command, commit, and whether files differ from it."""
    found = {
        "mlflow.user": getpass.getuser(),
        "mlflow.source.name": Path(sys.argv[0]).name or "cloze",
        "mlflow.source.type": "LOCAL",
        "cloze.host": socket.gethostname(),
    }
    commit = _git("rev-parse", "HEAD") if (ROOT / ".git").exists() else None
    if commit:
        found["mlflow.source.git.commit"] = commit
        found["cloze.modified"] = str(bool(_git("status", "--porcelain", "--untracked-files=no"))).lower()
    return found


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False, timeout=SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
