"""Small packages with plug-ins, as pip leaves them: modules and a `dist-info` on the path."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from cloze.core import plugins

DECLARED = """
from cloze.core.plugins import Plugin, Row
PLUGIN = Plugin({name!r}, "What {name} is.", {rows})
"""


def install(
    directory: Path,
    package: str,
    declaration: str,
    modules: Mapping[str, str],
    version: str = "1.0",
) -> None:
    """Write a package `package` with `plugin.py` and other modules, and its metadata."""
    module = directory / package.replace("-", "_")
    module.mkdir(parents=True)
    (module / "__init__.py").write_text("")
    for name, text in {"plugin": declaration, **modules}.items():
        (module / f"{name}.py").write_text(text)
    about = directory / f"{module.name}-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    (about / "entry_points.txt").write_text(
        f"[console_scripts]\nx = x:y\n\n[cloze.plugins]\n{package} = {module.name}.plugin:PLUGIN\n"
        "\n[others]\na = b:c\n"
    )


def declared(name: str, rows: str = "{}") -> str:
    return DECLARED.format(name=name, rows=rows)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory on the path, whose plug-ins are found by tables that the test makes."""
    directory = tmp_path / "site"
    directory.mkdir()
    monkeypatch.syspath_prepend(str(directory))
    monkeypatch.setattr(
        plugins, "installed", plugins.functools.cache(plugins.installed.__wrapped__)
    )
    monkeypatch.setattr(plugins, "faults", {})
    monkeypatch.setattr(plugins, "_named", {})
    before = set(sys.modules)
    yield directory
    for name in set(sys.modules) - before:
        del sys.modules[name]
