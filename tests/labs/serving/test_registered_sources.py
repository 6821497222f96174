"""Sources of a server: names, aliases and versions, and downloads that are whole or not there."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cloze.core.errors import ClozeError, UsageError
from cloze.flows.tracking import spool, spool_state
from cloze.flows.tracking.models import DATA
from cloze.labs.serving.http import sources

mlflow_artifacts: Any = pytest.importorskip("mlflow.artifacts")


class Registry:
    """A registry whose alias `best` is version 3; it notes what it is asked."""

    def __init__(self, location: str) -> None:
        self.location, self.asked = location, list[Any]()
        self._tracking_client = SimpleNamespace(tracking_uri="http://mlflow")

    def get_model_version_by_alias(self, name: str, alias: str) -> Any:
        self.asked.append((name, alias))
        return SimpleNamespace(version=3)

    def get_model_version_download_uri(self, name: str, version: str) -> str:
        self.asked.append((name, version))
        return self.location


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    found = Registry("s3://bucket/m")
    monkeypatch.setattr(spool, "tracking_uri", lambda runs: f"uri of {runs}")
    monkeypatch.setattr(spool_state, "connect", lambda uri: found)
    return found


def test_a_download_appears_as_a_whole_and_is_made_once(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    downloads, calls = tmp_path / "downloads", list[Any]()

    def download(artifact_uri: str, dst_path: str, tracking_uri: str) -> str:
        calls.append((artifact_uri, tracking_uri))
        made = Path(dst_path) / "m"
        (made / DATA).mkdir(parents=True, exist_ok=True)
        assert not (downloads / "name-3").exists(), "it is not whole yet"
        if len(calls) == 1:
            raise OSError("connection \n lost")
        return str(made)

    monkeypatch.setattr(mlflow_artifacts, "download_artifacts", download)
    resolve = sources.resolver("models:/name@best", tmp_path / "runs", downloads)
    with pytest.raises(ClozeError, match=r"^MLflow has no models:/name@best: connection lost$"):
        resolve()
    for _ in range(2):
        assert resolve() == ("3", str(downloads / "name-3" / DATA))
        assert (downloads / "name-3" / DATA).is_dir()
    assert calls == [("s3://bucket/m", "http://mlflow")] * 2
    assert registry.asked[:2] == [("name", "best"), ("name", 3)]


@pytest.mark.parametrize("location", ["/a b/m", "file:///a%20b/m"])
def test_what_lies_on_this_machine_is_read_there(
    registry: Registry, tmp_path: Path, location: str
) -> None:
    registry.location = location
    resolve = sources.resolver("models:/name/7", tmp_path, tmp_path)
    assert resolve() == ("7", str(Path("/a b/m") / DATA))
    assert registry.asked == [("name", "7")]


@pytest.mark.parametrize(
    "source", ["models:/name", "models:/name@", "models:/a/b", "models:/a@b/c"]
)
def test_a_model_without_alias_or_version_is_refused(source: str, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"is no model; write models:/NAME@ALIAS or models:/NAME/VERSION$"
    ):
        sources.resolver(source, tmp_path, tmp_path)


@pytest.mark.parametrize(
    ("argument", "name", "source"),
    [
        ("a/b", "b", "a/b"),
        ("a/b/", "b", "a/b/"),
        ("x=a/b", "x", "a/b"),
        ("models:/m@best", "m", "models:/m@best"),
        ("models:/m/3", "m", "models:/m/3"),
        ("y=models:/m/3", "y", "models:/m/3"),
        ("runs/pretrain@512", "512", "runs/pretrain@512"),
    ],
)
def test_a_source_has_a_name(argument: str, name: str, source: str) -> None:
    assert sources.parse(argument) == (name, source)
    assert sources.follows(source) is (source == "models:/m@best")


@pytest.mark.parametrize("argument", ["a/ü", "a b", "-x"])
def test_a_name_that_no_url_has_is_refused(argument: str) -> None:
    with pytest.raises(UsageError, match=r"needs a name of letters, digits, . _ -; write NAME="):
        sources.parse(argument)
