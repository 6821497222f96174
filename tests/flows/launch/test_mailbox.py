"""Events between machines: whole lines in order, on a disk and on an object store."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from cloze.flows.launch import event_files


@pytest.fixture(params=["disk", "store"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path) if request.param == "disk" else f"memory://{uuid.uuid4().hex}"


def test_what_is_sent_is_read_once_and_in_order(place: str) -> None:
    inbox = event_files.EventReader(f"{place}/node0")
    assert inbox.read() == []
    outbox = event_files.EventWriter(f"{place}/node0")
    outbox.send([{"rank": 0, "progress": [1, 2]}, {"rank": 1}])
    assert inbox.read() == [{"rank": 0, "progress": [1, 2]}, {"rank": 1}]
    outbox.send([])
    assert inbox.read() == []
    outbox.send([{"ended": 0}])
    outbox.send([{"done": True}])
    assert inbox.read() == [{"ended": 0}, {"done": True}]
    assert event_files.EventReader(f"{place}/node0").read()[-1] == {
        "done": True
    }  # who comes late reads all of it


def test_half_a_line_waits_for_its_other_half(tmp_path: Path) -> None:
    inbox, file = event_files.EventReader(str(tmp_path / "node0")), tmp_path / "node0.jsonl"
    file.write_bytes(b'{"a": 1}\n{"b"')
    assert inbox.read() == [{"a": 1}]
    with file.open("ab") as stream:
        stream.write(b": 2}\n")
    assert inbox.read() == [{"b": 2}]


def test_a_file_is_there_whole_or_not_at_all(place: str) -> None:
    assert event_files.read_json(f"{place}/go.json") is None
    assert event_files.peek(f"{place}/beat0") == ""
    event_files.write_json(f"{place}/go.json", {"port": 7})
    assert event_files.read_json(f"{place}/go.json") == {"port": 7}
