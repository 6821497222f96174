"""What `cloze doctor` says of a machine that is made up, word for word."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.requirements import Requirement

from cloze.core import plugins
from cloze.core.errors import UsageError
from cloze.flows.doctor import machine, runs
from cloze.flows.doctor.machine import Finding, run_check
from cloze.flows.run import server_addresses
from tests.conftest import REPOSITORY


def rows(check: Callable[[], Any]) -> list[dict[str, Any]]:
    return [finding.row() for finding in check()]


def good(check: str, found: str) -> dict[str, Any]:
    return {"check": check, "found": found, "ok": True}


def bad(check: str, found: str, fix: str, can_fix: bool = False) -> dict[str, Any]:
    return {
        "check": check,
        "found": found,
        "ok": False,
        "fix": fix,
        "can_fix": can_fix,
        "fixed": False,
    }


def test_a_finding_as_json() -> None:
    assert Finding(check="a", observed="b").row() == good("a", "b")
    wrong = Finding(
        check="a", observed="b", ok=False, fix="c", repair=print, fixed=True, failed="d"
    )
    assert wrong.row() == {**bad("a", "b", "c", True), "fixed": True, "failed": "d"}
    assert wrong.key == ("a", "b")


def test_a_check_that_fails_is_a_finding() -> None:
    def disk_of_all() -> Any:
        yield Finding(check="a", observed="b")
        raise RuntimeError("it broke")

    first, second = (finding.row() for finding in run_check(disk_of_all, fix=False))
    assert first == good("a", "b")
    assert (second["check"], second["ok"]) == ("disk of all", False)
    assert "it broke" in second["found"]
    assert second["fix"] == "remove the cause; if there is none, report this"


@pytest.mark.parametrize(
    ("version", "fine"),
    [((3, 10), False), ((3, 11), True), ((3, 13), True), ((3, 14), False), ((2, 11), False)],
)
def test_versions_of_python(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, int], fine: bool
) -> None:
    monkeypatch.setattr(machine.sys, "version_info", (*version, 1))
    monkeypatch.setattr(platform, "python_version", lambda: "X")
    wanted = good("python", "X") if fine else bad("python", "X", "use Python 3.11 to 3.13")
    assert rows(machine.python) == [wanted]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """Versions of the packages that are installed."""
    versions = dict.fromkeys(machine.PACKAGES, "1.0")

    def version(name: str) -> str:
        if name not in versions:
            raise machine.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(machine.metadata, "version", version)
    constraints = tmp_path / "constraints.txt"
    constraints.write_text(
        "# tested\n\ntorch==2.1\nMLflow==1.0\napache_beam==7; python_version < '3'\nfastapi==0.1\n"
    )
    monkeypatch.setattr(machine, "CONSTRAINTS", constraints)
    return versions


def test_packages(installed: dict[str, str]) -> None:
    del installed["transformers"], installed["torch"], installed["pyarrow"]
    installed |= {"fastapi": "0.151", "sqlalchemy": "2.1", "starlette": "3"}
    found = {row["check"]: row for row in rows(machine.packages)}
    assert list(found) == [*machine.PACKAGES, "versions"]
    assert found["deepspeed"] == good("deepspeed", "1.0")
    assert found["transformers"] == good(
        "transformers", "not installed (needed only to check exports)"
    )
    assert found["torch"] == bad("torch", "not installed", "pip install torch==2.1")
    assert found["pyarrow"] == bad("pyarrow", "not installed", "pip install pyarrow")
    assert found["fastapi"] == bad(
        "fastapi",
        "0.151, with prefect: Prefect's server refuses requests of its client",
        "pip install 'fastapi<0.151'",
    )
    assert found["sqlalchemy"] == bad(
        "sqlalchemy",
        "2.1, with prefect: Prefect's server fails at its first write",
        "pip install 'sqlalchemy<2.1'",
    )
    assert found["versions"] == good("versions", "not the tested ones: fastapi 0.151 (tested: 0.1)")
    installed["fastapi"] = "0.1"
    assert [row["check"] for row in rows(machine.packages)] == machine.PACKAGES


def test_an_extra_that_is_missing_as_a_whole(installed: dict[str, str]) -> None:
    for name in ("prefect", "mlflow", "fastapi", "starlette", "sqlalchemy", "apache-beam"):
        del installed[name]
    found = {row["check"]: row for row in rows(machine.packages)}
    assert all(row["ok"] for row in found.values())
    assert found["mlflow"]["found"] == "not installed (belongs to the extra flows)"
    assert found["apache-beam"]["found"] == "not installed (belongs to the extra data)"
    del installed["torch"], installed["deepspeed"]
    found = {row["check"]: row for row in rows(machine.packages)}
    assert found["mlflow"] == bad("mlflow", "not installed", "pip install MLflow==1.0")


def test_a_host_without_the_extra_train_has_no_devices_to_check(installed: dict[str, str]) -> None:
    del installed["torch"], installed["deepspeed"]
    installed["fastapi"] = "0.1"
    assert rows(machine.devices) == []
    assert all(row["ok"] for row in rows(machine.packages))


def test_an_installation_without_constraints_gets_no_version_that_is_known_to_be_broken() -> None:
    """`pip install cloze-pretraining` takes the newest version that the ranges allow."""
    text = (REPOSITORY / "pyproject.toml").read_text()
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    for broken, partner, _ in machine.BROKEN:
        (first,) = broken.specifier
        assert first.operator == ">="
        required = map(Requirement, [*extras["flows"], *(metadata.requires(partner) or ())])
        ranges = [each.specifier for each in required if each.name == broken.name]
        assert any(first.version not in each for each in ranges), broken


def test_plug_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    def one(name: str, version: str, **tables: dict[str, str]) -> Any:
        plugin = SimpleNamespace(name=name, rows=tables)
        return SimpleNamespace(package=f"p-{name}", version=version, plugin=plugin)

    asked: list[str] = []

    class Rows:
        def __getitem__(self, name: str) -> None:
            asked.append(name)
            raise UsageError("it is among the faults")

    found = [one("a", "2", stages={"x": "", "y": ""}), one("b", "", verbs={"z": ""})]
    tables = {"cloze.flows.graph.stages:TABLE": Rows()}

    def resolve(name: str) -> Any:
        if name not in tables:
            raise ImportError(name)
        return tables[name]

    monkeypatch.setattr(machine, "resolve_name", resolve)
    monkeypatch.setattr(plugins, "faults", {"it is broken": None})
    monkeypatch.setattr(plugins, "installed", lambda: found)
    assert rows(machine.plugin_packages) == [
        good("plug-in a", "p-a 2"),
        good("plug-in b", "of Cloze itself"),
        bad("plug-ins", "it is broken", "update or uninstall that package"),
    ]
    assert asked == ["x", "y"]
    found[:] = [one("c", "1", stage={"x": ""})]
    assert rows(machine.plugin_packages)[-1]["found"] == (
        f"{found[0]} has rows for 'stage', which is no table; did you mean 'stages'?"
    )


def test_compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"g++": "/bin/g++", "c++": "/bin/c++"}
    monkeypatch.setattr(shutil, "which", there.get)
    assert rows(machine.compiler) == [good("compiler", "/bin/g++")]
    del there["g++"]
    assert rows(machine.compiler) == [good("compiler", "/bin/c++")]
    del there["c++"]
    told = "none: training steps cannot be compiled; install g++ for --compile"
    assert rows(machine.compiler) == [good("compiler", told)]


def devices(
    monkeypatch: pytest.MonkeyPatch, gpus: int, driver: int, code: int = 0, **more: Any
) -> list[Any]:
    torch = {"version": "2.1", "cuda": "12", "nccl": None, "gpus": [["H", 80 << 30]] * gpus, **more}

    def output(*command: str, timeout: float) -> Any:
        if command[0] == sys.executable:
            assert timeout == 180.0
            return SimpleNamespace(
                returncode=code,
                stdout=f"noise\n{json.dumps(torch)}\n",
                stderr=more.get("stderr", ""),
            )
        assert (command, timeout) == (("nvidia-smi", "-L"), 60.0)
        if driver < 0:
            raise subprocess.TimeoutExpired(command, timeout)
        return SimpleNamespace(stdout="GPU 0: H\n" * driver + "other\n")

    monkeypatch.setattr(machine, "_output", output)
    monkeypatch.setattr(shutil, "which", lambda name: "/bin/x")
    return rows(machine.devices)


def test_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    nccl = "install a torch with NCCL, which training on several GPUs needs"
    assert devices(monkeypatch, 0, 0) == [good("devices", "no GPU: training computes on the CPU")]
    assert devices(monkeypatch, 1, 1) == [good("devices", "H (80 GiB)"), good("nccl", "none")]
    assert devices(monkeypatch, 2, 2) == [
        good("devices", "H (80 GiB), H (80 GiB)"), bad("nccl", "none", nccl),
    ]  # fmt: skip
    assert devices(monkeypatch, 2, 2, nccl="2.3")[1] == good("nccl", "2.3")
    fewer = bad(
        "devices", "the driver lists 2 GPUs, torch 2.1 (CUDA 12) sees 1",
        "install a torch that was built for this driver, or a newer driver",
    )  # fmt: skip
    assert devices(monkeypatch, 1, 2)[0] == fewer
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert devices(monkeypatch, 1, 2)[0] == good("devices", "H (80 GiB)")
    assert devices(monkeypatch, 0, -1) == [
        bad(
            "devices",
            "the GPU driver does not answer within 60 s",
            "if `nvidia-smi` hangs, restart this machine",
        )
    ]
    for said, told in (("a\nlast\n", "last"), ("", "failed")):
        assert devices(monkeypatch, 0, 0, code=1, stderr=said) == [
            bad("torch imports", told, "reinstall torch for this machine's driver")
        ]
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert machine._driver_gpus() == 0


def test_places_that_cannot_be_written_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    (tmp_path / "slots").mkdir()
    monkeypatch.setattr(machine.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(machine.slots, "directory", lambda: tmp_path / "slots")
    monkeypatch.setattr(machine, "runs_directory", lambda: tmp_path / "a" / "b")
    assert rows(machine.places) == []
    monkeypatch.setattr(machine, "runs_directory", lambda: file / "b")
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "slots")
    fix = "change it, or name another directory in"
    assert rows(machine.places) == [
        bad("directory", f"{tmp_path}/slots cannot be written to", f"{fix} CLOZE_SLOTS_DIR"),
        bad("directory", f"{file} is no directory", f"{fix} CLOZE_RUNS_DIR"),
    ]


@pytest.mark.parametrize(
    ("free", "fine"), [(5 << 30, False), ((5 << 30) + 1, True), (70 * 10**9, True)]
)
def test_free_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: int, fine: bool) -> None:
    usage = SimpleNamespace(f_files=1000, f_favail=20)
    monkeypatch.setattr(machine, "runs_directory", lambda: tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    monkeypatch.setattr(os, "statvfs", lambda path: usage)
    fix = "see what fills the disk with `cloze clean`, and remove it with --delete"
    found = f"{free / 1e9:.0f} GB at {tmp_path.resolve()}"
    wanted = good("free disk", found) if fine else bad("free disk", found, fix)
    assert rows(machine.disk) == [wanted]
    usage.f_favail = 19
    assert rows(machine.disk)[1:] == [bad("free files", "only 19 more files fit on the disk", fix)]
    usage.f_files = 0
    assert rows(machine.disk) == [wanted]


def test_servers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in runs.SERVERS:
        monkeypatch.delenv(name, raising=False)
    current: dict[str, Any] = {}
    monkeypatch.setattr(runs, "runs_directory", lambda: tmp_path)
    monkeypatch.setattr(server_addresses, "servers", lambda place: current)
    assert rows(runs.servers) == [
        good("servers", f"none run for {tmp_path.resolve()}; `cloze ui` starts them")
    ]
    silent: dict[str, str] = {}
    monkeypatch.setattr(runs, "why_silent", silent.get)
    monkeypatch.setattr(runs, "_refusal", lambda api: "")
    monkeypatch.setenv("PREFECT_API_URL", "http://u:secret@p/api/")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "s3:9000")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite")
    fix = (
        "start that server (a team's with `make up`, one here with `cloze ui`), or unset "
        "PREFECT_API_URL"
    )
    address = bad(
        "AWS_ENDPOINT_URL", "'s3:9000' is not the address of a server",
        "set AWS_ENDPOINT_URL to http://HOST:PORT with the path, or unset it",
    )  # fmt: skip
    assert rows(runs.servers)[1:] == [good("PREFECT_API_URL", "http://p/api answers"), address]
    silent["http://p/api/ready"] = "is silent"
    assert rows(runs.servers)[1] == bad(
        "PREFECT_API_URL", "http://p/api answers, but it cannot reach its database", fix
    )
    monkeypatch.setattr(runs, "_refusal", lambda api: f"{api} refuses")
    silent.clear()
    assert rows(runs.servers)[1] == bad("PREFECT_API_URL", "http://p/api refuses", fix)
    silent["http://p/api/health"] = "does not answer"
    assert rows(runs.servers)[1] == bad("PREFECT_API_URL", "http://p/api does not answer", fix)
