"""Edits that change what code does, and nothing else."""

from __future__ import annotations

import pytest

from tests.tools.edits import Edit, edits_of, is_valid
from tests.tools.mutants import wilson

CODE = '''"""A docstring with 1 and "key"."""

from typing import Literal

__all__ = ["first", "second"]
LIMIT: int = 3


def work(items: list[Literal["a"]], flag: bool = False) -> int:
    """Return 1, or "x"."""
    total = 0
    for item in items:
        if not item or item == "key":
            continue
        total += len(item[1:])
    if total > LIMIT and flag:
        raise ValueError(f"{total} is more than {LIMIT}, use 'fewer'")
    log.warning("so many: 7")
    try:
        stream.flush()
    except OSError:
        return None
    return max(total, 0)
'''


@pytest.fixture
def edits() -> list[Edit]:
    return edits_of(CODE.encode())


def changed(edits: list[Edit], line: int) -> set[str]:
    """What becomes of a line, by all its edits."""
    found = set()
    for edit in edits:
        if edit.line == line:
            found.add(edit.apply(CODE.encode()).decode().splitlines()[line - 1].strip())
    return found


def test_each_edit_is_another_program(edits: list[Edit]) -> None:
    assert len(edits) > 25
    assert all(is_valid(edit, CODE.encode()) for edit in edits)
    assert not is_valid(Edit(1, "none", 0, 0, "", 1), CODE.encode())
    assert not is_valid(Edit(1, "syntax", 0, 0, "(", 1), CODE.encode())


def test_text_for_people_and_hints_are_left_alone(edits: list[Edit]) -> None:
    number_of_line = {line: number for number, line in enumerate(CODE.splitlines(), start=1)}
    for line in ('"""A docstring with 1 and "key"."""', '__all__ = ["first", "second"]',
                 '    """Return 1, or "x"."""', '    log.warning("so many: 7")'):  # fmt: skip
        assert changed(edits, number_of_line[line]) == set(), line
    raised = next(number for line, number in number_of_line.items() if "raise" in line)
    assert changed(edits, raised) == {"pass"}
    defined = next(number for line, number in number_of_line.items() if line.startswith("def"))
    assert {line.replace(" ", "") for line in changed(edits, defined)} == {
        'defwork(items:list[Literal["a"]],flag:bool=True)->int:'
    }


@pytest.mark.parametrize(
    ("line", "some"),
    [
        ("        if not item or item == \"key\":", {"if (not item and item == 'key'):", "if (item) or item == \"key\":", "if (not item):", "if True:"}),
        ("            continue", {"break"}),
        ("        total += len(item[1:])", {"total = len(item[1:])", "total -= len(item[1:])", "total += len(item[1 + 1:])", "total += len(item[2:])"}),
        ("    if total > LIMIT and flag:", {"if (total >= LIMIT) and flag:", "if (total > LIMIT):", "if (flag):", "if False:"}),
        ("        stream.flush()", {"pass"}),
        ("    except OSError:", {"except FileNotFoundError:"}),
        ("    return max(total, 0)", {"return None", "return min(total, 0)", "return max(total, 1)"}),
    ],
)  # fmt: skip
def test_each_kind_of_bug_is_made(edits: list[Edit], line: str, some: set[str]) -> None:
    found = changed(edits, CODE.splitlines().index(line) + 1)
    assert some <= found, found


def test_intervals_are_wilsons() -> None:
    assert wilson(18, 36) == pytest.approx((0.345, 0.655), abs=1e-3)
    assert wilson(0, 10)[0] == 0.0
    assert wilson(10, 10)[1] == 1.0
