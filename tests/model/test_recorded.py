"""Names stand for what they stood for: see tests/model/recorded.py."""

from __future__ import annotations

import json

import pytest

from tests.model import recorded


@pytest.mark.parametrize("table", ["kinds", "tasks", "models"])
def test_a_name_stands_for_what_it_stood_for(table: str) -> None:
    then, now = json.loads(recorded.FILE.read_text())[table], recorded.current()[table]
    assert now.keys() == then.keys(), "a new name: run python -m tests.model.recorded"
    assert {name: row for name, row in now.items() if row != then[name]} == {}
