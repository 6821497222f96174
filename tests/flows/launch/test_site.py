"""The site's file: what a job does before Python, which Python it is, and the site's options."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.core.errors import UsageError
from cloze.core.stages.execution import Execution
from cloze.flows.commands import services
from cloze.flows.doctor import launched, machine
from cloze.flows.launch import site, ssh
from cloze.flows.launch.protocol import LaunchSpec
from cloze.flows.launch.site import LauncherSite
from cloze.flows.launch.slurm import cli as slurm_cli
from cloze.labs.kubernetes import manifest

SHOW = [sys.executable, "-S", "-c", "import json, os, sys; print(json.dumps([dict(os.environ), sys.argv]))"]  # fmt: skip


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write the site's file."""

    def writing(text: str) -> Path:
        file = tmp_path / "site.yaml"
        file.write_text(text)
        monkeypatch.setenv(site.VARIABLE, str(file))
        return file

    return writing


def ran(here: LauncherSite, shell: str = "bash") -> subprocess.CompletedProcess[str]:
    script = here.script(site.shell(SHOW))
    return subprocess.run([shell, "-c", script], capture_output=True, text=True, check=False)


@settings(max_examples=15)
@given(st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=20))
def test_what_a_prologue_sets_reaches_the_program(value: str) -> None:
    """The lines run in the shell that becomes the program, whatever they contain."""
    here = LauncherSite(prologue=(f"export SEEN={shlex.quote(value)}",))
    done = ran(here)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0]["SEEN"] == value


@pytest.mark.parametrize("shell", ["bash", "sh"])
@pytest.mark.parametrize(
    ("lines", "failed"),
    [
        (("true", "no-such-module load cuda", "true"), "no-such-module load cuda"),
        (("false",), "false"),
        (("test 'a' = \"b\"", "false"), "test 'a' = \"b\""),
        ((". /no/such/file",), ". /no/such/file"),
    ],
)
def test_a_command_that_fails_ends_the_job_and_is_named(
    shell: str, lines: tuple[str, ...], failed: str
) -> None:
    done = ran(LauncherSite(prologue=lines), shell)
    assert done.returncode == 2
    if shell == "bash" or not failed.startswith("."):  # dash itself ends there
        assert done.stderr.splitlines()[-1] == f"cloze: launcher.prologue failed: {failed}"
    assert not done.stdout


def test_a_prologue_reads_nothing_of_what_the_agent_is_told() -> None:
    """An agent's first line of standard input has its environment."""
    here = LauncherSite(prologue=("cat",))
    script = here.script(site.shell(["cat"]))
    done = subprocess.run(["bash", "-c", script], input="told", capture_output=True, text=True)
    assert done.stdout == "told"


def test_lines_and_blocks() -> None:
    text = LauncherSite.model_validate({"prologue": "a b\n\nc\n"})
    assert text.prologue == ("a b", "c")
    block = LauncherSite(prologue=("if true; then\n  export SEEN=1\nfi",))
    assert json.loads(ran(block).stdout)[0]["SEEN"] == "1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "launcher: {prolog: a}",
            r"unknown config key .*launcher\.prolog; did you mean 'prologue'",
        ),
        ("launchr: {}", r"unknown config key .*launchr; did you mean 'launcher'"),
        ("- a", r"must be a mapping with launcher:"),
        ("launcher: [a", r"cannot be read .*correct it"),
        ("launcher: {python: 3}", r"launcher\.python \(found 3\)"),
    ],
)
def test_what_is_wrong_in_the_file_is_one_sentence(write: Any, text: str, message: str) -> None:
    write(text)
    with pytest.raises(UsageError, match=message):
        site.read()


def test_a_file_that_is_named_must_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(site.VARIABLE, str(tmp_path / "none.yaml"))
    with pytest.raises(UsageError, match=r"CLOZE_SITE=.*none\.yaml does not exist; write it"):
        site.read()
    monkeypatch.delenv(site.VARIABLE)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert site.read() == LauncherSite()


@pytest.mark.parametrize(
    ("launcher", "own", "usual", "expected"),
    [
        ("slurm", ("--time=5",), ("--account=lm",), ("--account=lm", "--time=5")),
        ("slurm", ("--account=mine",), ("--account=lm",), ("--account=mine",)),
        ("kubernetes", ("image=a",), ("image=b", "queue=q"), ("queue=q", "image=a")),
        ("ssh", ("User=me",), ("Port=1", "User=all"), ("User=me", "Port=1")),
        ("slurm", (), (), ()),
    ],
)
def test_options_of_the_site_stand_below_those_of_the_run(
    launcher: str, own: tuple[str, ...], usual: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    field = f"{launcher}_options"
    every = {"slurm_options": ("--x",), "ssh_options": ("x=1",), "kubernetes_options": ("x=1",)}
    here = LauncherSite.model_validate({**every, field: usual})
    filled = here.filled(Execution.model_validate({"launcher": launcher, field: own}))
    assert getattr(filled, field) == expected
    assert all(getattr(filled, other) == () for other in every if other != field)
    assert here.filled(filled) == filled, "a resumed job has them already"


def test_a_container_holds_the_ranks_and_not_the_coordinator(write: Any) -> None:
    """The coordinator calls srun and scontrol, which the image lacks."""
    write("launcher: {container: /sw/a b.sif}")
    here = site.read()
    assert here.host_python == sys.executable
    assert here.words == ["apptainer", "exec", "--nv", "/sw/a b.sif", "python"]
    write("launcher: {container: /sw/a.sif, python: /opt/python}")
    assert site.read().words[-2:] == ["/sw/a.sif", "/opt/python"]
    write("launcher: {python: /opt/python}")
    assert (site.read().host_python, site.read().words) == ("/opt/python", ["/opt/python"])


def spec(directory: str) -> LaunchSpec:
    return LaunchSpec(
        artifact=directory, directory=f"{directory}/_logs/launches/1", job="j", worker="w",
        hosts=("",), counts=(1,), program={}, inputs={}, grace_seconds=1.0, grace_grows=False,
    )  # fmt: skip


def test_ssh_runs_the_prologue_on_the_other_host(write: Any, tmp_path: Path) -> None:
    program = tmp_path / "a python"
    program.write_text('#!/bin/sh\necho "$SEEN" "$@"\n')
    program.chmod(0o755)
    write(json.dumps({"launcher": {"prologue": ["export SEEN='x y'"], "python": str(program)}}))
    command = ssh.agent_command(spec("/data/x"), 0)
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout == "x y -m cloze.flows.launch.agent /data/x/_logs/launches/1 0 --leash\n"


def test_pods_have_the_image_and_the_prologue(write: Any) -> None:
    write("launcher: {container: 'r/cloze:1', python: py3, prologue: [export A=1]}")
    how = Execution(launcher="kubernetes", kubernetes_options=("claim=d:/data",))
    trainer = manifest.train_job("N", spec("/data/x"), how, manifest.options(how))["spec"][
        "trainer"
    ]
    assert trainer["image"] == "r/cloze:1"
    assert trainer["command"][3] == "py3"
    assert "export A=1" in trainer["command"][2]
    own = Execution(launcher="kubernetes", kubernetes_options=("image=mine", "python=p"))
    assert (manifest.options(own).image, manifest.options(own).python) == ("mine", "p")


def test_the_job_of_a_failed_prologue_is_wrong_usage(tmp_path: Path) -> None:
    from tests.flows.launch.test_slurm import slurm_work

    work, directory = slurm_work(tmp_path), tmp_path / "_logs" / "slurm"
    directory.mkdir(parents=True)
    (directory / "7.log").write_text("module: not found\ncloze: launcher.prologue failed: module\n")
    job = slurm_cli.FollowedJob(work, str(directory), "7")
    job._status = slurm_cli.SlurmJobStatus("FAILED", "NonZeroExitCode")
    error = job._error()
    assert isinstance(error, UsageError)
    assert str(error).startswith("launcher.prologue failed: module in Slurm's job 7; its output is")


def test_doctor_shows_what_a_job_sees(
    write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The job runs here in this process; tests of launchers start real ones."""
    from click.testing import CliRunner

    asked: list[Any] = []

    def run_here(stage: Any, reference: str) -> Any:
        assert reference == "cloze.flows.doctor.launched:STAGE"

        def run(config: Any, build: Any) -> Any:
            asked.append(build)
            return stage.run(config, build)

        return run

    def bad() -> list[machine.Finding]:
        return [machine.Finding(check="torch", observed="none", ok=False, fix="install it")]

    monkeypatch.setenv("CLOZE_RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.setattr(launched, "run_in_worker_processes", run_here)
    monkeypatch.setattr(machine, "CHECKS", (bad,))
    file = write("launcher: {prologue: [module load cuda]}")
    done = CliRunner().invoke(services.doctor, ["--launcher", "slurm", "--json"])
    assert done.exit_code == 1
    rows = {row["check"]: row for row in json.loads(done.stdout.splitlines()[-1])["checks"]}
    assert rows["site"]["found"] == str(file)
    assert rows["prologue"]["found"] == "module load cuda"
    assert f"{os.uname().nodename}: " in rows["host"]["found"]
    assert rows["torch"]["fix"] == "install it"
    assert asked[0].execution.launcher == "slurm"
    assert str(tmp_path / "runs") in asked[0].path, "where the cluster's nodes see it"
    assert [*(tmp_path / "runs").iterdir()] == []
