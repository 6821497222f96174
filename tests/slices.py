"""Which tests `make test` runs, which of the others a slice has, and in which order.

`make test` keeps every promise once. What repeats a mechanism on more rows (families, engines,
languages, kills), or takes minutes, is marked `soak`: `make test-all` runs it, whole or in slices.
`tests/durations.json` has the seconds of files, and of tests that take a
second or more, as `--record-durations` wrote them last.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parent
DURATIONS = FOLDER / "durations.json"
TABLE = FOLDER / "README.md"
# Files that share a setup of many seconds are one worker's: by its name, how their paths begin.
ON_PREFECT = ("late_suspend", "admin", "decisions", "deploy", "forms", "prefect.", "stopping.")
TOGETHER = {
    "a Prefect server": tuple(f"tests/operations/test_{name}" for name in ON_PREFECT),
}
MARK = "<!-- generated: make tests-recorded -->"


def few(values: Iterable[Any], *kept: Any) -> list[Any]:
    """Parameters of which `make test` runs those in `kept`; the others are marked `soak`.

    `kept` names a value by itself, by the first of a tuple, or by the id of a `pytest.param`.
    """
    rows, seen = [], set()
    for value in values:
        param = value if hasattr(value, "marks") else None
        own = param.values if param else value if isinstance(value, tuple) else (value,)
        name = param.id if param and param.id else own[0]
        seen.add(name)
        marks = () if name in kept else (pytest.mark.soak,)
        rows.append(
            pytest.param(
                *own, marks=(*(param.marks if param else ()), *marks), id=param and param.id
            )
        )
    if missing := set(kept) - seen:
        raise ValueError(f"no value is {missing}: {seen}")
    return rows


def file_of(nodeid: str) -> str:
    """The file of a test, from the repository's root."""
    return nodeid.partition("::")[0]


def group_of(nodeid: str) -> str:
    """What one worker runs as a whole: a file, or those that share a setup."""
    file = file_of(nodeid)
    return next((name for name, starts in TOGETHER.items() if file.startswith(starts)), file)


def is_left_out(item: pytest.Item) -> bool:
    """Whether `make test` leaves this test to `make test-all`."""
    return item.get_closest_marker("soak") is not None


def read_durations() -> dict[str, float]:
    """Seconds by file and by long test."""
    durations: dict[str, float] = json.loads(DURATIONS.read_text()) if DURATIONS.exists() else {}
    return durations


def write_durations(seconds: Mapping[str, float]) -> None:
    """Record the seconds by test; files that did not run keep what they had."""
    by_file: defaultdict[str, float] = defaultdict(float)
    for nodeid, taken in seconds.items():
        by_file[file_of(nodeid)] += taken
    kept = {
        name: taken
        for name, taken in read_durations().items()
        if file_of(name) not in by_file and (FOLDER.parent / file_of(name)).exists()
    }
    long = {nodeid: taken for nodeid, taken in seconds.items() if taken >= 1}
    rounded = {name: round(taken, 1) for name, taken in {**kept, **by_file, **long}.items()}
    DURATIONS.write_text(json.dumps(dict(sorted(rounded.items())), indent=0) + "\n")


def longest_first(items: list[pytest.Item], durations: Mapping[str, float]) -> None:
    """Sort: at the end no worker waits for another's long group."""
    groups: defaultdict[str, float] = defaultdict(float)
    for file in {file_of(item.nodeid) for item in items}:
        groups[group_of(file)] += durations.get(file, 1.0)
    items.sort(key=lambda item: (-groups[group_of(item.nodeid)], group_of(item.nodeid)))


def slices_of(
    items: Sequence[pytest.Item], count: int, durations: Mapping[str, float]
) -> dict[str, int]:
    """The slice of each file: the longest ones first, each to the slice that has least."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for item in items:
        seconds[file_of(item.nodeid)] += durations.get(item.nodeid, 0.5)
    filled = [0.0] * count
    places = {}
    for file in sorted(seconds, key=lambda file: (-seconds[file], file)):
        places[file] = filled.index(min(filled))
        filled[places[file]] += seconds[file]
    return places


def draw_table(items: Sequence[pytest.Item]) -> str:
    """Markdown: of each test function that is not run whole, what `make test` runs and leaves."""
    counts: defaultdict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for item in items:
        file, _, test = item.nodeid.partition("::")
        counts[file, test.partition("[")[0]][is_left_out(item)] += 1
    rows = [
        f"| `{file.removeprefix('tests/')}` | `{test}` | {here} | {left} |"
        for (file, test), (here, left) in sorted(counts.items())
        if left
    ]
    return "\n".join(
        ["| file | test | `make test` | `make test-all` |", "|---|---|---|---|", *rows]
    )


def write_table(items: Sequence[pytest.Item]) -> None:
    """Renew the generated part of `tests/README.md`."""
    text = TABLE.read_text()
    start = text.index(MARK) + len(MARK)
    TABLE.write_text(f"{text[:start]}\n\n{draw_table(items)}\n")
