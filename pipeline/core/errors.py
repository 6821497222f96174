"""The errors a user can meet, and the exit code of each.

    ClozeError            1  anything that went wrong and has a sentence to say about it
    ├── UsageError        2  bad usage or config: the user's command or YAML must change
    ├── DataError         3  bad input data: a file is missing, truncated or not what it claims to be
    └── Stopped           4  stopped on request, with a checkpoint saved

A message is one sentence that names the file or field, the value found, and what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ClozeError(Exception):
    """Base of every error that Cloze raises on purpose.

    Attributes:
        step: of a training that failed: the step it was at, from 1.
        died: whether a process was killed, or hung: another try may do with fewer.
    """

    exit_code = 1
    step: int | None = None
    died: bool = False


class UsageError(ClozeError):
    """The command line or the config asks for something that cannot be done."""

    exit_code = 2


class DataError(ClozeError):
    """An input is missing, damaged, or is not what its name says."""

    exit_code = 3


class Stopped(ClozeError):
    """Training was asked to stop, and did so after saving a checkpoint."""

    exit_code = 4


BY_EXIT_CODE: dict[int, type[ClozeError]] = {error.exit_code: error for error in (UsageError, DataError, Stopped)}


def did_you_mean(word: str, choices: Iterable[str], otherwise: str | None = None) -> str:
    """The tail of an error message: the nearest choice, else `otherwise`, by default a list of all choices."""
    options = sorted(choices)
    near = difflib.get_close_matches(word, options, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    return otherwise or "choose from " + ", ".join(options)
