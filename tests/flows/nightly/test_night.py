"""A night around the suite: what it holds, what it does when there is nothing, and the page;
without any training.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import sys
import uuid
from pathlib import Path

import pytest

from cloze.core import storage
from cloze.core.artifacts import checkpoints
from cloze.core.artifacts.artifact import Manifest, write_manifest
from cloze.core.artifacts.fingerprints import input_fingerprint
from cloze.core.errors import DataError, UsageError
from cloze.core.stages.execute import BuildResult
from cloze.flows import cli
from cloze.flows.nightly import suite
from cloze.flows.nightly.journal import (
    Journal,
    champion_path,
    keep_champion_files,
    promote,
    roll_back,
)
from cloze.flows.nightly.nightly_run import NightlyRun, nightly_run, preview
from cloze.flows.nightly.result import remove_old_artifacts
from cloze.flows.run.session import RunSession
from cloze.flows.tracking.spool import Spool
from tests.flows.nightly.test_journal import night
from tests.flows.nightly.test_looking import training


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLOZE_RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")  # nobody is there
    monkeypatch.setattr(Spool, "start_sender", lambda spool: None)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    return tmp_path / "runs"


def never(session: RunSession) -> None:
    raise AssertionError(f"there was to be no work, not {[step.name for step in session.steps]}")


def test_without_a_checkpoint_there_is_no_work_and_it_says_so(runs: Path) -> None:
    outcome = nightly_run(suite.load(), run=never)
    assert outcome.message == "No new checkpoints"
    assert outcome.errors == {}
    assert outcome.champion is None
    assert outcome.trend is not None
    assert "no champion yet" in Path(outcome.trend).read_text()


def test_a_night_removes_what_no_run_needs(runs: Path) -> None:
    old = training(runs / "demo" / "pretrain-aaa", "a" * 64, [10])
    (runs / "demo" / "_status").mkdir()
    nightly_run(suite.load("night", {"night": {"clean_after_days": 7}}), run=lambda session: None)
    assert old.exists()  # it was written just now
    for mark in old.glob("*.json"):
        os.utime(mark, (1.0, 1.0))
    nightly_run(suite.load(), run=lambda session: None)
    assert old.exists()
    nightly_run(suite.load("night", {"night": {"clean_after_days": 7}}), run=lambda session: None)
    assert not old.exists()


def test_a_night_holds_what_it_reads_and_nothing_else(runs: Path) -> None:
    steps = (
        training(runs / "demo" / "pretrain-aaa", "a" * 64, [10, 20, 30], milestones=(10,))
        / "checkpoints"
    )
    places = {step: str(steps / f"step-{step:08d}") for step in (10, 20, 30)}
    with NightlyRun(suite.load()) as held:
        assert [item.step for item in held.outcome.choice.selected] == [30, 10]
        assert {step: checkpoints.remove(place) for step, place in places.items()} == {
            10: False,
            20: True,
            30: False,
        }
    assert checkpoints.remove(places[10])


def test_what_is_removed_before_it_is_held_is_no_failure(runs: Path) -> None:
    made = training(runs / "demo" / "pretrain-aaa", "a" * 64, [10, 20])
    tonight = NightlyRun(suite.load())
    assert [item.step for item in tonight.outcome.choice.selected] == [20]
    shutil.rmtree(made / "checkpoints" / "step-00000020")
    with tonight:
        assert [item.step for item in tonight.outcome.choice.selected] == [10]  # it looks again
    shutil.rmtree(made)
    assert nightly_run(suite.load(), run=never).message == "No new checkpoints"


def test_a_checkpoint_removed_while_the_suite_runs_is_reported_and_no_failure(runs: Path) -> None:
    """As on a file system without locks."""
    made = training(runs / "demo" / "pretrain-aaa", "a" * 64, [20])

    def run(session: RunSession) -> None:
        shutil.rmtree(made)
        session.failures |= {step.name: FileNotFoundError("gone") for step in session.steps}

    outcome = nightly_run(suite.load(), run=run)
    assert outcome.errors == {}
    assert [item.step for item in outcome.pruned] == [20]
    assert "removed by their training" in outcome.message


def test_what_fails_is_tried_again_three_nights_then_given_up(runs: Path) -> None:
    training(runs / "demo" / "pretrain-aaa", "a" * 64, [20])

    def run(session: RunSession) -> None:
        session.failures |= {step.name: RuntimeError("the disk is full") for step in session.steps}
        raise RuntimeError("the disk is full")

    for _ in range(3):
        outcome = nightly_run(suite.load(), run=run)
        assert outcome.message == "0 of 1 new checkpoints evaluated; 1 failed"
        assert outcome.errors
        assert "the disk is full" in Path(str(outcome.trend)).read_text()
    told = (
        "No new checkpoints; 1 given up after 3 failed evaluations, such as demo step 20 (--since "
        "tries again)"
    )
    assert nightly_run(suite.load(), run=never).message == told
    shown = preview(suite.load())
    assert (len(shown["given_up"]), shown["new"]) == (1, [])
    assert f"{shown['why_given_up']}" in told

    tried: list[str] = []
    again = nightly_run(
        suite.load(), since="1970-01-01", run=lambda run: tried.append(run.config.name)
    )
    assert tried
    assert "given up" not in again.message


def test_a_failed_night_prints_one_json_object(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    training(runs / "demo" / "pretrain-aaa", "a" * 64, [20])

    def run(session: RunSession) -> None:
        session.failures |= {step.name: DataError("the disk is full") for step in session.steps}

    failing = functools.partial(nightly_run, run=run)
    monkeypatch.setattr("cloze.flows.nightly.nightly_run.nightly_run", failing)
    assert cli.main(["nightly", "--json"]) == DataError.exit_code
    output = capsys.readouterr()
    assert "the disk is full" in " ".join(json.loads(output.out)["failed"].values())
    assert "the disk is full" in output.err.splitlines()[-1]


def test_candidates_wait_if_the_champion_was_not_evaluated(runs: Path) -> None:
    """Neither a promotion nor a refusal is decided by a champion's node that failed."""
    made = training(runs / "demo" / "pretrain-aaa", "a" * 64, [20])
    promoted = promote(Journal(runs), str(made), "by hand")
    training(runs / "new" / "pretrain-bbb", "b" * 64, [30])
    is_broken = True

    def run(session: RunSession) -> None:
        for step in session.steps:
            if step.node.values["of"].startswith("demo") and is_broken:
                session.failures[step.name] = RuntimeError("CUDA out of memory")
                continue
            score = 0.5 if step.node.values["of"].startswith("demo") else 0.9
            manifest = Manifest(
                stage="finetune",
                version=1,
                fingerprint=step.fingerprint,
                parents={},
                config={},
                files=(),
                summary={"task": "sst2", "metric": "accuracy", "metrics": {"accuracy": score}},
            )
            os.makedirs(step.artifact, exist_ok=True)
            write_manifest(step.artifact, manifest)
            session.results[step.name] = BuildResult(
                artifact=step.artifact, cached=False, seconds=1.0, manifest=manifest
            )

    outcome = nightly_run(suite.load(), run=run)
    assert (outcome.is_promoted, outcome.decision, outcome.evaluated) == (False, None, [])
    expected = "0 of 2 new checkpoints evaluated; 1 waiting for the next nightly run"
    assert outcome.message == expected
    assert outcome.errors
    assert "CUDA out of memory" in outcome.warnings[0]
    assert Journal(runs).champion() == promoted
    is_broken = False
    outcome = nightly_run(suite.load(), run=run)
    assert [row["run"] for row in outcome.evaluated] == ["new"]
    assert outcome.decision is not None
    assert nightly_run(suite.load(), run=never).message == "No new checkpoints"


def test_of_several_missed_nights_one_is_caught_up_with(runs: Path) -> None:
    training(runs / "demo" / "pretrain-aaa", "a" * 64, [20])
    scheduled_start = NightlyRun(suite.load()).started - 86400

    def fail(session: RunSession) -> None:
        session.failures |= {session.steps[0].name: RuntimeError()}

    assert nightly_run(suite.load(), scheduled_start=scheduled_start - 86400, run=fail).errors
    assert nightly_run(
        suite.load(), scheduled_start=scheduled_start - 86400, run=fail
    ).errors  # tried again: the first one did not do it
    assert (
        nightly_run(suite.load(), scheduled_start=scheduled_start, run=lambda session: None).errors
        == {}
    )
    training(runs / "demo" / "pretrain-bbb", "b" * 64, [20])  # a training that goes on all the time
    late = nightly_run(suite.load(), scheduled_start=scheduled_start, run=never)
    assert late.message.startswith("Nothing to do")
    assert preview(suite.load())["chosen"]


def test_a_night_of_a_clock_that_was_ahead_keeps_no_later_one_from_its_work(runs: Path) -> None:
    training(runs / "demo" / "pretrain-aaa", "a" * 64, [20])
    journal, now = Journal(runs), NightlyRun(suite.load()).started
    ahead = {"kind": "night", "started": now + 1e7, "ended": now + 1e7, "results": [], "failed": {}}
    journal.append({**ahead, "seen": [], "gone": [], "errors": 0})
    done: list[RunSession] = []
    nightly_run(suite.load(), scheduled_start=now - 10, run=done.append)
    assert done


def test_a_second_night_is_refused_in_a_sentence(runs: Path) -> None:
    with (
        NightlyRun(suite.load()),
        pytest.raises(
            UsageError,
            match=r"a nightly run is in progress \(process \d+ on .*\); wait until it ends",
        ),
    ):
        nightly_run(suite.load(), run=never)


def test_a_dry_run_shows_the_graph_and_leaves_nothing(runs: Path) -> None:
    training(runs / "demo" / "pretrain-aaa", "a" * 64, [10, 20, 30], milestones=(10,))
    before = sorted(runs.rglob("*"))
    shown = preview(suite.load(overrides={"night": {"limit": 1}}))
    assert [item["step"] for item in shown["new"]] == [10, 20, 30]
    assert [len(shown[key]) for key in ("chosen", "waiting", "passed")] == [1, 1, 1]
    assert [node["name"] for node in shown["nodes"]] == [
        f"finetune@sst2-{seed}-demo.30.aaaaaaaa" for seed in (1, 2, 3)
    ]
    assert sorted(runs.rglob("*")) == before
    json.dumps(shown)


def test_any_runs_config_is_a_suite_and_a_bad_one_is_an_error(runs: Path, tmp_path: Path) -> None:
    assert list(suite.load("sample").sections) == ["finetune", "evaluate", "run"]
    with pytest.raises(UsageError, match="no section that reads a checkpoint"):
        suite.load("sample", {"finetune": False, "evaluate": False})
    with pytest.raises(UsageError, match="unknown time zone"):
        suite.load(overrides={"night": {"timezone": "Mars/Olympus"}})
    with pytest.raises(UsageError, match="wich"):
        suite.load(overrides={"night": {"wich": ["all"]}})
    for field in ("checkpoints", "run_patterns"):  # such a night would evaluate nothing, for ever
        with pytest.raises(UsageError, match=rf"night.{field} \(found \[\]\).*at least 1"):
            suite.load(overrides={"night": {field: []}})
    (tmp_path / "own.yaml").write_text("night: [newest]\nperplexity: {}\n")
    with pytest.raises(UsageError, match=r"^night \(\['newest'\]\) must be a mapping"):
        suite.load(str(tmp_path / "own.yaml"))
    (tmp_path / "own.yaml").write_text("night: []\nperplexity: {}\n")
    with pytest.raises(UsageError, match=r"^night \(\[\]\) must be a mapping"):
        suite.load(str(tmp_path / "own.yaml"))


def test_old_models_go_and_those_of_champions_stay(tmp_path: Path) -> None:
    def made(name: str, time: float) -> Path:
        path = tmp_path / f"{name}-0123456789ab"
        storage.write_bytes(str(path / "manifest.json"), b"{}")
        os.utime(path / "manifest.json", (time, time))
        (tmp_path / name).symlink_to(path.name)
        return path

    old, champions, new = (
        made("finetune@demo.1.aaaaaaaa-1", 10),
        made("finetune@demo.2.bbbbbbbb-1", 10),
        made("perplexity@demo.3.cccccccc", 30),
    )
    (tmp_path / "_status").mkdir()
    assert remove_old_artifacts(tmp_path, 20, {"demo.2.bbbbbbbb"}) == [old.name]
    assert not old.exists()
    assert not (tmp_path / "finetune@demo.1.aaaaaaaa-1").is_symlink()
    assert champions.exists()
    assert new.exists()
    assert (tmp_path / "finetune@demo.2.bbbbbbbb-1").exists()
    assert (tmp_path / "_status").exists()
    assert remove_old_artifacts(tmp_path / "none", 20, ()) == []


def test_a_checkpoint_is_promoted_and_rolled_back_by_hand(runs: Path) -> None:
    made = training(runs / "demo" / "pretrain-aaa", "a" * 64, [10, 20])
    other = training(runs / "other" / "pretrain-bbb", "b" * 64, [5])
    journal = Journal(runs)
    assert promote(journal, str(made), "newest").step == 20
    assert (
        promote(journal, str(other / "checkpoints" / "step-00000005"), "it reads better").run
        == "other"
    )
    now = journal.champion()
    assert now is not None
    assert now.why.startswith("it reads better (")
    with pytest.raises(UsageError, match="is the champion already"):
        promote(journal, str(other), "again")
    with pytest.raises(UsageError, match="is not a complete checkpoint"):
        promote(journal, str(runs / "none"), "nobody")
    assert roll_back(journal, "it swears").step == 20
    assert [change.champion.step for change in journal.changes()] == [20, 5, 20]


def test_what_was_made_of_the_champion_is_not_made_again_of_its_copy(runs: Path) -> None:
    """Its training removes the checkpoint; the copy next to the journal has the same fingerprint."""
    made = training(runs / "demo" / "pretrain-aaa", "a" * 64, [10])
    journal = Journal(runs)
    champion = promote(journal, str(made), "by hand")
    before = input_fingerprint(champion.checkpoint)
    shutil.rmtree(made)
    copy = champion_path(journal, champion)
    assert copy is not None
    assert str(journal.directory.resolve()) in copy
    assert input_fingerprint(copy) == before == champion.key
    for number in range(4):  # the copies of the last few are kept
        promote(
            journal,
            str(training(runs / f"run{number}" / "pretrain", f"{number}" * 64, [1])),
            "by hand",
        )
    assert champion_path(journal, champion) is None


def test_a_champion_on_a_store_is_copied(runs: Path) -> None:
    url = f"memory://{uuid.uuid4().hex}/demo/pretrain-aaa"
    step = storage.join(url, "checkpoints", "step-00000010")
    storage.write_bytes(f"{step}/training/rank-0", b"optimizer")
    storage.write_bytes(f"{step}/weights", b"weights")
    storage.write_bytes(f"{step}/checkpoint.json", b"{}")
    claim = {"stage": "pretrain", "fingerprint": "a" * 64, "build": "b1"}
    storage.write_bytes(f"{url}/_building.json", json.dumps(claim).encode())
    (runs / "demo").mkdir(parents=True)
    (runs / "demo" / "pretrain").symlink_to(url)
    journal = Journal(runs)
    promoted = promote(journal, str(runs / "demo" / "pretrain"), "by hand")
    assert (promoted.checkpoint, journal.champion()) == (step, promoted)
    storage.remove(url)
    copy = champion_path(journal, promoted)
    assert copy is not None
    assert storage.list_files(copy) == ["checkpoint.json", "weights"]
    assert input_fingerprint(copy) == promoted.key


def test_a_copy_of_the_champion_whose_process_was_killed_early_is_completed(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = training(runs / "demo" / "pretrain-aaa", "a" * 64, [10])
    journal = Journal(runs)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: 1 / 0)  # killed after the copy
        patch.setattr(storage, "write_bytes", lambda *_: 1 / 0)  # or before its claim
        with pytest.raises(ZeroDivisionError):
            promote(journal, str(made), "by hand")
    champion = promote(journal, str(made), "by hand")
    copies = list((journal.directory / "champions").glob("*/checkpoints/*"))
    for claim in (journal.directory / "champions").glob("*/_building.json"):
        claim.unlink()  # as an earlier version left it
    keep_champion_files(journal, champion)
    shutil.rmtree(made)
    copy = champion_path(journal, champion)
    assert [str(path.resolve()) for path in copies] == [copy]
    assert input_fingerprint(str(copy)) == champion.key


def test_the_journal_is_read_a_few_times_however_many_checkpoints_there_are(runs: Path) -> None:
    training(runs / "demo" / "pretrain-aaa", "a" * 64, list(range(1, 101)))
    journal = Journal(runs)
    journal.append(night())
    opened, is_over = list[str](), list[bool]()
    sys.addaudithook(
        lambda event, given: (
            opened.append(str(given[0])) if event == "open" and not is_over else None
        )
    )
    NightlyRun(suite.load())
    is_over.append(True)  # a hook stays for ever
    assert 0 < len([name for name in opened if name.endswith("nights.jsonl")]) < 5
