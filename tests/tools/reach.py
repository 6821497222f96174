"""Run the tests that reach what changed, nearest first: `make test-changed`.

    python -m tests.tools.reach                         against the branch's base in `main`
    python -m tests.tools.reach --changed core/lock.py  as if this file had changed
    python -m tests.tools.reach --list                  print the choice alone

Files are run in the order of their distance in imports (see import_graph.py), up to a budget of
seconds by tests/durations.json; the rest is left to `make test`, and its number is printed. Ten
tests that start the main job are run always.
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.tools.import_graph import NOWHERE, ImportGraph, Node, Step

REPOSITORY = Path(__file__).resolve().parents[2]
BUDGET = 60.0  # seconds of tests, beside MAIN_JOB
UNKNOWN = 5.0  # seconds of a file that is not recorded
FAR = 6.0  # a test that is further reaches nearly everything
# Lines of a file that did not change are this much further than those that did.
SAME_FILE = 2.0
# They start the main job: from raw text to a trained checkpoint and its use.
MAIN_JOB = (
    "tests/pipeline/corpus/test_stage.py::test_a_page_that_is_there_twice",
    "tests/pipeline/vocab/test_stage.py::test_what_it_holds",
    "tests/pipeline/dataset/test_stage.py::test_the_summary_adds_up",
    "tests/model/train/loop/test_loop.py::test_a_run_learns_and_leaves_a_finished_artifact",
    "tests/model/train/loop/test_loop.py::test_stopping_and_going_on_changes_no_byte",
    "tests/model/tasks/test_stages.py::test_it_learns_and_says_so",
    "tests/model/use/test_fill_mask.py::test_scores_are_the_probabilities_of_the_model",
    "tests/flows/test_session.py::test_a_run_makes_what_is_not_made",
    "tests/flows/commands/test_run.py::test_nothing_to_do_starts_no_server",
    "tests/flows/commands/test_options.py::test_help_imports_nothing_heavy",
)


@dataclass(frozen=True, slots=True)
class Reached:
    """A test file that reaches a change, and the chain of uses from it."""

    path: str
    distance: float
    seconds: float
    chain: str


def repository_files(root: Path) -> list[str]:
    """Return the files that git has or would add."""
    listed = _git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    return [name for name in listed.split("\0") if name and (root / name).is_file()]


def read_graph(root: Path) -> ImportGraph:
    """Return the uses of all names, from the files that git has or would add."""
    gc.disable()  # a million objects that are all kept: collecting takes three times as long
    graph = ImportGraph(root, repository_files(root), root / "build" / "facts")
    gc.freeze()
    gc.enable()
    return graph


def changed_lines(root: Path) -> dict[str, list[range]]:
    """Return the changed lines of each file, against the merge base with `main`; new files have
    all lines.
    """
    base = _git(root, "merge-base", "main", "HEAD").strip() or "HEAD"
    found: dict[str, list[range]] = {}
    path = ""
    for line in _git(root, "diff", "-U0", "--no-renames", base).splitlines():
        if line.startswith("--- a/"):
            path = line[6:]
            found[path] = []  # a file that is gone has no line
        elif line.startswith("+++ b/"):
            path = line[6:]
            found.setdefault(path, [])
        elif match := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            first, count = int(match[1]), int(match[2] or 1)
            found[path].append(range(first, first + max(count, 2)))
    for name in _git(root, "ls-files", "-z", "--others", "--exclude-standard").split("\0")[:-1]:
        found[name] = [range(1, len((root / name).read_bytes().splitlines()) + 1)]
    return found


def start_nodes(graph: ImportGraph, changed: Mapping[str, Sequence[range]]) -> dict[Node, float]:
    """Return the nodes that changed, and the other nodes of their files further away."""
    found: dict[Node, float] = {}
    for path, lines in changed.items():
        for node in graph.nodes_of(path):
            found[node] = SAME_FILE if lines and path in graph.sources else 0.0
        source = graph.sources.get(path)
        names = (
            {source.name_at(n) for part in lines for n in part if n <= source.line_count}
            if source
            else ()
        )
        found.update({(path, name): 0.0 for name in names if name is not None})
    return found


def reached_tests(
    graph: ImportGraph, start: Mapping[Node, float], seconds: Mapping[str, float]
) -> list[Reached]:
    """Return the test files that reach one of the nodes, nearest first, then the quickest."""
    steps = graph.steps_to(start)
    found = []
    for path in graph.tests():
        node = (path, "*")
        if node in steps:
            chain = describe_chain(steps, node)
            found.append(Reached(path, steps[node].distance, seconds[path], chain))
    return sorted(found, key=lambda test: (round(test.distance), test.seconds))


def describe_chain(steps: Mapping[Node, Step], node: Node) -> str:
    """Return the way from a test to the change, one word per file: `file (name) → …`."""
    said = []
    here = node
    while here != NOWHERE:
        step = steps[here]
        if step.node[0] != here[0]:
            name = "" if here[1] in ("*", "") else f" ({here[1]})"
            said.append((here[0] + name if here != node else "") + f" {step.why}".rstrip())
        here = step.node
    return " → ".join(part.strip() for part in said if part.strip()).removesuffix(" changed")


def expected_seconds(root: Path, graph: ImportGraph) -> dict[str, float]:
    """Return the seconds of each test file as they were recorded last."""
    recorded: dict[str, float] = {}
    durations = root / "tests" / "durations.json"
    if durations.exists():
        recorded = json.loads(durations.read_text())
    return {path: recorded.get(path, UNKNOWN) for path in graph.tests()}


def choose(tests: Sequence[Reached], budget: float) -> tuple[list[Reached], list[Reached]]:
    """Return the near tests that fit into the budget, in their order, and the others."""
    chosen: list[Reached] = []
    for test in tests:
        if sum(other.seconds for other in chosen) + test.seconds <= budget and test.distance <= FAR:
            chosen.append(test)
    return chosen, [test for test in tests if test not in chosen]


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the tests that reach what changed.")
    parser.add_argument("--changed", nargs="*", default=[], metavar="PATH")
    parser.add_argument("--budget", type=float, default=BUDGET, metavar="SECONDS")
    parser.add_argument("--list", action="store_true", help="Run nothing.")
    arguments, more = parser.parse_known_args()
    graph = read_graph(REPOSITORY)
    given: dict[str, list[range]] = {name: [] for name in arguments.changed}
    changed = given or changed_lines(REPOSITORY)
    for name in changed:
        if name not in graph.files and arguments.changed:
            parser.error(f"{name} is no file of the repository; paths start at its root")
    seconds = expected_seconds(REPOSITORY, graph)
    reached = reached_tests(graph, start_nodes(graph, changed), seconds)
    chosen, left = choose(reached, arguments.budget)
    print(f"changed: {', '.join(sorted(changed)) or 'nothing'}")
    for test in chosen:
        print(f"  {test.path} ({test.seconds:.0f} s): {test.chain}")
    print(f"and {len(MAIN_JOB)} tests that start the main job")
    if left:
        print(
            f"left to `make test`: {len(left)} more files ({sum(t.seconds for t in left):.0f} s), "
            f"the nearest is {left[0].path} ({left[0].seconds:.0f} s): {left[0].chain}"
        )
    if arguments.list:
        return 0
    names = [*(test.path for test in chosen), *MAIN_JOB]
    command = [sys.executable, "-m", "pytest", "-m", "not soak", *more, *names]
    return subprocess.run(command, cwd=REPOSITORY, check=False).returncode if names else 0


def _git(root: Path, *words: str) -> str:
    words = ("-c", "core.quotePath=off", *words)  # names of files in other scripts
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
