"""Where a rank is, told to whoever wants to kill it at a certain moment."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MARK = "CLOZE_TEST_MARK"  # a file whose only byte says what rank 0 does


def mark(what: str) -> None:
    """Say what this rank does, where it is the first."""
    Path(os.environ[MARK]).write_text(what)


def marked() -> None:
    """Have the trainer say it, in the process of the first rank."""
    if os.environ.get("RANK") != "0":
        return
    from cloze.model.train.loop import loop

    exclude, steps = loop.StepTimer.exclude, loop._TrainingLoop._steps

    @contextlib.contextmanager
    def telling(self: Any, what: Any) -> Iterator[None]:
        mark(what)
        try:
            with exclude(self, what):
                yield
        finally:
            mark("step")

    def stepping(self: Any) -> None:
        mark("step")
        steps(self)

    loop.StepTimer.exclude = telling  # type: ignore[method-assign, assignment]
    loop._TrainingLoop._steps = stepping  # type: ignore[method-assign, assignment]
