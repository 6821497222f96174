"""What nights leave on the disk: a fine-tuned model for each task, seed and checkpoint. Scores stay in the journal; the models go."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path

from pipeline.core.artifact import MANIFEST
from pipeline.core.errors import UsageError
from pipeline.core.lock import locked


def clear(directory: Path, before: float, labels: Collection[str]) -> list[str]:
    """Remove the suite's artifacts that are older, and links that lead nowhere then. A run that goes on there is left alone.

    Args:
        directory: the suite's run.
        before: Unix seconds.
        labels: of checkpoints whose artifacts stay: champions, with which the next candidate is compared.

    Returns:
        The names of what was removed.
    """
    gone: list[str] = []
    if not directory.is_dir():
        return gone
    try:
        with locked(str(directory)):
            for path in sorted(directory.glob("*@*")):
                if path.is_symlink() or not path.is_dir() or any(label in path.name for label in labels):
                    continue
                mark = path / MANIFEST
                if (mark if mark.exists() else path).stat().st_mtime < before:
                    shutil.rmtree(path, ignore_errors=True)
                    gone.append(path.name)
            for link in directory.glob("*@*"):
                if link.is_symlink() and not link.exists():
                    link.unlink()
    except UsageError:  # somebody has begun the suite by hand
        return gone
    return gone
