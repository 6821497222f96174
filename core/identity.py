"""Identity of the program: processes whose results are mixed must be of the same versions."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Mapping
from pathlib import Path

from cloze.core.artifacts import artifact
from cloze.core.plugins import installed

SOURCES = (".py", ".txt")  # readers and cleaning steps have their tables in text files
RECORDED = ".source"  # of a runs directory: copies of the package, by content


def recorded_source() -> Path | None:
    """Return the copy of the package that child processes import first; None: they have none."""
    first = Path(os.environ.get("PYTHONPATH", "").partition(os.pathsep)[0])
    return first if first.parent.name == RECORDED and first.is_dir() else None


def package_root() -> Path:
    """Return the folder `cloze` that child processes import."""
    return (recorded_source() or Path(__file__).parents[2]) / "cloze"


def identity(*packages: str) -> dict[str, str]:
    """Return versions by package, `python`, and `code`: a hash of the source files in `packages`.

    They are those that child processes import. Args: packages: packages of Cloze. Default: all.
    """
    code = _code(package_root(), packages or ("core", "pipeline", "model", "flows", "labs"))
    foreign = {one.package: one.version for one in installed() if one.version}
    versions = {**artifact.package_versions(), **foreign}
    return {"python": platform.python_version(), **versions, "code": code}


def _code(root: Path, packages: tuple[str, ...]) -> str:
    data = root / "flows" / "data"  # of a copy or a wheel; a checkout has these files at its top
    found = (path for package in packages for path in (root / package).rglob("*.*"))
    files = {
        str(path.relative_to(root)): path.read_bytes()
        for path in found
        if path.suffix in SOURCES and (data not in path.parents or path.name == "__init__.py")
    }
    return digest(files)[:12]


def digest(files: Mapping[str, bytes]) -> str:
    """Return a hash of files by name and content."""
    total = hashlib.sha256()
    for name, content in sorted(files.items()):
        total.update(f"{name}\0{hashlib.sha256(content).hexdigest()}\n".encode())
    return total.hexdigest()[:32]


def difference(local: Mapping[str, str], remote: Mapping[str, str]) -> tuple[str, str, str] | None:
    """Return the first difference of two identities as (name, here, there); None if equal."""
    for name in sorted({*local, *remote}, key=lambda name: (name == "code", name)):
        if local.get(name) != remote.get(name):
            return name, local.get(name, "none"), remote.get(name, "none")
    return None
