"""Reports of a stage: none stops it but lost predictions; what a build and a stage are by default."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from cloze.core.config import StageConfig
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import (
    NULL_REPORTER,
    BuildContext,
    InputSpec,
    Reporter,
    SafeReporter,
    Stage,
    StageResult,
    deferred,
)

REPORTS: dict[str, tuple[Any, ...]] = {
    "build_started": ("b",), "progress": (1.0, None, "rows", {}), "queued": ("w",), "metrics": ({"step": 1},),
    "checkpoint": (3, "/c"), "processes": ({0: 7},), "shutdown_time": (2.0,),
}  # fmt: skip


class Heard(Reporter):
    """Records each report, and raises if it shall."""

    def __init__(self, error: Exception | None = None) -> None:
        self.heard: list[Any] = []
        for kind in (*REPORTS, "predictions", "stop_requested"):
            setattr(self, kind, lambda *values, kind=kind: self._hear(kind, *values))
        self._error = error

    def _hear(self, *report: Any) -> bool:
        self.heard.append(report)
        if self._error is not None:
            raise self._error
        return True


def test_every_report_is_listed() -> None:
    public = {name for name in vars(Reporter) if not name.startswith("_")}
    assert public == {*REPORTS, "predictions", "stop_requested"}


def test_reports_are_forwarded() -> None:
    heard = Heard()
    safe = SafeReporter(heard)
    for kind, values in REPORTS.items():
        getattr(safe, kind)(*values)
    safe.predictions([{"a": 1}])
    assert safe.stop_requested() is True
    assert heard.heard == [
        *((kind, *values) for kind, values in REPORTS.items()), ("predictions", [{"a": 1}]), ("stop_requested",),
    ]  # fmt: skip


def test_a_report_that_fails_is_said_once_by_kind(caplog: pytest.LogCaptureFixture) -> None:
    safe = SafeReporter(Heard(ConnectionError("no server")))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            for kind, values in REPORTS.items():
                getattr(safe, kind)(*values)
    said = "reporting ({}) failed, the stage continues: ConnectionError: no server"
    assert caplog.messages == [said.format(kind) for kind in REPORTS]
    with pytest.raises(ConnectionError):
        safe.predictions([])
    with pytest.raises(ConnectionError):
        safe.stop_requested()


def test_without_a_reporter_reports_are_dropped() -> None:
    for kind, values in REPORTS.items():
        assert getattr(NULL_REPORTER, kind)(*values) is None
    assert NULL_REPORTER.predictions([{}]) is None  # type: ignore[func-returns-value]
    assert NULL_REPORTER.stop_requested() is False


def test_a_build_by_default() -> None:
    build = BuildContext(
        path="/runs/x/", inputs={}, execution=Execution(), fingerprint="f", token="t"
    )
    assert (build.build_id, build.report, build.counters, build.runner) == (
        "",
        NULL_REPORTER,
        {},
        None,
    )
    assert build.scratch == "/runs/x/_scratch"
    assert build.file("a", "b.txt") == "/runs/x/a/b.txt"
    assert (build.fence.path, build.fence.token) == ("/runs/x/", "t")
    other = BuildContext(path="", inputs={}, execution=Execution(), fingerprint="f")
    assert other.counters is not build.counters
    assert other.token == ""


def test_a_stage_and_its_result_by_default() -> None:
    stage = Stage(
        name="toy", version=3, config=StageConfig, run=lambda config, build: StageResult()
    )
    assert stage.headline({"a": 1}) == ""
    usual = (
        stage.inputs,
        stage.unhashed_files,
        stage.worker,
        stage.unread,
        stage.outputs,
        stage.cost_model,
    )
    assert usual == ({}, (), None, frozenset(), (), None)
    assert (stage.reads_all_nodes, stage.parallel, stage.on_gpu) == (False, False, False)
    result = StageResult()
    assert (result.rows, result.tokens, result.summary, result.temporary, result.written) == (
        0,
        0,
        {},
        (),
        {},
    )
    spec = InputSpec()
    assert (spec.kinds, spec.explicit_kinds, spec.inherited_fields, spec.option, spec.help) == (
        (),
        (),
        (),
        "",
        "",
    )
    assert (spec.required, spec.explicit_only, spec.multiple) == (False, False, False)


def test_a_deferred_function_is_imported_when_it_runs() -> None:
    run = deferred("tests.core.test_reporters:ran")
    assert run("config", "build") == ("config", "build")  # type: ignore[arg-type]
    with pytest.raises(ModuleNotFoundError):
        deferred("tests.core.nothing:ran")("config", "build")  # type: ignore[arg-type]


def ran(config: Any, build: Any) -> Any:
    return config, build


def test_figures_are_numbers_at_the_top_or_one_level_down() -> None:
    stage = Stage(name="toy", version=3, config=StageConfig, run=lambda config, build: StageResult(),
                  comparison_metrics=("loss", "scores", "none"))  # fmt: skip
    summary = {"loss": 2, "scores": {"f1": 0.5, "flag": True, "name": "x"}, "other": 7}
    assert stage.compared_metrics(summary) == {"loss": 2.0, "f1": 0.5}
    assert stage.compared_metrics({"loss": "nan"}) == {}


def test_a_stage_is_named_in_its_fingerprint() -> None:
    config = StageConfig()
    prints = {
        Stage(name=name, version=version, config=StageConfig, run=deferred("x")).fingerprint(config, parents)
        for name in ("a", "b") for version in (1, 2) for parents in ({}, {"corpus": "c"}, {"corpus": "d"})
    }  # fmt: skip
    assert len(prints) == 12
    stage = Stage(name="a", version=1, config=StageConfig, run=deferred("x"))
    assert stage.lineage(config, {"corpus": "c"})[1] == {"corpus": "c"}
