"""A flow for tests: it says that it runs, and sleeps."""

from __future__ import annotations

import os
import time
from pathlib import Path

from prefect import flow


@flow
def sleeper(place: str, seconds: float = 600.0) -> None:
    """Write this process's number to `place`, then sleep."""
    Path(place).write_text(str(os.getpid()))
    time.sleep(seconds)
