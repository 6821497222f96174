"""Change lines of the product at random, and see whether a test fails: `make mutants N=20`.

    python -m tests.tools.mutants --number 20 --seed 57 core pipeline/dataset
    python -m tests.tools.mutants --again            what survived the last time

Each line has one edit (edits.py) in a copy of the repository, never in the repository itself. The
test files that reach the line (import_graph.py) run against it, nearest and quickest first, until
one fails or the limit of CPU seconds is spent. A test counts only if it passes without the edit.
Nothing else should run meanwhile: a test that fails on time would count as one that sees.

The results are in build/mutants.json: a surviving line is a test that is missing, dead code, or an
edit that changes nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue

import psutil

from tests import warm
from tests.tools import reach
from tests.tools.edits import Edit, edits_of, is_valid
from tests.tools.import_graph import ImportGraph
from tests.tools.source_file import PRODUCT

SEED = 57
LIMIT = 60.0  # CPU seconds of tests for a line; most that are killed are so within twenty
CHUNK = 12.0  # expected seconds of test files that run in one process of pytest
STANDSTILL = 150.0  # seconds without progress, after which a test hangs
STEP = 4.0
START = 1.0  # seconds until pytest has imported what a file needs
RESULTS = reach.REPOSITORY / "build" / "mutants.json"
# Packages whose kills are told apart, then the others by their folder.
STRICT = ("pipeline/dataset", "model/train", "flows/run")
# A parameter in brackets may hold blanks.
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+\.py(?:::.*?)?)(?: - .*)?$", re.MULTILINE)
_PASSED = re.compile(r"^PASSED (\S+\.py::.*)$", re.MULTILINE)


@dataclass
class Mutant:
    """A line with an edit, and what the tests said."""

    path: str
    line: int
    edit: Edit
    what: str
    outcome: str = "survived"  # or killed, timed out
    test: str = ""  # that failed, or how many files ran
    seconds: float = 0.0  # of CPU


@dataclass
class Run:
    """What a process of pytest said."""

    failed: str = ""  # a test, or a file that cannot be imported
    hung: bool = False
    seconds: float = 0.0
    passed: tuple[str, ...] = ()


class Copy:
    """A copy of the repository in which tests run."""

    def __init__(self, root: Path, names: Sequence[str]) -> None:
        self.root = root
        for name in names:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(reach.REPOSITORY / name, root / name)
        for name in PRODUCT:
            (root / "src" / "cloze" / name).symlink_to(Path("..", "..", name))
        (root / "tmp").mkdir()

    def pytest(self, tests: Sequence[str], limit: float, without: Iterable[str] = ()) -> Run:
        """Run tests but those `without` until one fails, with at most so many CPU seconds."""
        nursery = warm.nursery()
        environment = {
            **os.environ,
            **nursery.environment,
            "PYTHONPATH": os.pathsep.join([str(self.root / "src"), str(self.root)]),
            "PYTEST_DEBUG_TEMPROOT": str(self.root / "tmp"),
        }
        command = [
            nursery.python(), "-m", "pytest", "-x", "-m", "not soak", "-W",
            "ignore::pytest.PytestAssertRewriteWarning", "-p", "no:cacheprovider",
            "--tb=line", "-rfEp", *(f"--deselect={test}" for test in without), *tests,
        ]  # fmt: skip
        with tempfile.TemporaryFile("w+") as output:
            process = subprocess.Popen(
                command, cwd=self.root, env=environment, stdout=output, stderr=subprocess.STDOUT
            )
            hung, seconds = _watch(process, limit)
            output.seek(0)
            said = output.read()
        if hung:
            return Run(hung=True, seconds=seconds)
        failed = _FAILED.search(said)
        if process.returncode not in (0, 5):  # 5: all tests of the files are deselected
            name = failed[1] if failed else tests[0]
            return Run(name, "Timeout" in said, seconds, tuple(_PASSED.findall(said)))
        return Run(seconds=seconds, passed=tuple(_PASSED.findall(said)))


@dataclass
class Laboratory:
    """Copies of the repository, and what is known of the tests."""

    graph: ImportGraph
    seconds: dict[str, float]
    limit: float
    copies: SimpleQueue[Copy]
    unchanged: Copy
    passes: dict[str, bool] = field(default_factory=dict)

    def examine(self, mutant: Mutant) -> Mutant:
        """Run the tests that reach the line, with its edit, in a copy that nobody uses."""
        copy = self.copies.get()
        file = copy.root / mutant.path
        content = file.read_bytes()
        try:
            file.write_bytes(mutant.edit.apply(content))
            # Compiled code is known by size and second.
            os.utime(file, (time.time(), file.stat().st_mtime + random.randrange(1 << 20)))
            self._run(mutant, copy)
        finally:
            file.write_bytes(content)
            os.utime(file, (time.time(), file.stat().st_mtime - random.randrange(1 << 20)))
            self.copies.put(copy)
        return mutant

    def _run(self, mutant: Mutant, copy: Copy) -> None:
        ran, files = 0, self.nearest(mutant)
        for chunk in _chunks(files, self.seconds, self.limit):
            run = self._run_chunk(mutant, copy, chunk)
            if run.hung and not self.unchanged.pytest(chunk, run.seconds).hung:
                mutant.outcome, mutant.test = "timed out", run.failed or chunk[0]
                return
            if run.failed and not run.hung:
                mutant.outcome, mutant.test = "killed", run.failed
                return
            ran += 0 if run.hung else len(chunk)
            if run.hung or mutant.seconds > self.limit:
                break
        mutant.test = f"{ran} of {len(files)} files"

    def _run_chunk(self, mutant: Mutant, copy: Copy, chunk: Sequence[str]) -> Run:
        """Run test files; what fails without the edit, too, is left out and hides no other test."""
        while True:
            left = self.limit * 1.5 - mutant.seconds
            failing = [test for test, passes in self.passes.items() if not passes]
            run = copy.pytest(chunk, max(left, 30.0), failing)
            mutant.seconds += run.seconds
            self.passes.update(dict.fromkeys(run.passed, True))
            if not run.failed or run.hung or self._passes_unchanged(run.failed):
                return run
            if run.failed in failing:  # a file that cannot be imported at all
                return replace(run, failed="")

    def nearest(self, mutant: Mutant) -> list[str]:
        """Return the test files that reach the line, by their distance and seconds.

        A file that is named after the module is the nearest; folders that mirror those of the
        line are nearer. A step further is worth as much as `STEP` times the seconds.
        """
        name = self.graph.sources[mutant.path].name_at(mutant.line)
        tests = reach.reached_tests(self.graph, {(mutant.path, name or ""): 0.0}, self.seconds)
        own = f"test_{Path(mutant.path).stem}.py"

        def cost(test: reach.Reached) -> float:
            folders = zip(Path(test.path).parts[1:-1], Path(mutant.path).parts, strict=False)
            shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], folders))
            is_own = shared and Path(test.path).name == own
            distance = -2.0 if is_own else test.distance - shared / 2
            return (test.seconds + START) * float(STEP**distance)

        return [test.path for test in sorted(tests, key=cost)]

    def _passes_unchanged(self, test: str) -> bool:
        if test not in self.passes:
            run = self.unchanged.pytest([test], self.limit)
            self.passes[test] = not run.failed and not run.hung
            if not self.passes[test]:
                print(f"{test} fails without an edit, too", flush=True)
        return self.passes[test]


def draw(names: Sequence[str], number: int, seed: int) -> list[Mutant]:
    """Return `number` lines of these files with an edit each, all lines being equally likely."""
    lines: list[tuple[str, int]] = []
    edits: dict[tuple[str, int], list[Edit]] = {}
    for name in names:
        for edit in edits_of((reach.REPOSITORY / name).read_bytes()):
            edits.setdefault((name, edit.line), []).append(edit)
    lines = sorted(edits)
    chance = random.Random(seed)
    chance.shuffle(lines)
    found: list[Mutant] = []
    for name, line in lines:
        content = (reach.REPOSITORY / name).read_bytes()
        # Each kind is equally likely, though a line has more constants than conditions.
        kind = chance.choice(sorted({edit.kind for edit in edits[name, line]}))
        edit = chance.choice([edit for edit in edits[name, line] if edit.kind == kind])
        if is_valid(edit, content):
            found.append(Mutant(name, line, edit, edit.describe(content)))
        if len(found) == number:
            break
    return found


def wilson(killed: int, number: int) -> tuple[float, float]:
    """Return the 95 % interval of a rate."""
    z = 1.96
    centre = (killed + z * z / 2) / (number + z * z)
    half = z / (number + z * z) * math.sqrt(killed * (number - killed) / number + z * z / 4)
    return max(0.0, centre - half), min(1.0, centre + half)


def package_of(path: str) -> str:
    """Return the package by which a line is counted."""
    return next((name for name in STRICT if path.startswith(name + "/")), path.split("/")[0])


def table(mutants: Sequence[Mutant]) -> Iterator[str]:
    """Yield the rates of kills by package, then of all."""
    for package in [*sorted({package_of(m.path) for m in mutants}), ""]:
        of_it = [m for m in mutants if not package or package_of(m.path) == package]
        killed = sum(m.outcome != "survived" for m in of_it)
        low, high = wilson(killed, len(of_it))
        yield (
            f"{package or 'all':18} {killed:3} of {len(of_it):3} killed, "
            f"{killed / len(of_it):.0%} ({low:.0%} to {high:.0%})"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description="See whether tests see changed lines.")
    parser.add_argument(
        "paths", nargs="*", default=PRODUCT, help="Files or folders of the product."
    )
    parser.add_argument("--number", type=int, default=20)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--limit", type=float, default=LIMIT, metavar="SECONDS")
    parser.add_argument("--jobs", type=int, default=1, help="Lines at the same time.")
    parser.add_argument("--again", action="store_true", help="Only what survived the last time.")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    graph = reach.read_graph(reach.REPOSITORY)
    names = sorted(graph.files)
    wanted = tuple(path.rstrip("/") for path in options.paths)
    files = [
        name
        for name in sorted(graph.sources)
        if name.startswith(PRODUCT) and any(name == w or name.startswith(w + "/") for w in wanted)
    ]
    if not files:
        parser.error(f"no product code in {' '.join(wanted)}")
    old = _read(options.results) if options.again else []
    survived = [_fresh(mutant) for mutant in old if mutant.outcome == "survived"]
    drawn = survived if options.again else draw(files, options.number, options.seed)
    warm.nursery()  # before there are threads
    with tempfile.TemporaryDirectory(dir=_memory(), prefix="cloze-mutants-") as place:
        os.chmod(place, 0o755)  # tests run programs of another account
        copies: SimpleQueue[Copy] = SimpleQueue()
        for number in range(options.jobs):
            copies.put(Copy(Path(place, str(number)), names))
        seconds = reach.expected_seconds(reach.REPOSITORY, graph)
        unchanged = Copy(Path(place, "unchanged"), names)
        laboratory = Laboratory(graph, seconds, options.limit, copies, unchanged)
        done: list[Mutant] = []
        with ThreadPoolExecutor(options.jobs) as pool:
            for future in as_completed([pool.submit(laboratory.examine, m) for m in drawn]):
                mutant = future.result()
                done.append(mutant)
                print(
                    f"{mutant.path}:{mutant.line}  {mutant.what}\n"
                    f"    {mutant.outcome} ({mutant.test}, {mutant.seconds:.0f} s)",
                    flush=True,
                )
                _write(options.results, old, done)
    results = _read(options.results)
    print("\n".join(table(results)))
    return 0


def _fresh(mutant: Mutant) -> Mutant:
    return Mutant(mutant.path, mutant.line, mutant.edit, mutant.what)


def _chunks(files: Sequence[str], seconds: dict[str, float], limit: float) -> Iterator[list[str]]:
    """Yield files that are run together; none that takes longer than the limit but the first."""
    chunk: list[str] = []
    for file in files:
        if seconds[file] > limit and file != files[0]:
            continue
        chunk.append(file)
        if sum(seconds[name] for name in chunk) >= CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _watch(process: subprocess.Popen[bytes], limit: float) -> tuple[bool, float]:
    """Wait for a process and all that descends from it; return whether it hung, and its CPU
    seconds.
    """
    spent: dict[psutil.Process, float] = {}
    moved, total = time.monotonic(), 0.0
    while process.poll() is None:
        time.sleep(0.5)
        for one in warm.family(process.pid):
            try:
                times = one.cpu_times()
                spent[one] = times.user + times.system
            except psutil.Error:
                pass
        if sum(spent.values()) > total + 0.2:
            moved, total = time.monotonic(), sum(spent.values())
        if total > limit or time.monotonic() - moved > STANDSTILL:
            break
    hung = process.poll() is None
    for one in spent:  # and what outlives its test
        with contextlib.suppress(psutil.Error):
            one.kill()
    process.kill()
    process.wait()
    return hung, sum(spent.values())


def _memory() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _read(path: Path) -> list[Mutant]:
    rows = json.loads(path.read_text()) if path.exists() else []
    return [Mutant(**{**row, "edit": Edit(**row["edit"])}) for row in rows]


def _write(path: Path, old: Sequence[Mutant], done: Sequence[Mutant]) -> None:
    rows = {(m.path, m.line, m.what): m for m in (*old, *done)}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps([asdict(m) for m in rows.values()], indent=1))


if __name__ == "__main__":
    sys.exit(main())
