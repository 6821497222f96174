"""Prefect, imported but not yet there: its first `import` in a fork takes the modules that the
nursery has (`tests.warm`), and reads the settings of that moment, as a fresh process does.
"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

NAME = "prefect"


class SetAside:
    """A finder of the package, and its loader."""

    name = NAME

    def __init__(self) -> None:
        self.modules = {
            name: module for name, module in sys.modules.items() if name.split(".")[0] == NAME
        }
        for name in self.modules:
            del sys.modules[name]
        self.spec = self.modules[NAME].__spec__

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        del path, target
        return ModuleSpec(name, self, is_package=True) if name == NAME else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        del spec
        return self.modules[NAME]

    def exec_module(self, module: ModuleType) -> None:
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        module.__spec__ = self.spec
        sys.modules.update(self.modules)
        importlib.import_module("prefect.context").refresh_global_settings_context()
        logging = importlib.import_module("prefect.logging.configuration")
        logging.PROCESS_LOGGING_CONFIG.clear()
        logging.setup_logging()  # to this process's stderr
