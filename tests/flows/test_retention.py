"""`cloze clean`: what is kept and why, what goes, and what is never touched."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from cloze.core import storage
from cloze.core.artifacts.lock import locked
from cloze.core.stages.execution import Execution
from cloze.flows import cli
from cloze.flows.graph.command import CommandConfig, command_directory
from cloze.flows.graph.nodes import InputSource, Node
from cloze.flows.nightly.journal import CHAMPION, Journal
from cloze.flows.run import retention
from cloze.flows.run.session import RunParameters, RunSession, run_plain
from tests.flows import toy_run
from tests.flows.nightly.test_journal import champion


@pytest.fixture
def runs(toy_config: str, tmp_path: Path) -> Path:
    """Run `toy` with 4 letters, then with 5, and run `other` with 4, whose letters are its own."""
    for name, size in (("toy", 4), ("toy", 5), ("other", 4)):
        settings = ["--set", f"name={name}", "--set", f"letters.size={size}"]
        assert cli.main(["run", toy_config, "--no-prefect", *settings]) == 0
    return tmp_path / "runs"


def clean(capsys: pytest.CaptureFixture[str], *options: str, code: int = 0) -> dict[str, Any]:
    capsys.readouterr()
    assert cli.main(["clean", "--json", *options]) == code
    content: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return content


def unneeded(answer: dict[str, Any]) -> list[str]:
    return sorted(row["artifact"] for row in answer["artifacts"] if not row["needed_for"])


def test_superseded_results_go(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = clean(capsys)
    assert len(unneeded(shown)) == 2
    assert all("/toy/" in path for path in unneeded(shown))
    named = [row for row in shown["artifacts"] if row["needed_for"]]
    assert sorted(reason for row in named for reason in row["needed_for"] if "-" not in reason) == [
        "other/count", "other/letters", "toy/count", "toy/letters"
    ]  # fmt: skip
    assert all(Path(path).exists() for path in unneeded(shown))  # nothing changed yet
    current = {path: path.resolve() for path in runs.glob("*/[lc]*") if path.is_symlink()}
    done = clean(capsys, "--delete")
    assert sorted(row["artifact"] for row in done["artifacts"] if row["removed"]) == unneeded(shown)
    assert not any(Path(path).exists() for path in unneeded(shown))
    assert {path: path.resolve() for path in runs.glob("*/[lc]*") if path.is_symlink()} == current
    assert clean(capsys, "--delete")["artifacts"] == clean(capsys)["artifacts"]
    assert len(clean(capsys)["artifacts"]) == 4


def test_what_could_not_be_removed_is_counted(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(storage, "write_bytes", refuse)
    assert cli.main(["clean", "--delete"]) == 0
    assert "0 artifacts removed" in (said := capsys.readouterr().out)
    assert "2 stay: " in said


def test_a_discarded_run(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clean(capsys, "toy", "--delete")
    assert not (runs / "toy").exists()
    assert (runs / "other" / "count").exists()
    assert clean(capsys, "nothing", code=2)["error"]["message"].startswith("no run 'nothing'")


def test_what_a_failed_run_continues(
    runs: Path, tmp_path: Path, toy_config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unfinished build stays until its run has another config; its inputs are cached anyway."""
    fault = tmp_path / "fault"
    for size, code in ((4, 1), (6, 0)):
        fault.write_text("")
        settings = ["--set", "name=other", "--set", f"letters.size={size}"]
        broken = ["--set", f"count.fault={fault}"] if code else []
        assert cli.main(["run", toy_config, "--no-prefect", *settings, *broken]) == code
        rows = clean(capsys)["artifacts"]
        unfinished = [row for row in rows if (Path(row["artifact"]) / "_building.json").exists()]
        assert [row["needed_for"] for row in unfinished] == [
            ["`cloze resume other` (count)"] if code else []
        ]


@pytest.mark.parametrize("is_command", [False, True])
def test_inputs_of_an_unfinished_build(
    tmp_path: Path,
    toy_config: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    is_command: bool,
) -> None:
    """They stay while the run can be resumed, wherever `cloze clean` was started."""
    monkeypatch.delenv("CLOZE_RUNS_DIR")  # ./runs: paths are relative to this directory
    toy = ["run", toy_config, "--no-prefect", "--set", "name=toy"]
    assert cli.main(toy) == 0
    letters = (tmp_path / "runs" / "toy" / "letters").resolve()
    path = str(letters.relative_to(tmp_path))
    fault = tmp_path / "fault"
    fault.touch()
    reader = f"name: reader\nletters: false\ncount: {{letters: {path}, fault: {fault}}}"
    (tmp_path / "reader.yaml").write_text(reader)
    if is_command:
        node = Node(
            name="count",
            stage="count",
            section="count",
            values={},
            config=toy_run.CountConfig(fault=str(fault)),
            execution=Execution(),
            inputs={"letters": InputSource(path=path)},
            out="made/count",
        )
        directory = command_directory(Path("runs"), node.out)
        directory.mkdir(parents=True)
        command = CommandConfig(node=node, directory=directory)
        with (
            pytest.raises(RuntimeError),
            RunSession(RunParameters(config=node.out), config=command) as session,
        ):
            session.run_node(session.steps[0])
    else:
        assert cli.main(["run", "reader.yaml", "--no-prefect"]) == 1
    assert cli.main([*toy, "--set", "letters.size=5"]) == 0
    (tmp_path / "elsewhere").mkdir()
    for directory in (tmp_path, tmp_path / "elsewhere"):
        monkeypatch.setenv("CLOZE_RUNS_DIR", str(tmp_path / "runs"))
        monkeypatch.chdir(directory)
        rows = clean(capsys)["artifacts"]
        needed = {Path(row["artifact"]).resolve(): row["needed_for"] for row in rows}
        reason = "made/count" if is_command else "`cloze resume reader` (count)"
        assert needed[letters] == [reason]
        if not is_command:
            (unfinished,) = (tmp_path / "runs" / "reader").glob("count-*")
            assert needed[unfinished] == [reason]


def test_inputs_of_what_is_kept(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "toy" / "letters").unlink()
    rows = clean(capsys, "other")["artifacts"]
    needed = [row for row in rows if row["needed_for"]]
    (letters,) = (row for row in needed if "/letters-" in row["artifact"])
    (count,) = (row for row in needed if "/count-" in row["artifact"])
    assert count["needed_for"] == ["toy/count"]
    assert letters["needed_for"] == ["/".join(Path(count["artifact"]).parts[-2:])]
    assert len(rows) == 6


def test_builds_champions_age_and_foreign_files(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    second, first = unneeded(clean(capsys))  # counts, and the letters that were counted
    with locked(first):
        (row,) = (row for row in clean(capsys, "--delete")["artifacts"] if row["artifact"] == first)
        assert row["needed_for"] == ["a build in progress"]
        stored = next(s for s in retention.survey(runs) if str(s.path) == first)
        assert not retention.remove(runs, [stored])  # which began after the survey
    assert Path(first).exists()
    assert not Path(second).exists()
    (Path(first) / "notes.txt").write_text("mine")
    assert unneeded(clean(capsys)) == []
    (Path(first) / "notes.txt").unlink()
    assert unneeded(clean(capsys, "--unused-days", "1")) == []
    old = time.time() - 2 * retention.DAY
    os.utime(Path(first) / "manifest.json", (old, old))
    for record in (runs / "toy" / "_status").glob("*.json"):
        content = json.loads(record.read_text())
        record.write_text(json.dumps({**content, "started": content["started"] - 2 * 86400}))
    assert unneeded(clean(capsys, "--unused-days", "1")) == [first]
    step = Path(first) / "checkpoints" / "step-00000001"
    step.mkdir(parents=True)
    (step / "checkpoint.json").write_text("{}")
    journal = Journal(runs)
    best = champion(1)
    journal.append(
        {"kind": CHAMPION, "time": 1.0, "champion": {**asdict(best), "checkpoint": str(step)}}
    )
    rows = clean(capsys, "--unused-days", "1")["artifacts"]
    (reasons,) = (row["needed_for"] for row in rows if row["artifact"] == first)
    assert "the champion" in reasons


def test_a_run_that_starts_after_the_survey_keeps_what_it_reads(
    runs: Path, toy_config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its plan found the letters of an earlier config, and nothing needed them then."""
    found = retention.survey(runs)
    old = [stored for stored in found if not stored.needed_for]
    assert len(old) == 2
    parameters = RunParameters(config=toy_config, overrides={"name": "toy", "letters": {"size": 4}})
    session = RunSession(parameters)
    assert all(step.cached for step in session.steps)
    with session:
        assert retention.remove(runs, old) == []
    assert all(stored.path.exists() for stored in old)


def test_a_run_makes_what_was_removed_between_its_plan_and_its_start(
    runs: Path, toy_config: str
) -> None:
    parameters = RunParameters(config=toy_config, overrides={"name": "toy", "letters": {"size": 4}})
    session = RunSession(parameters)
    old = [stored for stored in retention.survey(runs) if not stored.needed_for]
    assert len(retention.remove(runs, old)) == 2
    results = run_plain(session)
    assert [results[name].cached for name in ("letters", "count")] == [False, False]
    assert all(stored.path.exists() for stored in old)


def test_a_removal_waits_for_a_run_that_starts(runs: Path) -> None:
    with retention.starts(runs):
        removal = threading.Thread(target=retention.remove, args=(runs, retention.survey(runs)))
        removal.start()
        removal.join(0.2)
        assert removal.is_alive()
    removal.join(60)
    assert len(list(runs.glob("*/*-*/manifest.json"))) == 4


def test_a_removal_that_was_killed(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention.shutil, "rmtree", lambda *_, **__: None)
    assert not any(row["removed"] for row in clean(capsys, "--delete")["artifacts"])
    monkeypatch.undo()
    monkeypatch.setenv("CLOZE_RUNS_DIR", str(runs))
    left = unneeded(clean(capsys))
    assert len(left) == 2  # no artifacts any more, and still known
    assert not any((Path(path) / "manifest.json").exists() for path in left)
    clean(capsys, "--delete")
    assert not any(Path(path).exists() for path in left)
