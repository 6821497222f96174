"""Count the functions that a run passes before the first step of its work.

    python -m tests.tools.run_path          preset sample, data cached, node pretrain alone
    python -m tests.tools.run_path --toy    a graph of one toy stage
    python -m tests.tools.run_path --list   also the functions by file

It counts distinct functions of this repository by `sys.setprofile`, in the process of the command
(the head) and in rank 0. Those of the copy that a run makes of its source count as the
repository's. Lambdas and comprehensions do not count. What runs while a module is imported is
counted apart. A count says nothing of time.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
OUT = "RUN_PATH_OUT"  # variable: directory of the counts
# what a training calls for its first batch; the function of the toy stage
FIRST_STEPS = (":step_batches", "tests/flows/toy.py:run")
HEAD, RANK = "command", "rank 0"
RUN = ("run", "sample", "--no-prefect")
TOY = """
from cloze.core.plugins import Table
from cloze.flows.graph import stages
stages.TABLE = Table("toys", "stage", {"toy": "tests.flows.toy:STAGE"})
from cloze.flows import cli
cli.main(["run", "toy.yaml", "--no-prefect"])
"""
Function = tuple[str, str]  # file and qualified name


def watch() -> None:
    """Count from now on; called when an interpreter of the run starts."""
    if sys.argv[:1] not in (["-m"], ["-c"]):  # a helper, such as the sender of records
        return
    seen: set[tuple[CodeType, bool]] = set()
    imports: dict[int, int] = defaultdict(int)  # modules that each thread imports now
    is_rank = "CLOZE_EVENTS_FD" in os.environ

    def end(*_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)
        name = RANK if is_rank else HEAD
        if not is_rank or os.environ["RANK"] == "0":
            Path(os.environ[OUT], f"{name}.json").write_text(json.dumps(sorted(_named(seen))))
        if not is_rank:
            os._exit(0)  # its ranks die with it
        if os.environ["RANK"] == "0":
            os.kill(os.getppid(), signal.SIGUSR1)
        time.sleep(60)

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event not in ("call", "return"):
            return
        code = frame.f_code
        if code.co_name == "<module>":  # but the program itself, and those that called this
            count = imports[threading.get_ident()] + (1 if event == "call" else -1)
            is_program = frame.f_globals.get("__name__") == "__main__"
            imports[threading.get_ident()] = 0 if is_program else max(0, count)
        elif event == "call":
            seen.add((code, imports[threading.get_ident()] > 0))
            place = f"{code.co_filename}:{code.co_name}"
            if is_rank and place.endswith(FIRST_STEPS):
                end()

    if not is_rank:
        signal.signal(signal.SIGUSR1, end)
    threading.setprofile(profile)
    sys.setprofile(profile)


def _named(seen: set[tuple[CodeType, bool]]) -> set[tuple[str, str, bool]]:
    """Return file, name and whether it ran in an import, of this repository's functions."""
    found = set()
    for code, is_import in list(seen):
        path = _own_file(code.co_filename)
        is_function = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")
        if is_function and path and not path.startswith("tests/"):
            found.add((path, code.co_qualname, is_import))
    return found


def _own_file(name: str) -> str:
    """Return the path of a file of this repository, or of the copy that a run makes; else ""."""
    path = os.path.realpath(name)
    copy = re.match(r".*/\.source/[0-9a-f]+/cloze/", path)
    path = f"{REPOSITORY}/{path[copy.end() :]}" if copy else path
    # A fresh clone has its environment below it.
    is_own = path.startswith(f"{REPOSITORY}/") and "/site-packages/" not in path
    is_own = is_own and os.path.isfile(path)
    return os.path.relpath(path, REPOSITORY) if is_own else ""


def count(*, toy: bool = False) -> dict[str, dict[bool, set[Function]]]:
    """Run, and return the functions by process and by whether an import alone passed them."""
    # the sender of records may outlive the run
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        Path(directory, "sitecustomize.py").write_text(
            "from tests.tools import run_path\nrun_path.watch()\n"
        )
        Path(directory, "toy.yaml").write_text("toy: {}\n")
        environment = {**os.environ, "CLOZE_RUNS_DIR": f"{directory}/runs"}
        # A busy machine, and the site's own file, would add to the path.
        Path(directory, "site.yaml").touch()
        environment |= {
            "CLOZE_SLOTS_DIR": f"{directory}/slots", "CLOZE_SITE": f"{directory}/site.yaml",
        }  # fmt: skip
        paths = [directory, str(REPOSITORY / "src"), str(REPOSITORY)]
        watched = {**environment, OUT: directory, "PYTHONPATH": os.pathsep.join(paths)}
        command, place = [sys.executable, "-c", TOY], directory
        if not toy:
            start, place = [sys.executable, "-m", "cloze", *RUN], str(REPOSITORY)
            before = [*start, "--until", "dataset"]
            subprocess.run(before, env=environment, cwd=place, check=True)
            command = [*start, "--only", "pretrain"]
        done = subprocess.run(command, env=watched, cwd=place, capture_output=toy, text=True)
        if done.returncode or not Path(directory, f"{HEAD}.json").exists():
            raise RuntimeError(f"the run has failed: {done.stderr}")
        return {name: _read(Path(directory, f"{name}.json")) for name in (HEAD, RANK)}


def _read(path: Path) -> dict[bool, set[Function]]:
    rows: list[Any] = json.loads(path.read_text())
    passed = {(file, name) for file, name, is_import in rows if not is_import}
    return {False: passed, True: {(file, name) for file, name, _ in rows} - passed}


def main(arguments: Sequence[str]) -> None:
    counted = count(toy="--toy" in arguments)
    together: set[Function] = set()
    for process, functions in counted.items():
        passed, imported = functions[False], functions[True]
        files = defaultdict(list)
        for file, name in sorted(passed):
            files[file].append(name)
        print(f"{process}: {len(passed)} functions in {len(files)} files;"
              f" {len(imported)} more by imports alone")  # fmt: skip
        for file, names in files.items() if "--list" in arguments else ():
            print(f"    {file}: {' '.join(names)}")
        together |= passed
    print(f"together: {len(together)} functions in {len({file for file, _ in together})} files")


if __name__ == "__main__":
    main(sys.argv[1:])
