"""Addresses that are none, of MLflow, of stores and of directories: one sentence before anything."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import fsspec
import pytest

from cloze.core import object_store, storage
from cloze.core.errors import ClozeError, UsageError
from cloze.flows import cli
from cloze.flows.run import server_addresses
from cloze.flows.tracking import spool


@pytest.mark.parametrize(
    "uri",
    [
        "nonsense://x",
        "postgres://u:p@host/db",  # the scheme that SQLAlchemy dropped
        "localhost:5000",
        "127.0.0.1:5000",
        "mlflow.example.org:80/path",
        "http:/host:5000",
        "http://",
        "https://:5000",
        "sqlite://mlflow.db",
        "sqlite:mlflow.db",
        "s3://bucket/mlruns",
        "htps://host",
        "redis://host:6379",
        "file:///tmp/mlruns",
        "./mlruns",
        "mlruns",
        "/srv/mlruns",
    ],
)
def test_an_address_that_mlflow_has_no_store_for_is_refused_at_the_start(
    uri: str, toy_config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert cli.main(["run", toy_config, "--no-prefect"]) == 2
    told = capsys.readouterr().err
    assert "MLFLOW_TRACKING_URI=" in told
    assert "is no address of MLflow's; name a server, http://HOST:PORT" in told
    assert len(told.splitlines()) == 1
    assert ":p@" not in told
    assert not list((tmp_path / "runs").glob("*/letters-*"))


@pytest.mark.parametrize(
    "uri",
    [
        "http://host:5000", "https://user:word@host/mlflow/", "HTTP://HOST", "http://[::1]:5000",
        "sqlite:////tmp/m.db", "sqlite+pysqlite:///m.db", "sqlite:///:memory:",
        "postgresql://u@host/db", "postgresql+psycopg2://u@host/db", "mysql+pymysql://h/d",
        "mssql+pyodbc://h/d", "databricks", "databricks://profile", "databricks-uc", "uc",
        "file:///tmp/mlruns", "./mlruns", "mlruns", "/srv/mlruns",
    ],
)  # fmt: skip
def test_an_address_of_mlflows_is_taken(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # else MLflow rejects all records
    assert spool.tracking_uri(Path("runs")) == uri


def test_a_store_that_a_package_adds_to_mlflow_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        spool, "entry_points", lambda group: type("Found", (), {"names": {"dagshub"}})
    )
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "dagshub://x/y")
    assert spool.tracking_uri(Path("runs")) == "dagshub://x/y"


LOCAL = {
    "CLOZE_SLOTS_DIR": ("run", "CONFIG", "--no-prefect"),
    "XDG_CACHE_HOME": ("run", "CONFIG", "--no-prefect"),
    "CLOZE_HOME": ("ui", "--dashboard-only"),
    "CLOZE_RUNS_DIR": ("status",),
    "PREFECT_HOME": ("run", "CONFIG", "--prefect"),
}


@pytest.mark.parametrize("url", ["s3://bucket/x", "memory://x", "hf://datasets/x"])
@pytest.mark.parametrize("variable", LOCAL)
def test_a_variable_of_a_local_directory_refuses_a_url(
    variable: str, url: str, toy_config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:  # fmt: skip
    """It made a directory `s3:` where one stood."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv(variable, url)
    words = [toy_config if word == "CONFIG" else word for word in LOCAL[variable]]
    assert cli.main(words) == 2
    assert f"{variable}={url} is no local directory" in capsys.readouterr().err
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith(":")]


def test_each_directory_that_a_variable_names_is_read_in_one_way() -> None:
    """Another variable of a local place shall be refused as a URL, too."""
    package = Path(cli.__file__).parents[1]
    found = {
        match
        for folder in ("core", "flows", "model", "pipeline")
        for path in (package / folder).rglob("*.py")
        for match in re.findall(r'Path\(\s*os\.environ\.get\("(\w+)"', path.read_text())
    }
    assert not found - {"PYTHONPATH"}  # a list of places, which Python reads


@pytest.mark.parametrize("path", ["s3://bucket/runs", "memory://runs", "gs://b"])
def test_runs_are_on_a_disk(
    path: str, toy_config: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("CLOZE_RUNS_DIR", path)
    assert cli.main(["run", toy_config, "--no-prefect"]) == 2
    assert f"CLOZE_RUNS_DIR={path} is no local directory" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["http://host:abc/api", "http://a b/", "nonsense://x", "host:4200"])
def test_a_malformed_address_of_prefect_is_a_server_that_is_silent(url: str) -> None:
    assert server_addresses.why_silent(url) == "does not answer"


class Odd(fsspec.AbstractFileSystem):
    """A server of fsspec's that misbehaves as `fault` says."""

    protocol, fault, cachable = "odd", "", False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if self.fault == "connect":
            raise ConnectionRefusedError(111, "Connection refused")

    def find(self, path: str, **options: Any) -> Any:
        if self.fault == "listing":
            raise NotImplementedError
        return {path: {"name": path, "size": 3}}  # as of a web server: without a type

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        return {"name": path, "size": 3, "type": "file"}


@pytest.fixture
def odd(monkeypatch: pytest.MonkeyPatch) -> type[Odd]:
    fsspec.register_implementation("odd", Odd, clobber=True)
    monkeypatch.setattr(object_store, "_LISTED", {})
    return Odd


def test_a_listing_without_types_answers_no_questions(odd: type[Odd]) -> None:
    assert storage.list_files("odd://x/text.txt") == [""]
    assert not storage.is_dir("odd://x/text.txt")


@pytest.mark.parametrize("fault", ["connect", "listing"])
def test_a_server_that_cannot_be_asked_is_named_in_a_sentence(
    odd: type[Odd], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(odd, "fault", fault)
    with pytest.raises(ClozeError, match=r"odd://x/text.txt cannot be reached \(.+\); check"):
        storage.list_files("odd://x/text.txt")


@pytest.mark.parametrize("scheme", ["file", "local"])
def test_a_local_path_is_written_without_a_scheme(scheme: str) -> None:
    with pytest.raises(UsageError, match=f"write a local path without {scheme}://"):
        storage.list_files(f"{scheme}:///etc/hosts")
