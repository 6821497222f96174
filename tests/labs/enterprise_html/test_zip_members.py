"""A damaged member of a ZIP is left out alone; any other error is no damage and goes on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cloze.core.errors import DataError
from cloze.labs.enterprise_html import reader
from cloze.pipeline.corpus.readers.streams import CorruptStreamError


def reading(monkeypatch: pytest.MonkeyPatch, fault: Exception, side: int) -> tuple[Any, list[Any]]:
    """A ZIP of three members, of which the second has a fault, and the damage that is recorded."""
    members = [(name, 1, name) for name in "abc"]
    monkeypatch.setattr(reader, "zip_members", lambda *file: iter(members))
    damage: list[Any] = []
    found: Any = object.__new__(reader._Reading)
    found._source = SimpleNamespace(file=lambda: ("file",), side=side)
    found._tally = SimpleNamespace(
        record_damage=lambda *values, **named: damage.append((values, named))
    )

    def member(name: str, size: int, content: str) -> Any:
        yield f"{name}1"
        if name == "b":
            raise fault
        yield f"{name}2"

    monkeypatch.setattr(reader._Reading, "_member", lambda self, *member_of: member(*member_of))
    return found, damage


@pytest.mark.parametrize("side", [0, 1])
def test_a_damaged_member_is_recorded_once_and_the_others_are_read(
    monkeypatch: pytest.MonkeyPatch, side: int
) -> None:
    fault = CorruptStreamError("truncated", "it ends early", 7)
    found, damage = reading(monkeypatch, fault, side)
    assert list(found._zip()) == ["a1", "a2", "b1", "c1", "c2"]
    assert damage == [((fault.reason, str(fault)), {"offset": fault.offset})] * (side == 0)


@pytest.mark.parametrize(
    "fault", [ValueError("ours"), DataError("stop at damage"), OSError("disk")]
)
def test_another_error_is_no_damage(monkeypatch: pytest.MonkeyPatch, fault: Exception) -> None:
    found, damage = reading(monkeypatch, fault, 0)
    with pytest.raises(type(fault), match=str(fault)):
        list(found._zip())
    assert damage == []
