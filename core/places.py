"""The directories of this machine that variables of the environment name."""

from __future__ import annotations

import os
from pathlib import Path

from cloze.core.errors import UsageError
from cloze.core.object_store import has_scheme


def local_setting(variable: str, default: str = "", remedy: str = "name one, or unset it") -> Path:
    """Return the local directory that an environment variable names.

    Raises UsageError: it is a file, or a URL, which would become a directory `s3:` here.
    """
    path = os.path.expanduser(os.environ.get(variable) or default)
    if has_scheme(path) or os.path.isfile(path):
        raise UsageError(f"{variable}={path} is no local directory; {remedy}")
    return Path(path)


def runs_directory() -> Path:
    """Return `$CLOZE_RUNS_DIR`; default: `./runs`. Records and locks need a disk."""
    return local_setting("CLOZE_RUNS_DIR", "runs", "CLOZE_STORE names a store")


def cache_directory() -> Path:
    """Return `$XDG_CACHE_HOME/cloze`, by default `~/.cache/cloze`."""
    return local_setting("XDG_CACHE_HOME", "~/.cache") / "cloze"
