"""After a run by any launcher, no file that other accounts may read holds a secret."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from cloze.core.secrets import holds_secret, redact
from cloze.core.stages.execute import execute
from cloze.core.stages.execution import Execution
from cloze.flows.launch import coordinator, protocol
from cloze.flows.launch.slurm import cli as slurm_cli
from cloze.flows.tracking import spool_state
from tests.checkout import import_path
from tests.conftest import REPOSITORY
from tests.flows.launch.test_detached import submit
from tests.flows.toy import STAGE, ToyConfig
from tests.labs.kubernetes.test_kubernetes import IMAGE
from tests.labs.kubernetes.test_kubernetes import cluster as cluster
from tests.slurm_stand_in import Queue

OURS = "correct-horse-battery"  # in a variable of the environment
GIVEN = "staple-of-the-pods"  # in an option, and in no variable


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", import_path(REPOSITORY), prepend=os.pathsep)
    monkeypatch.setenv("HF_TOKEN", OURS)
    monkeypatch.setitem(protocol.LAUNCHERS, "here", "tests.flows.launch.here:LAUNCHER")


def loose(place: Path) -> list[str]:
    """Files below a directory that others may read and that hold a secret."""
    return [
        str(path.relative_to(place))
        for path in sorted(place.rglob("*"))
        if path.is_file()
        and stat.S_IMODE(path.stat().st_mode) & 0o044
        and any(secret.encode() in path.read_bytes() for secret in (OURS, GIVEN))
    ]


def run(out: Path, **execution: Any) -> None:
    stage = dataclasses.replace(
        STAGE, run=coordinator.run_in_worker_processes(STAGE, "tests.flows.toy:STAGE")
    )
    execute(
        stage, ToyConfig(), {}, str(out), execution=Execution(device="cpu", **execution)
    )  # fmt: skip
    assert (out / "out.txt").exists()


def test_local(tmp_path: Path) -> None:
    run(tmp_path / "out", processes=2)
    assert loose(tmp_path) == []


def test_agents(tmp_path: Path) -> None:
    run(tmp_path / "out", launcher="here", nodes=2)
    assert loose(tmp_path) == []


def test_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    program = programs / "ssh"  # runs the command here; the host is the last word but one
    program.write_text(
        '#!/bin/sh\nfor word; do [ "$word" = -G ] && { echo hostname 127.0.0.1; exit; }; '
        'done\nwhile [ "${1#-}" != "$1" ]; do [ "$1" = -o ] && shift; shift; done\nshift\n'
        'exec sh -c "$*"\n'
    )
    program.chmod(0o755)
    (tmp_path / "hosts").write_text("a\n")
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    run(tmp_path / "out", launcher="ssh", hostfile=str(tmp_path / "hosts"))
    assert loose(tmp_path / "out") == []


def test_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(tmp_path / "queue")
    monkeypatch.setenv("PATH", queue.path)
    monkeypatch.setattr(slurm_cli, "POLL_SECONDS", (0.01, 0.1))
    submit(tmp_path / "out", slurm_options=(f"--export=ALL,HF_TOKEN={GIVEN}",))
    assert GIVEN in (tmp_path / "out" / "_logs" / "slurm" / "work.json").read_text()
    assert loose(tmp_path) == []


def test_kubernetes(cluster: Path, tmp_path: Path) -> None:
    claim = f"claim=training:{tmp_path}"
    run(
        tmp_path / "out", launcher="kubernetes", nodes=2,
        kubernetes_options=(
            IMAGE, claim, f"python={sys.executable}", f"env=AWS_SECRET_ACCESS_KEY={GIVEN}"
        ),
    )  # fmt: skip
    (manifest,) = (tmp_path / "out" / "_logs" / "kubernetes").glob("*.yaml")
    assert GIVEN in manifest.read_text()
    assert loose(tmp_path / "out") == []


@pytest.mark.parametrize(
    "option",
    [
        "env=AWS_SECRET_ACCESS_KEY={}",
        "env=PGPASSWORD={}",
        "--export=ALL,HF_TOKEN={},X=1",
        "SetEnv=MLFLOW_TRACKING_TOKEN={}",
        "PREFECT_API_AUTH_STRING={}",
        "DB_PASSWORD_FILE_KEY='{}'",
    ],
)
def test_a_variable_given_in_an_option_is_a_secret_by_its_name(option: str) -> None:
    assert holds_secret([option.format(GIVEN)])
    assert GIVEN not in json.dumps(redact({"options": [option.format(GIVEN)]}))


@pytest.mark.parametrize(
    "option", ["env=NCCL_DEBUG=INFO", "--gres=gpu:8", "MASK_TOKENS=3", "tokens=5", "env=KEYS=a"]
)
def test_other_variables_stay(option: str) -> None:
    assert redact(option) == option


def test_refused_records_are_the_owners(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        spool_state.add_dead_letter(tmp_path / "1.jsonl", {"op": "tag"}, "too long")
        assert stat.S_IMODE((tmp_path / spool_state.FILE).stat().st_mode) == 0o600
        assert spool_state.requeue(tmp_path) == 1
        (again,) = tmp_path.glob("*-again.jsonl")
        assert stat.S_IMODE(again.stat().st_mode) == 0o600
    finally:
        os.umask(before)
