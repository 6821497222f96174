"""The source of a run: what a start begins imports the files of its beginning, whatever is edited
later.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloze.core import figures, identity, plugins
from cloze.core.errors import UsageError
from cloze.core.stages.execute import execute
from cloze.core.stages.execution import Execution
from cloze.core.stages.worker import JOB, LOGS, Job
from cloze.flows import cli
from cloze.flows.launch import coordinator, protocol, site
from cloze.flows.run import source, status_file
from tests.checkout import copy_packages
from tests.flows.conftest import FIX
from tests.flows.launch import here
from tests.flows.sources import another_start, training
from tests.flows.toy import STAGE, ToyConfig


def content(folder: Path) -> dict[str, bytes]:
    """The files of a copy, without bytecode."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_the_copy_has_the_layout_of_a_wheel_and_comes_first(package: Path, tmp_path: Path) -> None:
    (package / "core" / "__pycache__").mkdir()
    for name in ("core/__pycache__/a.pyc", "core/.#a.py"):
        (package / name).write_text("of an editor or of Python")
    copy = Path(source.fix(tmp_path / "runs"))
    assert content(copy) == {
        "cloze/__init__.py": b"",
        "cloze/core/words.txt": b"one",
        "cloze/core/a.py": b"A = 1",
        "cloze/flows/data/prefect.yaml": b"prefect.yaml",
        "cloze/flows/data/constraints.txt": b"constraints.txt",
        "cloze/flows/data/samples/a.txt": b"samples/a.txt",
    }
    assert os.environ["PYTHONPATH"] == f"{copy}{os.pathsep}/elsewhere"
    assert list((tmp_path / "runs" / ".source").iterdir()) == [copy]
    assert source.fix(tmp_path / "runs") == str(copy)  # a second run of this process
    assert os.environ["PYTHONPATH"] == f"{copy}{os.pathsep}/elsewhere"


@given(st.dictionaries(st.sampled_from(["a.py", "b/c.txt", "b/d.html", "e.py"]), st.binary()))
def test_a_copy_is_named_by_content_alone(files: dict[str, bytes]) -> None:
    """Equal content has one name, in any order; content that moves to another file has another."""
    name = identity.digest(files)
    assert identity.digest(dict(reversed(files.items()))) == name
    for path in files:
        assert identity.digest({**files, path: files[path] + b"#"}) != name
        assert identity.digest({**files, f"{path}x": b""}) != name


def test_equal_content_has_equal_bytes_and_an_edit_has_a_copy_of_its_own(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Path(source.fix(tmp_path / "runs"))
    another_start(monkeypatch)
    os.utime(package / "core" / "a.py", (1.0, 1.0))
    second = Path(source.fix(tmp_path / "other runs"))
    assert (first.name, content(first)) == (second.name, content(second))
    another_start(monkeypatch)
    (package / "core" / "a.py").write_text("A = 2")
    third = Path(source.fix(tmp_path / "runs"))
    assert third.name != first.name
    assert content(first) == content(second)  # as before


def test_this_process_keeps_its_source_after_an_edit(package: Path, tmp_path: Path) -> None:
    first = source.fix(tmp_path / "runs")
    (package / "core" / "a.py").write_text("A = 2")
    (package.parents[1] / "prefect.yaml").write_text("edited")
    assert source.fix(tmp_path / "runs") == first


@pytest.mark.parametrize("left", [None, "A = 3"])
def test_a_damaged_copy_is_made_whole(
    left: str | None, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start was killed, a cleaner removed what was not read for days, or somebody changed it."""
    copy = Path(source.fix(tmp_path / "runs"))
    before = content(copy)
    damaged = copy / "cloze" / "core" / "a.py"
    damaged.unlink()
    if left is not None:
        damaged.write_text(left)
    another_start(monkeypatch)
    assert (source.fix(tmp_path / "runs"), content(copy)) == (str(copy), before)


def test_a_host_without_the_copy_has_the_same_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checkout is compared with the head's copy, which has files that lie at a checkout's top."""
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setattr(source, "_import_later", lambda _: None)
    there = identity.identity()
    copy = Path(FIX(tmp_path / "runs"))
    assert list((copy / "cloze" / "flows" / "data").rglob("*.txt"))
    assert identity.package_root() == copy / "cloze"
    assert identity.identity() == there


def test_a_package_in_the_working_directory_is_named(
    package: Path, toy_config: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """`python -m` imports from there first, so an edit there would reach the run in silence."""
    assert cli.main(["run", toy_config, "--no-prefect"]) == 0
    assert "source" not in capsys.readouterr().err
    monkeypatch.chdir(package.parent)
    start(toy_config)
    assert "source: processes import ./cloze; start in another" in capsys.readouterr().err


def test_an_installed_package_is_not_copied(package: Path, tmp_path: Path) -> None:
    (package.parent / "cloze_pretraining_base-0.1.0.dist-info").mkdir()
    assert source.fix(tmp_path / "runs") == plugins.own_version()
    assert not (tmp_path / "runs").exists()
    assert os.environ["PYTHONPATH"] == "/elsewhere"


def test_jobs_take_it_before_what_a_prologue_sets(package: Path, tmp_path: Path) -> None:
    """Modules of clusters put their own directories first."""
    copy = source.fix(tmp_path / "a run's")
    script = site.LauncherSite(prologue=("export PYTHONPATH=/module",)).script("echo $PYTHONPATH")
    shown = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert shown.stdout == f"{copy}:/module\n"


PROGRAM = """
import subprocess, sys
from pathlib import Path
from cloze.flows.run import source
copy = source.fix(Path(sys.argv[1]))
for name in ("label_metrics", "ragged"):  # neither is imported yet
    assert "cloze.core." + name not in sys.modules
    Path(sys.argv[2], "core", name + ".py").write_text("raise RuntimeError('edited')")
from cloze.core import ragged
subprocess.run([sys.executable, "-c", "from cloze.core import label_metrics as m; print(m.__file__)"])
print(ragged.__file__)
print(copy)
"""


def test_later_imports_of_a_process_and_of_its_children_are_of_the_start(tmp_path: Path) -> None:
    copy_packages(tmp_path / "checkout", "samples")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "checkout" / "src")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path / "runs", tmp_path / "checkout"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    child, own, copy = done.stdout.splitlines()
    assert child == f"{copy}/cloze/core/label_metrics.py"
    assert own == f"{copy}/cloze/core/ragged.py"


FIGURES = Path(figures.__file__).read_text()


class EditedHere(here.Here):
    """Hosts on which a checkout is edited between the head's look at it and the agents' start."""

    def __init__(self, checkout: Path, edit: str) -> None:
        self.checkout, self.edit = checkout, edit

    def start_agents(self, launch: Any, execution: Execution) -> Any:
        (self.checkout / "core" / "figures.py").write_text(self.edit)
        return super().start_agents(launch, execution)


@pytest.mark.parametrize("edit", ["raise RuntimeError('edited')", FIGURES + "# a word more"])
def test_an_edit_ends_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edit: str) -> None:
    """Agents of two hosts refused: other source files of Cloze; or they could not start."""
    copy_packages(checkout := tmp_path / "checkout", "samples", "tests")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(checkout / "src"), str(checkout)]))
    monkeypatch.setattr(identity, "__file__", str(checkout / "src/cloze/core/identity.py"))
    monkeypatch.setattr(source, "DATA", checkout)
    monkeypatch.setattr(source, "_import_later", lambda _: None)
    monkeypatch.setitem(protocol.LAUNCHERS, "here", EditedHere(checkout, edit))
    copy = FIX(tmp_path / "runs")
    stage = dataclasses.replace(
        STAGE, run=coordinator.run_in_worker_processes(STAGE, "tests.flows.toy:STAGE")
    )
    how = Execution(launcher="here", nodes=2, grace_seconds=20, restarts=1)
    out = str(tmp_path / "a")
    result = execute(stage, ToyConfig(act="die once"), {}, out, execution=how)
    assert result.manifest.summary == {"rank": 0}
    assert Job.read(f"{out}/{LOGS}/{JOB}").source == copy


# Starts, resumes and `cloze clean`.


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The PYTHONPATH of each process that this one would have become."""
    found: list[str] = []

    def become(_: str, words: list[str]) -> None:
        found.append(os.environ["PYTHONPATH"])
        raise SystemExit(0)

    monkeypatch.setattr(os, "execv", become)
    return found


def start(config: str, code: int = 0) -> None:
    assert cli.main(["run", config, "--no-prefect", "--set", "count.fault=stop"]) == code


def test_a_run_is_resumed_with_its_source(
    package: Path, tmp_path: Path, toy_config: str, entered: list[str],
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    Path("stop").touch()
    start(toy_config, code=1)
    recorded = status_file.read(tmp_path / "runs", "toy")["source"]
    assert "source:" not in capsys.readouterr().err
    another_start(monkeypatch)
    (package / "core" / "a.py").write_text("A = 2")
    with pytest.raises(SystemExit):
        cli.main(["resume", "toy", "--no-prefect"])
    assert entered == [f"{recorded}{os.pathsep}/elsewhere"]
    assert f"source: {Path(recorded).name[:12]}, as recorded\n" in capsys.readouterr().err
    another_start(monkeypatch)
    assert cli.main(["resume", "toy", "--no-prefect", "--current-source"]) == 0
    today = status_file.read(tmp_path / "runs", "toy")["source"]
    said = " ".join(capsys.readouterr().err.split())
    names = [Path(each).name[:12] for each in (today, recorded)]
    assert f"source: this start has {names[0]}, and the last start had {names[1]}" in said
    assert len(entered) == 1


@pytest.mark.parametrize("edit", ["A = 2", "A = 1"])
def test_a_retry_in_prefect_imports_what_its_flow_run_began_with(
    package: Path, tmp_path: Path, toy_config: str, monkeypatch: pytest.MonkeyPatch, edit: str
) -> None:
    Path("stop").touch()
    start(toy_config, code=1)
    runs = tmp_path / "runs"
    (file,) = (runs / "toy" / "_status").glob("*.json")
    record = json.loads(file.read_text())
    source.remember("a-flow-run", record["source"], runs)
    another_start(monkeypatch)
    (package / "core" / "a.py").write_text(edit)
    start(toy_config)  # of another flow run, or of none, with today's files
    another_start(monkeypatch)
    assert source.retake("another-flow-run", runs) is None
    assert os.environ["PYTHONPATH"] == "/elsewhere"
    if edit == "A = 1":
        assert source.retake("a-flow-run", runs) is None
        return
    assert source.retake("a-flow-run", runs) == Path(record["source"]).name[:12]
    assert os.environ["PYTHONPATH"] == f"{record['source']}{os.pathsep}/elsewhere"
    another_start(monkeypatch)
    Path(record["source"], "cloze", "core", "a.py").unlink()
    with pytest.raises(UsageError, match="was changed; a new flow run of its deployment takes"):
        source.retake("a-flow-run", runs)


def test_a_retry_in_prefect_reads_no_record(
    package: Path, tmp_path: Path, toy_config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be thousands, on a slow disk."""
    runs, copy = tmp_path / "runs", source.fix(tmp_path / "runs")
    start(toy_config)
    monkeypatch.setattr(source, "RETAINED_FLOW_RUNS", 2)
    for number in range(3):
        assert not source.remember(f"flow-run-{number}", copy, runs)
        os.utime(runs / source.FLOW_RUNS / f"flow-run-{number}", (number, number))
    assert len(os.listdir(runs / source.FLOW_RUNS)) == 3  # a start looks at its own alone
    source.forget_old(runs)
    assert source.remember("flow-run-3", "0.1.0", runs)  # an installed package has no copy
    assert sorted(os.listdir(runs / source.FLOW_RUNS)) == ["flow-run-1", "flow-run-2"]
    assert source.remember("flow-run-2", copy, runs)  # a retry
    assert not source.remember("flow-run-0", copy, runs)  # a retry whose note is gone: it is told
    another_start(monkeypatch)
    (package / "core" / "a.py").write_text("A = 2")
    opened: list[str] = []
    with monkeypatch.context() as within:
        within.setattr(status_file, "records_in", lambda path: opened.append(str(path)))
        assert source.retake("flow-run-2", runs) == Path(copy).name[:12]
    assert opened == []


def test_a_run_whose_source_has_not_changed_is_just_resumed(
    package: Path, toy_config: str, entered: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("stop").touch()
    start(toy_config, code=1)
    another_start(monkeypatch)
    assert cli.main(["resume", "toy", "--no-prefect"]) == 0
    assert entered == []


@pytest.mark.parametrize("fault", ["gone", "incomplete", "longer", "other words"])
def test_a_source_that_is_not_as_recorded_is_refused(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entered: list[str], fault: str
) -> None:
    copy = Path(source.fix(tmp_path / "runs"))
    another_start(monkeypatch)
    (package / "core" / "a.py").write_text("A = 2")
    if fault == "gone":
        copy.rename(tmp_path / "aside")
    elif fault == "incomplete":
        (copy / "cloze" / "core" / "a.py").unlink()
    else:
        name = "b.py" if fault == "longer" else "words.txt"
        (copy / "cloze" / "core" / name).unlink(missing_ok=True)
        (copy / "cloze" / "core" / name).write_text("B = 1")
    with pytest.raises(UsageError, match="is gone or was changed; --current-source goes on with"):
        source.enter(training(tmp_path / "runs", str(copy)), tmp_path / "runs")
    assert entered == []


def test_a_source_that_another_package_hides_is_refused(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entered: list[str]
) -> None:
    """Else the command would begin anew for ever."""
    copy = source.fix(tmp_path / "runs")
    (package / "core" / "a.py").write_text("A = 2")
    with pytest.raises(UsageError, match="is hidden by ./cloze"):
        source.enter(training(tmp_path / "runs", copy), tmp_path / "runs")


def test_a_moved_runs_directory_has_its_sources(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entered: list[str]
) -> None:
    copy = source.fix(tmp_path / "runs")
    another_start(monkeypatch)
    (package / "core" / "a.py").write_text("A = 2")
    (tmp_path / "runs").rename(tmp_path / "moved")
    with pytest.raises(SystemExit):
        source.enter(training(tmp_path / "moved", copy), tmp_path / "moved")
    assert entered == [f"{tmp_path}/moved/.source/{Path(copy).name}{os.pathsep}/elsewhere"]


def test_a_directory_that_cannot_have_the_copy_is_named(
    package: Path, tmp_path: Path, toy_config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / ".source").write_text("no directory")
    assert cli.main(["run", toy_config, "--no-prefect"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "source: not recorded, so an edit reaches this run:" in said
    assert status_file.read(tmp_path / "runs", "toy")["source"] is None
