"""Packages that are not there: those that $HIDDEN names, in a process that calls `hide`.

A fork that has imported them already (`tests.warm`) forgets them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

HIDDEN = frozenset(os.environ.get("HIDDEN", "").split())


class Finder(PathFinder):
    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] in HIDDEN:
            return None
        return super().find_spec(name, path, target)


def hide() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in HIDDEN]:
        del sys.modules[name]
    sys.meta_path[:] = [  # one that keeps what is hidden goes, too
        Finder if each is PathFinder else each
        for each in sys.meta_path
        if getattr(each, "name", None) not in HIDDEN
    ]
