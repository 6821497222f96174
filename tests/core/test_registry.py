"""Tables of references."""

from __future__ import annotations

import json
from pkgutil import resolve_name

import pytest

from cloze.core.errors import UsageError
from cloze.core.options import find_entry

TABLE = {"dumps": "json:dumps", "module": "json"}


def test_a_row_leads_to_its_object_or_module() -> None:
    assert find_entry(TABLE, "dumps", "function") is json.dumps
    assert resolve_name("json") is json


def test_an_unknown_row_is_told_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"function \('dump'\) is unknown; did you mean 'dumps'\?"):
        find_entry(TABLE, "dump", "function")
