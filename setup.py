"""Build steps: the folders at the top become one package `cloze`; a wheel gets copies of data
files.

`src/cloze` gets links to the folders (git ignores them), so that a checkout, an editable install
and a wheel import the same names.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

PACKAGES = ("core", "pipeline", "model", "flows", "labs")
DATA = ("prefect.yaml", "constraints.txt", "samples")  # read by `cloze.flows.data`


class BuildWithData(build_py):
    """Copies packages, then the data."""

    def run(self) -> None:
        """Copy into the build directory; an editable install reads the checkout."""
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)  # files that are gone meanwhile
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib) / "cloze" / "flows" / "data"
        for name in DATA:
            if Path(name).is_dir():
                shutil.copytree(name, target / name, dirs_exist_ok=True)
            else:
                shutil.copy(name, target / name)


def link_packages() -> None:
    """Link the folders at the top into `src/cloze`; a source distribution has them there."""
    for name in PACKAGES:
        link = Path("src", "cloze", name)
        if not link.exists():
            link.symlink_to(Path("..", "..", name))


if __name__ == "__main__":
    link_packages()
    setup(cmdclass={"build_py": BuildWithData})
