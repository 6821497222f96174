"""What Prefect's pages show of a run: its last state, bars with their node, fields with titles."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from prefect.exceptions import Abort
from prefect.states import Cancelled, Running

from cloze.flows.prefect import deploy, graph_run
from cloze.flows.prefect.graph_run import full_run
from cloze.flows.prefect.node import SingleLineErrorFilter
from cloze.flows.prefect.publishing import ArtifactPublisher


def record(message: str) -> logging.LogRecord:
    return logging.LogRecord("prefect.flow_runs", logging.INFO, "", 0, message, (), None)


@pytest.mark.parametrize(
    ("state", "is_kept"),
    [("Running()", False), ("NotReady('x')", False), ("Completed()", True), ("Failed('x')", True),
     ("Cancelled('stopped at step 7')", True), ("Suspended(type=PAUSED)", True)],
)  # fmt: skip
def test_no_log_ends_with_a_state_that_is_not_the_last(state: str, is_kept: bool) -> None:
    assert SingleLineErrorFilter().filter(record(f"Finished in state {state}")) is is_kept


@pytest.mark.parametrize(
    ("orphan", "in_terminal", "state"),
    [(False, True, "Cancelled("), (False, False, "Cancelled("), (True, False, "Crashed(")],
)
def test_a_stopped_flow_says_the_state_that_it_has_set(
    orphan: bool,
    in_terminal: bool,
    state: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(graph_run.flow_state, "write", lambda _: None)
    monkeypatch.setattr(graph_run.flow_state, "current", Running)
    monkeypatch.setattr(graph_run, "get_run_logger", lambda: logging.getLogger("tests.flow"))
    monkeypatch.setattr(graph_run, "is_orphan", lambda: orphan)
    monkeypatch.setattr(graph_run.signal, "signal", lambda *_: None)
    session: Any = SimpleNamespace(
        record=SimpleNamespace(cancel_requested=True), failures={}, stop=lambda: None
    )
    with (
        caplog.at_level(logging.INFO, "tests.flow"),
        pytest.raises(Abort),
        graph_run._graceful_stop(session, {}, in_terminal),
    ):
        raise KeyboardInterrupt
    assert caplog.messages[-1].startswith(f"Finished in state {state}")


DELETED = Cancelled(name="Deleted", message="deleted in Prefect")


@pytest.mark.parametrize(
    ("state", "requested", "says"),
    [
        (DELETED, False, "deleted in Prefect: step 7 is saved"),
        (DELETED, True, "step 7 is saved"),
        (Cancelled(), False, "step 7 is saved"),
    ],
)
def test_a_run_that_was_deleted_in_prefect_says_so(
    state: Any, requested: bool, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_run.flow_state, "write", lambda _: None)
    monkeypatch.setattr(graph_run.flow_state, "current", lambda: state)
    monkeypatch.setattr(graph_run, "_checkpoint_error", lambda _: "step 7 is saved")
    monkeypatch.setattr(graph_run, "get_run_logger", lambda: logging.getLogger("tests.flow"))
    monkeypatch.setattr(graph_run, "is_orphan", lambda: False)
    monkeypatch.setattr(graph_run.signal, "signal", lambda *_: None)
    session: Any = SimpleNamespace(
        record=SimpleNamespace(cancel_requested=requested), failures={}, stop=lambda: None
    )
    with pytest.raises(Abort), graph_run._graceful_stop(session, {}, False):
        raise graph_run.flow_state.EndRequested(state)
    assert session.ending == ("cancelled", says)


def test_each_bar_has_the_name_of_its_node() -> None:
    sent: list[Any] = []
    client: Any = SimpleNamespace(
        create_artifact=lambda artifact: sent.append(artifact) or SimpleNamespace(id=uuid4())
    )
    publisher = ArtifactPublisher(str(uuid4()))
    for node in ("pretrain", "finetune@sst2-1"):
        publisher.progress(f"demo-{node}-progress", str(uuid4()), node)._send(client)
    assert [artifact.key for artifact in sent] == [
        "demo-pretrain-progress", "demo-finetune-sst2-1-progress"
    ]  # fmt: skip


def test_fields_of_a_form_have_titles() -> None:
    from prefect.utilities.callables import parameter_schema

    schema = parameter_schema(full_run.fn).model_dump()
    deployment: Any = SimpleNamespace(
        id=uuid4(), parameters={}, entrypoint=f"{deploy.ENTRYPOINTS}x",
        parameter_openapi_schema=schema,
    )  # fmt: skip
    sent: list[Any] = []
    client: Any = SimpleNamespace(update_deployment=lambda _, update: sent.append(update))
    deploy._fit_form(client, deployment)
    [update] = sent
    titles = {name: field["title"] for name, field in schema["properties"].items()}
    assert (titles["start_from"], titles["global_batch"]) == ("Start from", "Global batch")
    assert not [title for title in titles.values() if "_" in title or title[0].islower()]
    assert update.parameter_openapi_schema["properties"].keys() == titles.keys()
