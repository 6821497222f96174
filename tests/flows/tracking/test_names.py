"""What MLflow shows first: sections of metrics, versions with a figure, names that were typed."""

from __future__ import annotations

import json
import logging
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prefect.utilities.names import generate_slug

from cloze.core.errors import UsageError
from cloze.flows.prefect import graph_run
from cloze.flows.tracking import metadata, models
from cloze.flows.tracking.run_logger import MlflowRunLogger
from cloze.flows.tracking.spool import Spool


@pytest.mark.parametrize(
    ("figure", "name"),
    [
        ("seconds", "time/seconds"), ("checkpoint_seconds", "time/checkpoint_seconds"),
        ("tokens_per_second", "result/tokens_per_second"), ("accuracy", "result/accuracy"),
        ("count.dropped.short", "result/count.dropped.short"), ("f1@5", "result/f1/5"),
    ],
)  # fmt: skip
def test_single_values_have_their_section(figure: str, name: str) -> None:
    assert metadata.section_name(figure) == name


@given(st.lists(st.text("cC+#*,()ä9.", min_size=1, max_size=5), min_size=2, unique=True))
@example(["c", "c+", "c#", "c++"])
def test_two_labels_have_two_names(labels: list[str]) -> None:
    """MLflow would draw two classes as one curve."""
    names = {metadata.metric_name("finetune", f"f1.{label}") for label in labels}
    assert len(names) == len(labels)
    assert not [name for name in names if re.search(r"[^\w./: -]", name)]


@pytest.mark.parametrize(
    ("curve", "name"),
    [
        ("loss", "loss/loss"), ("mlm_loss", "loss/mlm_loss"), ("nsp_accuracy", "loss/nsp_accuracy"),
        ("heldout_loss", "heldout/heldout_loss"), ("dev_accuracy", "heldout/dev_accuracy"),
        ("heldout_loss_rare", "heldout/heldout_loss_rare"), ("time_save", "time/time_save"),
        ("grad_norm", "progress/grad_norm"), ("tokens", "progress/tokens"),
    ],
)  # fmt: skip
def test_curves_stand_before_single_values_on_a_page_that_sorts_sections(
    curve: str, name: str
) -> None:
    """MLflow sorts sections by name, and puts values without a section last."""
    assert metadata.curve_name(curve) == name
    bars = metadata.section_name("accuracy")
    assert name < bars or name.startswith("time/")


@pytest.mark.parametrize(
    ("values", "start"),
    [
        ({"loss/loss": 2.0, "heldout/heldout_loss": 3.50219}, "held-out loss 3.502 · "),
        ({"result/accuracy": 0.9125, "time/seconds": 3.0}, "accuracy 0.9125 · "),
        ({"time/seconds": 3.0}, ""),
        ({}, ""),
    ],
)
def test_a_version_says_first_the_figure_by_which_one_chooses(
    values: dict[str, float], start: str
) -> None:
    metrics = [SimpleNamespace(key=key, value=value) for key, value in values.items()]
    tags = {models.RUN_NAME: "sample", models.NODE: "pretrain", models.STEP: "60"}
    model: Any = SimpleNamespace(metrics=metrics)
    assert models._description(tags, model) == f"{start}sample · pretrain · step 60"


@pytest.mark.parametrize(
    "name",
    [
        "my first run",
        "ablation-3",
        "bert",
        "first",
        "mein-lauf",
        "Über-Lauf",
        "a-b-c",
        "x-",
        "Small-BERT",
        "Small-model",
        "alpha-3",
        "alpha-vega",
        "mu-law-2",
        "beta-Test",
        "Generic-Longer",
    ],
)
def test_a_typed_name_stays(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = SimpleNamespace(name=name, parameters={}, scheduled_start_time=None)
    monkeypatch.setattr(graph_run, "flow_run", run)
    assert graph_run.run_name() == name


def test_a_drawn_name_becomes_config_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefect's server draws names, and each of the two versions of its form draws others."""
    forms = ["Gorgeous-Egret", "Licensed-Hornet", "Tasty-Gnu", "chi6-binet", "upsilon5-shelia-mass"]
    for name in [*(generate_slug(2) for _ in range(100)), *forms, None, ""]:
        run = SimpleNamespace(name=name, parameters={"config": "a/demo.yaml"})
        run.scheduled_start_time = None
        monkeypatch.setattr(graph_run, "flow_run", run)
        assert graph_run.run_name().startswith("demo "), name


def test_a_figure_that_is_not_finite_is_marked_and_the_others_arrive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Spool, "start_sender", lambda spool: None)
    spool = Spool(tmp_path, "http://127.0.0.1:9")
    run = spool.start_run("x")
    spool.line(run, {"step": 7, "loss": math.nan, "grad_norm": math.inf, "skipped": 1, "note": "x"})
    spool.close()
    lines = [
        json.loads(line) for path in tmp_path.glob("*.jsonl") for line in path.read_text().split("\n")
        if line
    ]  # fmt: skip
    tags = {key: value for line in lines for key, value in (line.get("tags") or {}).items()}
    odd = {key: value for key, value in tags.items() if "not_finite" in key}
    assert odd == {"cloze.not_finite.grad_norm": "step 7", "cloze.not_finite.loss": "step 7"}
    assert [line["metrics"][0][:3] for line in lines if line["op"] == "metrics"] == [
        ["skipped", 1.0, 7]
    ]


def test_the_source_of_a_run_is_its_command(tmp_path: Path) -> None:
    logger = MlflowRunLogger(tmp_path)
    logger.begin("sample", {}, {})
    assert logger.tags()["mlflow.source.name"] == "cloze run sample"
    logger = MlflowRunLogger(tmp_path)
    logger.begin_single("corpus x")
    assert logger.tags()["mlflow.source.name"] == "cloze"


def test_mlflow_lists_a_run_under_the_name_that_was_typed(tmp_path: Path) -> None:
    for title, expected in (
        ("my first run", "my first run"),
        (None, r"sample \d\d-\d\d \d\d:\d\d"),
    ):
        logger = MlflowRunLogger(tmp_path)
        logger.spool.start_sender = lambda: None  # type: ignore[method-assign]
        logger.begin("sample", {}, {}, title=title)
        logger._start()
        names = [
            json.loads(line)["name"]
            for path in tmp_path.rglob("*.jsonl")
            for line in path.read_text().splitlines()
            if json.loads(line)["op"] == "start"
        ]
        logger.spool.close()
        assert any(re.fullmatch(expected, name) for name in names), names


def test_a_flow_run_hands_its_name_on(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def session(*positional: Any, **named: Any) -> None:
        given.update(named)
        raise UsageError("no more is needed")

    flow_run = SimpleNamespace(name="my first run", id="11-22", parameters={})
    monkeypatch.setattr(graph_run, "flow_run", flow_run)
    monkeypatch.setattr(graph_run, "RunSession", session)
    monkeypatch.setattr(graph_run, "parameters_of", dict)
    monkeypatch.setattr(graph_run, "install_log_filter", lambda: None)
    monkeypatch.setattr(graph_run, "get_run_logger", logging.getLogger)
    assert graph_run._run({}).is_failed()
    assert given == {"run_id": "11-22", "title": "my first run"}
