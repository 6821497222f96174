"""Copies of the program for tests that extend it or change its source files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.conftest import REPOSITORY

PACKAGES = ("core", "pipeline", "model", "flows", "labs")


def copy_packages(root: Path, *more: str) -> None:
    """Copy the packages, `src` with its links to them, and further folders of the repository."""
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in (*PACKAGES, "src", *more):
        shutil.copytree(REPOSITORY / name, root / name, symlinks=True, ignore=ignored)


def import_path(root: Path) -> str:
    """Return the PYTHONPATH that imports `cloze` and `tests` from a copy."""
    return os.pathsep.join([str(root / "src"), str(root)])
