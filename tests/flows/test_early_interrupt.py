"""Ctrl-C before the command line is imported: the process ends by the signal, without a traceback."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

# In place of the command line, a module whose import takes until Ctrl-C.
SCRIPT = """
import signal, sys
class Slow:
    def find_spec(self, name, path, target=None):
        if name in {slow!r}:
            signal.raise_signal(signal.SIGINT)
            print("goes on")
            sys.exit(0)
sys.meta_path.insert(0, Slow())
# As a terminal's shell starts it: what runs in the background ignores Ctrl-C.
signal.signal(signal.SIGINT, signal.SIG_IGN if {ignored} else signal.default_int_handler)
import cloze.__main__
"""


@pytest.mark.parametrize("slow", [["cloze.flows.cli"], ["click"], ["cloze.core.errors", "click"]])
@pytest.mark.parametrize("ignored", [False, True])
def test_ctrl_c_during_the_imports_says_nothing(slow: list[str], ignored: bool) -> None:
    """`ignored`: as below nohup, where the command goes on."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(slow=slow, ignored=ignored)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    assert (done.returncode, done.stdout) == ((0, "goes on\n") if ignored else (-signal.SIGINT, ""))


def test_the_names_of_the_package_are_there_without_an_import_of_their_modules() -> None:
    script = (
        "import sys, cloze; assert 'cloze.checkpoint' not in sys.modules;"
        "from cloze import Checkpoint, DataError; assert issubclass(DataError, cloze.ClozeError);"
        "assert not hasattr(cloze, 'nothing')"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
