"""The facts of all files of a repository: of Python files and of texts that name code.

A cache keeps the facts by the hash of each file, and of the programs here that read it.
"""

from __future__ import annotations

import hashlib
import marshal
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from tests.tools import source_file
from tests.tools.source_file import PRODUCT, Source, Use, names_in, read_source

FOLDERS = (*PRODUCT, "tests", "benchmarks", "infra", "docs", "src/cloze")
TEXTS = (".yaml", ".yml", ".toml", ".sh", ".sbatch", ".conf", ".env", "Makefile", ".ci/run")
_PATH = re.compile(r"(?<![\w/.-])(?:\./)?([\w.-]+(?:/[\w.-]+)*\.\w+)")
_COMMAND = re.compile(r"\bcloze[\s,\"']+([a-z][a-z-]+)")
_BASE = re.compile(r"\b(?:base|extends): *(\S+)")


def read_facts(
    root: Path, files: Collection[str], cache: Path | None = None
) -> tuple[dict[str, Source], dict[str, list[Use]]]:
    """Return the facts of Python files, and what texts use.

    Args:
        files: paths in the repository.
        cache: file of facts of an earlier call.
    """
    known = _load(cache)
    found: dict[str, tuple[str, Any]] = {}
    for name in sorted(files):
        is_code = name.endswith(".py") and name.startswith(FOLDERS)
        if is_code or _is_text(name):
            content = (root / name).read_bytes()
            digest = hashlib.sha1(content, usedforsecurity=False).hexdigest()
            if name in known and known[name][0] == digest:
                found[name] = known[name]
            elif is_code:
                source = read_source(name, content.decode())
                found[name] = (digest, [getattr(source, part) for part in Source.__slots__])
            else:
                found[name] = (digest, list(read_text(name, content.decode())))
    if cache and found != known:
        cache.parent.mkdir(parents=True, exist_ok=True)
        begun = cache.with_suffix(f".{os.getpid()}")
        begun.write_bytes(marshal.dumps((_version(), found)))
        begun.replace(cache)
    code = {name: Source(*facts) for name, (_, facts) in found.items() if name.endswith(".py")}
    return code, {name: facts for name, (_, facts) in found.items() if name not in code}


def read_text(path: str, text: str) -> dict[Use, None]:
    """Return what a configuration or a script names.

    Besides the uses of Python files:
        ("command", WORD)    of the program, as in `cloze WORD`
        ("base", PATH)       the preset that a preset extends
    """
    found: dict[Use, None] = dict.fromkeys(names_in(text))
    found.update(dict.fromkeys(("path", name) for name in _PATH.findall(text)))
    found.update(dict.fromkeys(("command", word) for word in _COMMAND.findall(text)))
    if is_preset(path):  # stages, readers, models, objectives
        found.update(dict.fromkeys(("base", word) for word in _BASE.findall(text)))
        lines = (line.partition("#")[0] for line in text.splitlines())
        words = sorted({word for line in lines for word in re.findall(r"[\w.-]+", line)})
        found[("words", *words)] = None
    return found


def is_preset(path: str) -> bool:
    return path.startswith(PRODUCT) and "presets" in PurePosixPath(path).parts


def _is_text(name: str) -> bool:
    is_named = name.endswith(TEXTS) or "Containerfile" in name
    return is_named and not name.startswith("samples/")


def _load(cache: Path | None) -> Mapping[str, tuple[str, Any]]:
    if cache is None or not cache.exists():
        return {}
    try:
        version, facts = marshal.loads(cache.read_bytes())
    except (EOFError, ValueError, TypeError):
        return {}
    return facts if version == _version() else {}


def _version() -> str:
    programs = [Path(str(name)).read_bytes() for name in (__file__, source_file.__file__)]
    return hashlib.sha1(b"".join(programs), usedforsecurity=False).hexdigest()
