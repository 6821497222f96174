"""The plan: what would run and why, and that running it leaves links that lead to what was made."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cloze.core import storage
from cloze.core.artifacts import claim
from cloze.core.errors import UsageError
from cloze.core.stages.stage import Reporter, StageResult
from cloze.flows.graph import config as configs
from cloze.flows.graph import plan as planning
from cloze.flows.graph.overrides import parse
from cloze.pipeline.dataset.config import DatasetConfig
from tests.flows import toy_run

pytestmark = pytest.mark.usefixtures("toy_config")


def load(*settings: str) -> configs.RunConfig:
    return configs.load("toy.yaml", parse(settings, "section.key=value", sections=True))


def plan(*settings: str, **how: Any) -> dict[str, str]:
    """Why each step would run."""
    return {step.name: step.reason for step in planning.plan(load(*settings), **how)}


def make(*settings: str) -> list[planning.PlannedNode]:
    config = load(*settings)
    steps = planning.plan(config)
    for step in steps:
        planning.build_node(step)
    return steps


def test_nothing_is_made_yet_then_nothing_is_to_do() -> None:
    assert plan() == {"letters": "not made yet", "count": "not made yet"}
    make()
    assert plan() == {"letters": "", "count": ""}
    assert toy_run.RAN == ["letters", "count"]


def test_a_changed_value_is_told_and_what_follows_is_told_by_its_input() -> None:
    make()
    assert plan("letters.size=5") == {"letters": "size 4 became 5", "count": "letters changed"}
    assert plan("count.model={preset: a}") == {
        "letters": "",
        "count": 'model null became {"preset": "a"}',
    }


def test_an_earlier_config_finds_its_artifacts_again() -> None:
    make()
    make("letters.size=5")
    assert plan() == {"letters": "", "count": ""}


def test_a_raised_version_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    make()
    monkeypatch.setattr(toy_run, "LETTERS", dataclasses.replace(toy_run.LETTERS, version=2))
    assert plan() == {"letters": "stage version 1 became 2", "count": "letters changed"}


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"length": 64}, "length "),
        ({"mask_rate": 0.3}, "mask_rate "),
        ({"recipe": "roberta"}, "recipe "),
        ({"recipe": "spanbert", "length": 64}, "recipe "),
        ({"max_predictions": 7}, "max_predictions "),
    ],
)
def test_a_reason_names_what_a_person_set_before_what_follows_from_it(
    monkeypatch: pytest.MonkeyPatch, values: dict[str, Any], field: str
) -> None:
    built = dataclasses.replace(
        toy_run.LETTERS, config=DatasetConfig, run=lambda *_: StageResult(), outputs=()
    )
    monkeypatch.setattr(toy_run, "LETTERS", built)
    for earlier, later in (({}, values), (values, {})):  # set, and left out again
        for step in planning.plan(configs.RunConfig({"letters": earlier}, f"run{len(earlier)}")):
            planning.build_node(step)
        (step,) = planning.plan(configs.RunConfig({"letters": later}, f"run{len(earlier)}"))
        assert step.reason.startswith(field)


@pytest.mark.parametrize("only", ["count", "c*"])
def test_only_nodes_that_until_leaves_out_are_refused(only: str) -> None:
    with pytest.raises(UsageError, match=r"--only \(count\).*--until"):
        plan(only=[only], until=["letters"])
    assert list(plan(until=["letters"])) == ["letters"]


@pytest.mark.parametrize("rest", [{"until": ["letters"]}, {"only": ["letters"]}])
def test_a_start_that_the_other_options_leave_out_is_refused(rest: dict[str, Any]) -> None:
    make()
    with pytest.raises(UsageError, match=rf"--from \(count\).*--{next(iter(rest))}"):
        plan(start=["count"], **rest)
    assert plan(start=["letters"], only=["count"]) == {"count": "forced"}


class Warnings(Reporter):
    """Keeps the warnings."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def progress(
        self, done: float, total: float | None, unit: str, figures: Mapping[str, Any]
    ) -> None:
        self.warnings += [figures["warning"]] if "warning" in figures else []


def test_a_training_that_another_version_began_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It starts over in a directory of its own; the plan and the start say how to keep it."""
    began, _ = planning.plan(load())
    claim.claim_directory(
        began.artifact, claim.Claim("letters", began.fingerprint, version="1"), force=False
    )
    storage.write_bytes(f"{began.artifact}/checkpoints/step-00001200/checkpoint.json", b"{}")
    assert plan()["letters"] == "continues from step 1,200"
    monkeypatch.setattr(toy_run, "LETTERS", dataclasses.replace(toy_run.LETTERS, version=2))
    letters, _ = planning.plan(load())
    assert Path(began.artifact).name in letters.reason
    assert "keep its 1,200 steps, finish it with that version" in letters.reason
    reporter = Warnings()
    planning.build_node(letters, report=reporter)
    assert reporter.warnings == [letters.reason]
    assert plan()["letters"] == ""
    assert plan("letters.size=5")["letters"] == "size 4 became 5"


def test_another_file_behind_the_same_path_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abc")
    make("letters.source=a.txt")
    (tmp_path / "a.txt").write_text("abcd")
    assert plan("letters.source=a.txt") == {"letters": "source changed", "count": "letters changed"}


def test_what_only_says_how_to_run_changes_nothing() -> None:
    make()
    assert plan("run.workers=5", "run.zero=2") == {"letters": "", "count": ""}


def test_from_force_and_only() -> None:
    make()
    assert plan(start=["letters"]) == {"letters": "forced", "count": "forced"}
    assert plan(start=["count"]) == {"letters": "", "count": "forced"}
    assert plan(force=["letters"]) == {"letters": "forced", "count": ""}
    assert plan(only=["count"]) == {"count": ""}
    assert plan(only=["count"], start=["letters"]) == {"count": "forced"}
    with pytest.raises(UsageError, match="did you mean 'count'"):
        plan(only=["cuont"])


def test_only_looks_at_no_node_that_it_does_not_need(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise AssertionError("the data of count were read")

    monkeypatch.setattr(toy_run.CountConfig, "check_data", fail, raising=False)
    assert plan(only=["letters"]) == {"letters": "not made yet"}
    assert plan(until=["letters"]) == {"letters": "not made yet"}
    with pytest.raises(AssertionError):
        plan()


def test_only_needs_its_inputs() -> None:
    with pytest.raises(UsageError, match="--only count needs letters-"):
        plan(only=["count"])


def test_what_an_earlier_try_has_begun_is_forced_no_more() -> None:
    first, _ = make()
    assert plan(start=["letters"], started={first.fingerprint}) == {
        "letters": "",
        "count": "forced",
    }
    other = plan("letters.size=9", start=["letters"], started={first.fingerprint})
    assert other == {"letters": "forced", "count": "forced"}
    (Path(first.artifact) / "manifest.json").unlink()  # begun and not finished
    assert plan(force=["letters"], started={first.fingerprint})["letters"] == "not made yet"


def test_a_stage_without_its_input_is_told() -> None:
    Path("toy.yaml").write_text("count: {}\n")
    with pytest.raises(UsageError, match="stage count needs stage letters"):
        plan()


def test_links_lead_to_what_was_made_last() -> None:
    directory = load().directory
    make()
    steps = make("letters.size=5")
    assert (directory / "letters").resolve() == Path(steps[0].artifact).resolve()
    config = load()
    planning.build_node(planning.plan(config)[0])  # cached, and the run's again
    assert (directory / "letters" / "letters.txt").read_text() == "aaaa"


def test_output_paths_are_joined_to_the_artifact() -> None:
    config = load()
    result = planning.build_node(planning.plan(config)[0])
    assert planning.result_json(result)["file"] == f"{result.artifact}/letters.txt"


def test_a_store_that_is_a_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As CLOZE_RUNS_DIR: else the plan is fine, and every node fails."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("CLOZE_STORE", str(tmp_path / "file"))
    with pytest.raises(UsageError, match="CLOZE_STORE=.*file"):
        plan()
