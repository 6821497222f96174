"""A node as a task of Prefect's: how often it is tried again."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cloze.flows.prefect.node import TaskRunReporter, log_warnings, node_of, node_page
from cloze.flows.prefect.publishing import ArtifactPublisher
from cloze.flows.run.session import RunParameters, RunSession


@pytest.mark.parametrize(("run", "tries"), [({}, 2), ({"retries": 0}, 0), ({"retries": 5}, 5)])
def test_a_config_s_retries_count_more_than_the_form_s(
    toy_config: str, run: dict[str, Any], tries: int
) -> None:
    session = RunSession(RunParameters(config=toy_config, overrides={"run": run}))
    assert node_of(session.steps[0], usual_retries=2).retries == tries


class Bar:
    def set(self, percent: float, text: str) -> None:
        self.percent, self.text = percent, text


def test_the_last_line_of_a_training_keeps_its_loss(
    toy_config: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Though memory is reported after it, and by itself."""
    session, bar = RunSession(RunParameters(config=toy_config)), Bar()
    log = logging.getLogger("tests.task_run")
    with (
        caplog.at_level(logging.INFO, log.name),
        TaskRunReporter(session, session.steps[0], bar, log) as reporter,  # type: ignore[arg-type]
    ):
        reporter.progress(5, 6, "steps", {"loss": 7.5, "learning_rate": 0.1})
        reporter.progress(6, 6, "steps", {"loss": 7.25, "learning_rate": 0.1})
        reporter.progress(6, 6, "steps", {"memory_bytes": 1 << 30})
    assert caplog.messages[-1] == bar.text
    assert bar.text.startswith("6/6 steps, loss 7.25, ")


@pytest.mark.parametrize(
    ("reports", "percent", "text"),
    [
        ([], 100.0, "finished"),  # a stage that reports nothing
        ([(0, 1, "parts")], 100.0, "finished"),
        ([(0, None, "")], 100.0, "finished"),
        ([(3, 8, "steps")], 100.0, "finished: 3/8 steps"),  # stopped early
        ([(3, 8, "steps"), (8, 8, "steps")], 100.0, "8/8 steps"),
    ],
)
def test_the_bar_of_a_finished_stage_says_so(
    toy_config: str, reports: list[tuple[Any, ...]], percent: float, text: str
) -> None:
    session, bar = RunSession(RunParameters(config=toy_config)), Bar()
    log = logging.getLogger("tests.task_run")
    with TaskRunReporter(session, session.steps[0], bar, log) as reporter:  # type: ignore[arg-type]
        reporter.build_started("b")
        for report in reports:
            reporter.progress(*report, {})
    assert (bar.percent, bar.text) == (percent, text)


def test_the_bar_of_a_failed_stage_stays_where_it_was(toy_config: str) -> None:
    session, bar = RunSession(RunParameters(config=toy_config)), Bar()
    with (
        pytest.raises(KeyError),
        TaskRunReporter(session, session.steps[0], bar, logging.getLogger("t")) as reporter,  # type: ignore[arg-type]
    ):
        reporter.build_started("b")
        reporter.progress(3, 8, "steps", {})
        raise KeyError
    assert (bar.percent, bar.text) == (37.5, "3/8 steps")


def test_a_progress_bar_names_its_node() -> None:
    """A run's page shows the bars of all nodes beside each other, without their names."""
    publisher = ArtifactPublisher("1" * 32)
    bar = publisher.progress("bar", "2" * 32, "finetune@sst2-1")
    bar.set(50.0, "8/16 steps")
    sent: list[Any] = []

    class Client:
        def create_artifact(self, artifact: Any) -> Any:
            sent.append(artifact)
            return SimpleNamespace(id="3" * 32)

        def update_artifact(self, _: Any, artifact: Any) -> None:
            sent.append(artifact)

    client: Any = Client()
    bar._send(client)
    bar.set(100.0, "16/16 steps")
    bar._send(client)
    texts = [artifact.description for artifact in sent]
    assert texts == ["finetune@sst2-1: 8/16 steps", "finetune@sst2-1: 16/16 steps"]


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


def test_a_node_s_page_lists_its_links_and_its_figures(
    toy_config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Word for word; what is absent is left out, text of a document is no markup."""
    monkeypatch.chdir(tmp_path)
    session = RunSession(RunParameters(config=toy_config))
    manifest = SimpleNamespace(
        summary={"report": "report.html", "loss": 2.5, "text": "a|<b>", "none": None, "empty": ""},
        seconds=61.0,
        rows=1234,
        counters={"documents": 5678},
    )
    result: Any = SimpleNamespace(manifest=manifest, artifact="a")
    head, _, table = node_page(session, session.steps[0], result, None).partition("\n\n")
    assert [line.split(":")[0] for line in head.splitlines()] == [
        "- artifact", "- MLflow", "- report",
    ]  # fmt: skip
    assert head.splitlines()[0] == f"- artifact: `{tmp_path / 'a'}`"
    assert head.splitlines()[2].startswith(f"- report: `{tmp_path / 'a' / 'report.html'}`, in MLfl")
    assert table.splitlines() == [
        "| metric | value |", "| --- | --- |", "| built in | 1 min 01 s |", "| rows | 1,234 |",
        "| report | report.html |", "| loss | 2.5 |", r"| text | a\|&lt;b&gt; |",
        "| count documents | 5,678 |",
    ]  # fmt: skip
    manifest.rows, manifest.summary, manifest.counters = 0, {}, {}
    assert node_page(session, session.steps[0], result, None).splitlines() == [
        *head.splitlines()[:2], "", "| metric | value |", "| --- | --- |", "| built in | 1 min 01 s |",
    ]  # fmt: skip
