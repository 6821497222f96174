"""Identity of the program: processes whose results are mixed must be of the same versions."""

from __future__ import annotations

import functools
import hashlib
import platform
from collections.abc import Mapping
from pathlib import Path

from cloze.core.artifacts import artifact
from cloze.core.plugins import installed

SOURCES = (".py", ".txt")  # readers and cleaning steps have their tables in text files


def identity(*packages: str, reads_again: bool = False) -> dict[str, str]:
    """Return versions by package, `python`, and `code`: a hash of the source files in `packages`.

    Args:
        packages: packages of Cloze. Default: all.
        reads_again: hash the files as they are now; else as at this process's first call.
    """
    hash_of = _code.__wrapped__ if reads_again else _code
    code = hash_of(packages or ("core", "pipeline", "model", "flows", "labs"))
    foreign = {one.package: one.version for one in installed() if one.version}
    versions = {**artifact.package_versions(), **foreign}
    return {"python": platform.python_version(), **versions, "code": code}


@functools.cache
def _code(packages: tuple[str, ...]) -> str:
    root, digest = Path(__file__).parents[1], hashlib.sha256()
    files = (path for package in packages for path in (root / package).rglob("*.*"))
    for path in sorted(path for path in files if path.suffix in SOURCES):
        digest.update(
            f"{path.relative_to(root)}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode()
        )
    return digest.hexdigest()[:12]


def difference(local: Mapping[str, str], remote: Mapping[str, str]) -> tuple[str, str, str] | None:
    """Return the first difference of two identities as (name, here, there); None if equal."""
    for name in sorted({*local, *remote}, key=lambda name: (name == "code", name)):
        if local.get(name) != remote.get(name):
            return name, local.get(name, "none"), remote.get(name, "none")
    return None
