"""A copy of the program that a test adds things to, as somebody would who extends it: new files,
and lines in tables.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import warm
from tests.checkout import copy_packages, import_path
from tests.conftest import REPOSITORY

ENTRY = warm.ENTRY


@dataclass(frozen=True, slots=True)
class Program:
    """The copy, and how it is changed and run."""

    root: Path

    @classmethod
    def copied(cls, root: Path, *packages: str) -> Program:
        """Args: packages: further folders to copy."""
        copy_packages(root, *packages)
        shutil.copy(REPOSITORY / "prefect.yaml", root)
        return cls(root)

    def write(self, name: str, content: str) -> None:
        """Add a file; there must be none of this name."""
        path = self.root / name
        path.parent.mkdir(exist_ok=True)
        assert not path.exists()
        path.write_text(content)

    def add_line(self, name: str, opening: str, line: str) -> None:
        """Add a line to the table that the only line `opening` of a file opens."""
        path = self.root / name
        text = path.read_text()
        assert text.count(f"{opening}\n") == 1
        path.write_text(text.replace(f"{opening}\n", f"{opening}\n    {line}\n"))

    def python(self, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run Python in the copy, on the copy."""
        return subprocess.run(
            [warm.python(), *map(str, arguments)],
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": import_path(self.root), **environment},
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )

    def cloze(self, *arguments: object) -> dict[str, Any]:
        """What a verb of the copy prints with `--json`; it must succeed."""
        done = self.python("-c", ENTRY, *arguments, "--json")
        assert done.returncode == 0, done.stderr[-3000:]
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found
