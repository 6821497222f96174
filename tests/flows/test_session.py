"""A session: runs what is planned, forces once over all tries, and knows what a stage raised."""

from __future__ import annotations

import io
import os
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cloze.core import storage
from cloze.core.artifacts import claim, lineage
from cloze.core.errors import UsageError
from cloze.flows import cli
from cloze.flows.graph.config import RunConfig
from cloze.flows.machine import slots
from cloze.flows.run import node_reporter, status_file
from cloze.flows.run.session import RunParameters, RunSession, run_plain
from cloze.flows.views import run_tables as views
from tests.flows import toy_run
from tests.flows.ui.waiting import until


def session(config: str, run_id: str | None = None, **parameters: object) -> RunSession:
    return RunSession(RunParameters.model_validate({"config": config, **parameters}), run_id=run_id)


def test_parameters_are_read_as_the_form_gives_them(toy_config: str) -> None:
    assert RunParameters(overrides={"pretrain.steps": 3}).overrides == {"pretrain": {"steps": 3}}
    assert RunParameters.model_validate({"only": "count", "force": None}).only == ["count"]
    with pytest.raises(UsageError, match="did you mean 'letters'"):
        session(toy_config, only="leters")


def test_a_run_makes_what_is_not_made(toy_config: str) -> None:
    results = run_plain(session(toy_config))
    assert [(name, result.cached) for name, result in results.items()] == [
        ("letters", False),
        ("count", False),
    ]
    assert session(toy_config).nothing_to_do
    assert not session(toy_config, overrides={"letters.size": 9}).nothing_to_do


def test_a_training_s_line_is_shown_in_a_run(toy_config: str) -> None:
    screen = Console(file=io.StringIO(), width=80)
    line = {"step": 1200, "learning_rate": 1e-3, "loss": 2.5, "heldout_loss": 2.25}
    run_plain(
        RunSession(
            RunParameters.model_validate(
                {"config": toy_config, "overrides": {"letters.told": line}}
            ),
            screen,
        )
    )
    assert isinstance(screen.file, io.StringIO)
    assert (
        "letters step 1,200  loss 2.500  held out 2.250  lr 1.0e-03"
        in screen.file.getvalue().splitlines()
    )


def test_a_retry_forces_only_what_is_left(toy_config: str, tmp_path: Path) -> None:
    """The same flow run started again by another process, as Prefect's retry does."""
    run_plain(session(toy_config, overrides={"count.fault": "stop"}))
    toy_run.RAN.clear()
    parameters = {"overrides": {"count.fault": "stop"}, "start_from": "letters", "run_id": "flow-1"}
    (tmp_path / "stop").touch()
    first = session(toy_config, **parameters)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="forbids it"):
        run_plain(first)
    assert [step.reason for step in session(toy_config, **parameters).steps] == ["", "not made yet"]  # type: ignore[arg-type]
    run_plain(session(toy_config, **parameters))  # type: ignore[arg-type]
    assert toy_run.RAN == ["letters", "count", "count"]
    assert list((first.config.directory / node_reporter.DIRECTORY).glob("*")) == []
    run_plain(session(toy_config, **{**parameters, "run_id": "flow-2"}))  # type: ignore[arg-type]
    assert toy_run.RAN[3:] == ["letters", "count"]


def test_readers_of_a_forced_node_run_again_if_its_content_differs(
    toy_config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_plain(session(toy_config))
    toy_run.RAN.clear()
    results = run_plain(session(toy_config, force="letters"))
    assert toy_run.RAN == ["letters"]
    assert results["count"].cached
    monkeypatch.setattr(toy_run, "LETTER", ["b"])
    again = session(toy_config, force="letters")
    assert [step.reason for step in again.steps] == ["forced", ""]
    results = run_plain(again)
    assert toy_run.RAN == ["letters", "letters", "count"]
    assert not results["count"].cached
    assert session(toy_config).nothing_to_do


def test_readers_of_a_forced_node_run_again_after_a_kill_between_the_two(
    toy_config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_plain(session(toy_config))
    monkeypatch.setattr(toy_run, "LETTER", ["b"])
    killed = session(toy_config, force="letters", run_id="flow-1")
    with killed:
        killed.run_node(killed.steps[0])
    toy_run.RAN.clear()
    forced = "forced: letters has other content than before"
    for again in (session(toy_config, force="letters", run_id="flow-1"), session(toy_config)):
        assert [step.reason for step in again.steps] == ["", forced]
    assert not run_plain(again)["count"].cached
    assert toy_run.RAN == ["count"]
    assert session(toy_config).nothing_to_do


@pytest.mark.parametrize("at_once", [True, False])
def test_a_begun_training_starts_over_where_its_data_has_other_content(
    toy_config: str, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    first = session(toy_config)
    with first:
        first.run_node(first.steps[0])
    _, count = session(toy_config).steps
    contents = lineage.input_contents(count.inputs)
    claim.claim_directory(
        count.artifact,
        claim.Claim("count", count.fingerprint, version="1", inputs=contents),
        force=False,
    )
    saved = f"{count.artifact}/checkpoints/step-00000007/checkpoint.json"
    storage.write_bytes(saved, b"{}")
    assert [step.reason for step in session(toy_config).steps] == ["", "continues from step 7"]
    monkeypatch.setattr(toy_run, "LETTER", ["b"])
    forced = session(toy_config, force="letters")
    if not at_once:
        with forced:
            forced.run_node(forced.steps[0])
        forced = session(toy_config)
        assert forced.steps[1].reason == "forced: letters has other content than before"
    run_plain(forced)
    assert not storage.exists(saved)
    assert session(toy_config).nothing_to_do


def test_a_node_that_waits_for_cores_says_who_holds_them(
    toy_config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOZE_CPUS", "1")
    monkeypatch.setattr(slots, "PATIENCE_SECONDS", 0.2)
    found = session(toy_config, overrides={"name": "second"})
    found.screen = Console(file=(printed := io.StringIO()), width=200)
    machine = slots.machine()
    runner = threading.Thread(target=lambda: run_plain(found))
    with slots.acquire(
        slots.ResourceRequest(cpus=1), machine, "first", "pretrain", lambda: False, lambda: None
    ):
        runner.start()
        waiting = until(
            lambda: _node(found, "letters")["state"] == "queued" and _node(found, "letters")
        )
        screen = Console(file=io.StringIO(), width=120)
        views.show_run(
            screen, "runs/second", status_file.read(found.config.directory.parent, "second")
        )
    runner.join()
    sentence = f"waits for a slot: CPU 0 is held by first (process {os.getpid()})"
    assert waiting["why"] == sentence
    assert f"{sentence}; --set run.oversubscribe=true" in printed.getvalue()
    assert isinstance(screen.file, io.StringIO)
    assert sentence in screen.file.getvalue()
    assert (_node(found, "letters")["state"], _node(found, "letters")["why"]) == (
        "finished",
        "not made yet",
    )


def _node(found: RunSession, name: str) -> dict[str, Any]:
    """What the record of a session's run holds of a node."""
    content = status_file.newest(found.config.directory)
    return {"state": None} if content is None else content["nodes"][name]


def test_what_is_left_of_a_run_is_forced_still(toy_config: str) -> None:
    run_plain(session(toy_config))
    first = session(toy_config, start_from="letters")
    with first:
        first.run_node(first.steps[0])
    assert [(step.name, step.reason) for step in first.remaining().steps] == [
        ("letters", ""),
        ("count", "forced"),
    ]


def test_resume_forces_what_was_not_begun(
    toy_config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = tmp_path / "fault"
    forced = {"overrides": {"count.fault": str(fault)}, "start_from": "letters"}
    run_plain(session(toy_config, **forced))  # type: ignore[arg-type]
    fault.touch()
    with monkeypatch.context() as patch, pytest.raises(IndexError):
        patch.setattr(toy_run, "LETTER", [])
        run_plain(session(toy_config, **forced))  # type: ignore[arg-type]
    toy_run.RAN.clear()
    resume = ["resume", "toy", "--no-prefect"]
    assert cli.main(resume) == 1
    assert toy_run.RAN == ["letters", "count"]  # whose content is that of the first run
    assert cli.main(resume) == 0
    assert cli.main(resume) == 0
    assert toy_run.RAN == ["letters", "count", "count"]


def test_options_of_resume_replace_those_of_a_section(toy_config: str, tmp_path: Path) -> None:
    fault = tmp_path / "fault"
    fault.touch()
    own = {"count.run": {"grace_seconds": 7, "processes": 3}, "count.fault": str(fault)}
    with pytest.raises(RuntimeError):
        run_plain(session(toy_config, overrides=own))
    assert cli.main(["resume", "toy", "--no-prefect", "--grace-seconds", "5"]) == 0
    values = status_file.read(tmp_path / "runs", "toy")["config"]
    nodes = RunConfig(values, "toy").nodes
    assert {node.execution.grace_seconds for node in nodes.values()} == {5}
    assert nodes["count"].execution.processes == 3


def test_a_run_on_a_store_is_verified(
    toy_config: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CLOZE_STORE", f"memory://{uuid.uuid4().hex}")
    results = run_plain(session(toy_config))
    capsys.readouterr()
    assert cli.main(["verify", "toy"]) == 0
    lines = capsys.readouterr().out.splitlines()
    artifacts = {result.artifact for result in results.values()}
    assert {line.partition(" matches its manifest")[0] for line in lines} == artifacts
    monkeypatch.delenv("CLOZE_STORE")
    run_plain(session(toy_config, overrides={"letters.size": 5}, until="letters"))
    storage.write_bytes(f"{results['count'].artifact}/count.txt", b"9")
    assert cli.main(["verify", "toy"]) == 3
    told = capsys.readouterr()
    assert "count.txt" in told.err
    assert "runs/toy/letters-" in told.out


def test_what_a_stage_raised_is_kept(toy_config: str, tmp_path: Path) -> None:
    (tmp_path / "stop").touch()
    failing = session(toy_config, overrides={"count.fault": "stop"})
    with pytest.raises(RuntimeError):
        run_plain(failing)
    assert isinstance(failing.failures["count"], RuntimeError)
