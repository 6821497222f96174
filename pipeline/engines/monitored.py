"""A pipeline that is monitored while it runs: what Beam's client does not notice, such as a dead worker, ends the wait for it."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from typing import Any

POLL_SECONDS = 0.1


def run_monitored(pipeline: Any, check: Callable[[], None], name: str) -> BaseException | None:
    """Run a Beam pipeline to its end.

    Args:
        pipeline: constructed, not yet run.
        check: raises when who does the work is gone; called several times a second.
        name: of the thread.

    Returns:
        What the pipeline raised. What `check` raises is raised.
    """
    failure: list[BaseException] = []

    def run() -> None:
        try:
            pipeline.run().wait_until_finish()
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(POLL_SECONDS)
            check()
    finally:
        shutil.rmtree(pipeline.local_tempdir, ignore_errors=True)  # Beam removes it only when it comes to an end
    return failure[0] if failure else None
