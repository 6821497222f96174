"""Records that a disk has cut or a person has edited: a command says so, and nothing is lost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cloze.core import records
from cloze.flows import cli
from cloze.flows.doctor import runs as doctor
from cloze.flows.run import server_addresses, status_file
from cloze.flows.run.node_reporter import StartedNodes
from cloze.flows.tracking import spool, spool_sender, spool_state

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=3,
)
COMMANDS = (["status"], ["status", "toy"], ["clean", "--delete"], ["cancel", "toy"])
shared = settings(
    max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)


@pytest.fixture
def unfinished(toy_config: str, tmp_path: Path) -> Path:
    """The record of a run whose second node has failed; its build can be continued."""
    (tmp_path / "fault").touch()
    fault = ["--set", f"count.fault={tmp_path / 'fault'}"]
    assert cli.main(["run", toy_config, "--no-prefect", *fault]) == 1
    (path,) = (tmp_path / "runs" / "toy" / "_status").glob("*.json")
    return path


def broken_field(draw: st.DrawFn, content: Mapping[str, Any]) -> dict[str, Any]:
    """Replace or remove a field, of the record or of a node."""
    content = json.loads(json.dumps(content))
    place = draw(st.sampled_from([content, *content["nodes"].values()]))
    name = draw(st.sampled_from(sorted(place)))
    if draw(st.booleans()):
        del place[name]
    else:
        place[name] = draw(json_values)
    return dict(content)


@shared
@given(data=st.data())
def test_any_damage_of_a_record_is_told_and_its_work_is_kept(
    unfinished: Path, capfd: pytest.CaptureFixture[str], data: st.DataObject
) -> None:
    good = unfinished.read_bytes()
    run = unfinished.parent.parent
    kept = {path.name for path in run.iterdir()}
    content = json.loads(good)
    damaged = data.draw(
        st.integers(0, len(good) - 1).map(lambda size: good[:size])
        | json_values.map(lambda value: json.dumps(value).encode())
        | st.composite(broken_field)(content).map(lambda value: json.dumps(value).encode())
    )
    unfinished.write_bytes(damaged)
    try:
        told = [(words, cli.main(words)) for words in COMMANDS]
        said = capfd.readouterr()
        assert "internal error" not in said.err, (told, said.err)
        assert all(code in (0, 2) for _, code in told), (told, said.err)
        assert "No runs in" not in said.out
        if status_file.read_file(unfinished) is None:
            assert "unreadable" in said.out
            assert str(unfinished) in said.err
            assert {path.name for path in run.iterdir()} == kept
            (found,) = [found for found in doctor.stuck() if found.check == "run"]
            assert str(unfinished) in found.observed
    finally:
        unfinished.write_bytes(good)


def test_a_new_start_has_a_new_record_and_resumes(
    unfinished: Path, toy_config: str, capfd: pytest.CaptureFixture[str]
) -> None:
    unfinished.write_bytes(unfinished.read_bytes()[:100])
    assert cli.main(["resume", "toy", "--no-prefect"]) == 3
    assert "start the run again" in capfd.readouterr().err
    assert cli.main(["run", toy_config, "--no-prefect"]) == 0
    assert status_file.read(unfinished.parents[2], "toy")["state"] == "finished"


def test_a_run_without_a_place_for_its_record_ends_as_any_other(
    toy_config: str, tmp_path: Path
) -> None:
    (tmp_path / "runs" / "toy").mkdir(parents=True)
    (tmp_path / "runs" / "toy" / "_status").write_text("")
    assert cli.main(["run", toy_config, "--no-prefect"]) == 0


lines = st.lists(json_values.map(lambda value: json.dumps(value).encode()), max_size=4)
GOOD = {"op": "end", "run": "r", "status": "FINISHED", "attempt": 1, "time": 1}
HALF = [
    b"[]", b"{}", b'"x"', b"\xff\x00", b'{"op": "metrics", "run": "r"}', b'{"op": 3, "run": "r"}',
    b'{"op": "metrics", "run": "r", "metrics": [["a", 1]]}', b'{"reason": 1, "record": {}}', b"",
]  # fmt: skip


@shared
@given(damaged=lines)
@example(damaged=HALF)
def test_any_line_of_the_records_for_mlflow_is_passed_over_or_set_aside(
    tmp_path: Path, damaged: list[bytes]
) -> None:
    content = b"\n".join([*damaged, json.dumps(GOOD).encode(), b""])
    assert spool.whole_records(content) == [GOOD]
    whole = [record for _, record in spool_sender._merge_metrics(content.splitlines(True))]
    assert [record for record in whole if record] == [GOOD]
    directory = tmp_path / "refused"
    directory.mkdir(exist_ok=True)
    entry = json.dumps({"reason": "why", "record": GOOD, "spool": "s"}).encode()
    (directory / "records.jsonl").write_bytes(b"\n".join([*damaged, entry, b""]))
    assert spool_state.count_dead_letters(tmp_path) == {"why": 1}
    assert spool_state.requeue(tmp_path) == 1


@shared
@given(content=json_values.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=9))
def test_small_files_of_a_run_may_hold_anything(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "1-again.sent").write_bytes(content)
    (tmp_path / "1-again.jsonl").write_bytes(b"")
    spool_sender.unsent(tmp_path)
    spool_sender._offset(tmp_path / "1-again.sent")
    (tmp_path / "a.json").write_bytes(content)
    StartedNodes(tmp_path / "a.json")
    assert server_addresses.servers(tmp_path) == {}
    assert records.read_record(content, {"no": str}) is None
