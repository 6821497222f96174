"""What identifies the program that a host would run: the hosts of one training must all run the same."""

from __future__ import annotations

import functools
import hashlib
import platform
from collections.abc import Mapping
from pathlib import Path

from pipeline.core import artifact

PACKAGES = ("pipeline", "model", "flows")


def identity() -> dict[str, str]:
    """Versions by package, `python`, and `code`: a hash of our own source files."""
    return {"python": platform.python_version(), **artifact.package_versions(), "code": _code()}


@functools.cache
def _code() -> str:
    root, digest = Path(__file__).parents[2], hashlib.sha256()
    for path in sorted(path for package in PACKAGES for path in (root / package).rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()[:12]


def difference(here: Mapping[str, str], there: Mapping[str, str]) -> tuple[str, str, str] | None:
    """The first thing in which two programs differ, with what it is here and there; None: they are the same."""
    for name in sorted({*here, *there}, key=lambda name: (name == "code", name)):
        if here.get(name) != there.get(name):
            return name, here.get(name, "none"), there.get(name, "none")
    return None
