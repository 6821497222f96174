"""Names stand for what they stood for, and estimates are what they were (recorded.py)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.model import recorded


@pytest.fixture(scope="module")
def now() -> dict[str, dict[str, Any]]:
    return recorded.current()


@pytest.mark.parametrize("table", ["kinds", "tasks", "models", "estimates"])
def test_each_row_is_what_it_was(now: dict[str, dict[str, Any]], table: str) -> None:
    then = json.loads(recorded.FILE.read_text())[table]
    assert now[table].keys() == then.keys(), "a new name: run python -m tests.model.recorded"
    assert {name: row for name, row in now[table].items() if row != then[name]} == {}
