"""Tests of `make test` that want the Prefect server of this folder are one worker's: another worker
would start another server.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests import slices

HERE = Path(__file__).parent


def runs_on_the_server(path: Path) -> list[str]:
    """The file's tests with the fixture `operations` that are not marked soak."""
    found = []
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            marks = {ast.unparse(mark) for mark in node.decorator_list}
            names = {argument.arg for argument in node.args.args}
            if "operations" in names and "pytest.mark.soak" not in marks:
                found.append(node.name)
    return found


@pytest.mark.parametrize("path", sorted(HERE.glob("test_*.py")), ids=lambda path: path.stem)
def test_it_is_in_the_group_if_it_uses_the_server(path: Path) -> None:
    group = slices.group_of(f"tests/operations/{path.name}::test_x")
    if used := runs_on_the_server(path):
        assert group == "a Prefect server", used


def test_others_are_their_own_group() -> None:
    assert slices.group_of("tests/operations/test_ui.py::test_x") == "tests/operations/test_ui.py"
