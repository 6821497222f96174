"""A night with models whose figures are not finite: none becomes champion, none stays it."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from cloze.core.artifacts.artifact import Manifest, write_manifest
from cloze.core.errors import ClozeError, NotFiniteError, error_event
from cloze.core.stages.execute import BuildResult
from cloze.flows.graph.plan import PlannedNode
from cloze.flows.launch.launch_state import launch_result
from cloze.flows.nightly import suite
from cloze.flows.nightly.journal import Journal, promote
from cloze.flows.nightly.nightly_run import nightly_run
from cloze.flows.run.session import RunSession
from cloze.flows.tracking.spool import Spool
from cloze.model import checkpoint
from tests.flows.launch.test_stopped import course_of
from tests.flows.nightly.test_looking import training
from tests.tiny_models import write_checkpoint


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLOZE_RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")  # nobody is there
    monkeypatch.setattr(Spool, "start_sender", lambda spool: None)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    return tmp_path / "runs"


def answer_of_a_rank(checkpoint_path: str, directory: Path) -> ClozeError:
    """The error of a rank that loads the checkpoint, as the process that started it raises it."""
    launch = course_of(directory)
    with pytest.raises(ClozeError) as told:
        checkpoint.load(checkpoint_path)
    launch.update([(0, error_event(told.value)), (0, {"ended": 3, "ours": False})])
    with pytest.raises(ClozeError) as caught:
        launch_result(launch)
    return caught.value


def scored(step: PlannedNode, session: RunSession, score: Any) -> None:
    """Finish a fine-tuning node with that score, or fail as the stage does if it is none."""
    if isinstance(score, float) and not math.isfinite(score):
        session.failures[step.name] = NotFiniteError(f"finetune: accuracy is {score}")
        return
    manifest = Manifest(
        stage="finetune", version=1, fingerprint=step.fingerprint, parents={}, config={}, files=(),
        summary={"task": "sst2", "metric": "accuracy", "metrics": {"a_loss": 9.0, "accuracy": score}},
    )  # fmt: skip
    os.makedirs(step.artifact, exist_ok=True)
    write_manifest(step.artifact, manifest)
    session.results[step.name] = BuildResult(
        artifact=step.artifact, cached=False, seconds=1.0, manifest=manifest
    )


@pytest.mark.parametrize("order", [("worse", "nan", "good"), ("nan", "good", "worse")])
def test_no_model_of_nans_is_the_first_champion(runs: Path, order: tuple[str, ...]) -> None:
    score_of = {"worse": 0.5, "good": 0.9, "nan": math.nan}
    for number, name in enumerate(order):
        training(runs / name / "pretrain-aaa", f"{number}" * 64, [20])

    def run(session: RunSession) -> None:
        for step in session.steps:
            scored(step, session, score_of[step.node.values["of"].partition(".")[0]])

    outcome = nightly_run(suite.load(overrides={"night": {"limit": 3}}), run=run)
    assert outcome.champion is not None
    assert outcome.champion.run == "good"
    assert "1 failed" in outcome.message


@pytest.mark.parametrize("score", [None, "0.9", True, [0.9]])
def test_a_model_without_its_score_is_not_chosen_by_another_figure(runs: Path, score: Any) -> None:
    """The loss stands first among the metrics, and a high one is no good sign."""
    score_of = {"good": 0.9, "odd": score}
    for number, name in enumerate(score_of):
        training(runs / name / "pretrain-aaa", f"{number}" * 64, [20])

    def run(session: RunSession) -> None:
        for step in session.steps:
            scored(step, session, score_of[step.node.values["of"].partition(".")[0]])

    outcome = nightly_run(suite.load(overrides={"night": {"limit": 3}}), run=run)
    assert outcome.champion is not None
    assert outcome.champion.run == "good"
    assert Journal(runs).nights()


def test_with_no_finite_candidate_there_is_no_champion(runs: Path) -> None:
    training(runs / "demo" / "pretrain-aaa", "a" * 64, [20])

    def run(session: RunSession) -> None:
        for step in session.steps:
            scored(step, session, math.inf)

    outcome = nightly_run(suite.load(), run=run)
    assert (outcome.champion, outcome.is_promoted, outcome.evaluated) == (None, False, [])


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_a_champion_whose_weights_are_not_finite_is_replaced(
    runs: Path, tmp_path: Path, value: float
) -> None:
    made = training(runs / "demo" / "pretrain-aaa", "a" * 64, [20])
    good = checkpoint.load(write_checkpoint(tmp_path / "good", tmp_path / "scratch"))
    path = str(made / "checkpoints" / "step-00000020")
    state = {**good.state, min(good.state): torch.full_like(good.state[min(good.state)], value)}
    checkpoint.save_weights(
        path, model=good.model, state=state, tokenizer=good.tokenizer, heads=good.heads
    )
    checkpoint.finalize(path)
    promote(Journal(runs), str(made), "by an earlier version")
    training(runs / "new" / "pretrain-bbb", "b" * 64, [30])

    def run(session: RunSession) -> None:
        for step in session.steps:
            if step.node.values["of"].startswith("demo"):
                session.failures[step.name] = answer_of_a_rank(path, tmp_path)
            else:
                scored(step, session, 0.7)

    outcome = nightly_run(suite.load(), run=run)
    assert outcome.champion is not None
    assert (outcome.champion.run, outcome.is_promoted) == ("new", True)
    assert "the champion's figures are not finite" in outcome.why


def test_a_champion_of_nans_is_replaced_and_keeps_no_candidate_waiting(runs: Path) -> None:
    made = training(runs / "demo" / "pretrain-aaa", "a" * 64, [20])
    promote(Journal(runs), str(made), "by an earlier version")
    training(runs / "new" / "pretrain-bbb", "b" * 64, [30])

    def run(session: RunSession) -> None:
        for step in session.steps:
            is_champion = step.node.values["of"].startswith("demo")
            scored(step, session, math.nan if is_champion else 0.7)

    outcome = nightly_run(suite.load(), run=run)
    assert outcome.is_promoted
    assert outcome.champion is not None
    assert outcome.champion.run == "new"
    assert "the champion's figures are not finite" in outcome.why
