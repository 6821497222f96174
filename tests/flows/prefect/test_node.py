"""A node as a task of Prefect's: how often it is tried again, and what its log says."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from cloze.flows.prefect.node import TaskRunReporter, log_warnings, mlflow_page, node_of
from cloze.flows.run.session import RunParameters, RunSession
from cloze.flows.tracking import spool_state
from cloze.flows.tracking.spool import DIRECTORY


@pytest.mark.parametrize(("run", "tries"), [({}, 2), ({"retries": 0}, 0), ({"retries": 5}, 5)])
def test_a_config_s_retries_count_more_than_the_form_s(
    toy_config: str, run: dict[str, Any], tries: int
) -> None:
    session = RunSession(RunParameters(config=toy_config, overrides={"run": run}))
    assert node_of(session.steps[0], usual_retries=2).retries == tries


def lines(
    session: RunSession, reports: list[tuple[Any, ...]], caplog: pytest.LogCaptureFixture
) -> list[str]:
    """Return what a node's task run logs of its reports."""
    log = logging.getLogger("tests.task_run")
    with (
        caplog.at_level(logging.INFO, log.name),
        TaskRunReporter(session, session.steps[0], log) as reporter,
    ):
        reporter.build_started("b")
        for report in reports:
            reporter.progress(*report)
    return caplog.messages


def test_the_last_line_of_a_training_keeps_its_loss(
    toy_config: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Though memory is reported after it, and by itself."""
    reports = [
        (5, 6, "steps", {"loss": 7.5, "learning_rate": 0.1}),
        (6, 6, "steps", {"loss": 7.25, "learning_rate": 0.1}),
        (6, 6, "steps", {"memory_bytes": 1 << 30}),
    ]
    (line,) = lines(RunSession(RunParameters(config=toy_config)), reports, caplog)
    assert line.startswith("6/6 steps, loss 7.25, ")


def test_each_part_of_a_stage_is_logged_once_and_the_last_report_at_its_end(
    toy_config: str, caplog: pytest.LogCaptureFixture
) -> None:
    reports = [(n, 4, "parts", {"step": part}) for n, part in enumerate(["a", "a", "b", "b"], 1)]
    told = lines(RunSession(RunParameters(config=toy_config)), reports, caplog)
    assert told == ["a, 1/4 parts", "b, 3/4 parts", "b, 4/4 parts"]


def test_a_stage_that_reports_nothing_logs_nothing(
    toy_config: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert lines(RunSession(RunParameters(config=toy_config)), [], caplog) == []


@pytest.mark.parametrize("warnings", [[], ["only 497 rows to train on: see why"], ["a; b", "c"]])
def test_a_stage_s_warnings_are_warnings_and_no_part_of_the_state(
    warnings: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    log = logging.getLogger("tests.warnings")
    text = "".join(["497 rows, 2 shards", *(f"; warning: {warning}" for warning in warnings)])
    with caplog.at_level(logging.INFO, log.name):
        assert log_warnings(text, log) == "497 rows, 2 shards"
    assert caplog.messages == warnings
    assert {record.levelno for record in caplog.records} <= {logging.WARNING}


def test_a_node_s_log_links_its_run_in_mlflow_once_mlflow_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOZE_RUNS_DIR", str(tmp_path))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    spool_state.write_ids(tmp_path / DIRECTORY, "build", "7", "abc")
    assert mlflow_page("build") is None, "no server is known"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow:5000/")
    assert str(mlflow_page("build")).startswith("http://mlflow:5000/#/experiments/7/runs/abc")
    assert mlflow_page("other") is None
    assert mlflow_page(None) is None
