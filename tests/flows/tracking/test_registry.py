"""The registered model on a real SQLite store: one version a checkpoint, a champion, its predecessors; and MLflow loads what it names."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path

import pytest

from flows.tracking import models
from flows.tracking.registry import Registry
from model.use.classify import Classifier
from model.use.masks import Filler
from pipeline.core.errors import ClozeError, DataError, UsageError
from tests.model.use.test_classify import tuned
from tests.tiny_models import write_checkpoint


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A runs directory with an empty database, tables made."""
    place = tmp_path_factory.mktemp("store")
    Registry(place).champion()
    return place


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    place = tmp_path_factory.mktemp("checkpoints")
    return [write_checkpoint(place / f"step-{number}", place / "pieces", seed=number) for number in range(3)]


@pytest.fixture
def registry(store: Path, request: pytest.FixtureRequest) -> Registry:
    return Registry(store, name=request.node.name)


def test_a_checkpoint_is_one_version_however_often_it_is_registered(registry: Registry, checkpoints: list[str]) -> None:
    assert registry.versions() == []
    first = registry.register(
        checkpoints[0], fingerprint="a/checkpoints/step-0", metrics={"sst2": 0.5}, tags={"night": "1"}, step=7
    )
    again = registry.register(
        checkpoints[0], fingerprint="a/checkpoints/step-0", metrics={"mrpc": 0.25}, tags={"night": "2"}, step=7
    )
    assert (first.number, again.number) == (1, 1)
    assert again.metrics == {"sst2": 0.5, "mrpc": 0.25}
    assert (again.tags["night"], again.tags["cloze.step"], again.checkpoint) == ("2", "7", checkpoints[0])
    other = registry.register(checkpoints[1], fingerprint="b", metrics={"sst2": 0.75}, step=8)
    assert (other.number, other.metrics) == (2, {"sst2": 0.75})
    assert registry.find("b") == other
    assert registry.find("c") is None
    assert [version.number for version in registry.versions()] == [1, 2]
    assert "newest" in registry.version(2).aliases
    with pytest.raises(UsageError, match="has no version 9"):
        registry.version(9)


def test_champions_come_and_go_in_order(registry: Registry, checkpoints: list[str]) -> None:
    assert registry.champion() is None
    assert registry.history() == []
    with pytest.raises(UsageError, match="no champion before"):
        registry.rollback()
    versions = [registry.register(path, fingerprint=f"f{n}") for n, path in enumerate(checkpoints)]
    for version in versions:
        change = registry.promote(version, f"better on {version.number}")
        assert change.version == version.number
    with pytest.raises(UsageError, match="is the champion already"):
        registry.promote(versions[2], "once more")
    assert registry.rollback("it was worse").number == 2
    assert registry.rollback().number == 1  # not back to the one that was just put down
    with pytest.raises(UsageError, match="no champion before"):
        registry.rollback()
    registry.promote(versions[2], "after all")
    champion = registry.champion()
    assert champion is not None
    assert (champion.number, champion.fingerprint) == (3, "f2")
    assert [(c.version, c.replaced, c.kind) for c in registry.history()] == [
        (1, None, "promote"),
        (2, 1, "promote"),
        (3, 2, "promote"),
        (2, 3, "rollback"),
        (1, 2, "rollback"),
        (3, 1, "promote"),
    ]
    assert registry.rollback().number == 1
    assert "after all" in registry.version(3).tags["cloze.champion_why"]
    assert "version 1" in registry.version(3).tags["cloze.champion_replaced_by"]


def test_a_change_that_was_cut_short_counts_for_nothing(
    registry: Registry, checkpoints: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = [registry.register(path, fingerprint=f"f{n}") for n, path in enumerate(checkpoints)]
    registry.promote(versions[0], "first")
    registry.promote(versions[1], "second")
    with monkeypatch.context() as patch:
        patch.setattr(registry._client, "set_registered_model_alias", lambda *_: None)
        registry.promote(versions[2], "killed before the alias moved")
    champion = registry.champion()
    assert champion is not None
    assert champion.number == 2
    assert registry.rollback().number == 1


@pytest.mark.filterwarnings("ignore:.*Any type hint is inferred:UserWarning")  # of MLflow's own, when it is imported
def test_mlflow_loads_the_champion_and_no_pickle_is_in_it(
    registry: Registry, checkpoints: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    registry.promote(registry.register(checkpoints[2], fingerprint="f", step=3), "the only one")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", registry.uri)
    for name in ("load", "loads"):
        monkeypatch.setattr(pickle, name, None)
    model = mlflow.pyfunc.load_model(f"models:/{registry.name}@champion")
    text = "the [MASK] sat on the [MASK]."
    found = model.predict([text, "a dog ran in the [MASK]."])
    filler = Filler(checkpoints[2])
    expected = [mask for asked in (text, "a dog ran in the [MASK].") for mask in filler.fill(asked, 5)]
    assert found["token"].tolist() == [candidate["token"] for candidates in expected for candidate in candidates]
    assert found["score"].tolist() == [candidate["score"] for candidates in expected for candidate in candidates]
    assert found[["text", "mask"]].drop_duplicates().to_numpy().tolist() == [[0, 0], [0, 1], [1, 0]]
    assert len(model.predict(["paris is the [MASK]."], params={"top_k": 2})) == 2
    with pytest.raises(UsageError, match=r"no \[MASK\]"):
        model.predict(["nothing to fill"])
    assert str(model.metadata.signature.inputs) == "[string (required)]"
    root = Path(registry._directory.parent / "mlflow-artifacts" / "models")
    names = {path.name for path in root.rglob("*") if path.is_file()}
    assert {"MLmodel", "model.safetensors", "checkpoint.json"} < names
    assert not [name for name in names if name.endswith((".pkl", ".pt", ".bin", ".pth"))]


@pytest.mark.filterwarnings("ignore:.*Any type hint is inferred:UserWarning")  # of MLflow's own, when it is imported
@pytest.mark.filterwarnings("ignore:Operation with range is deprecated")  # of MLflow's own, where an example has columns
def test_mlflow_hands_a_model_of_pairs_both_texts(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow
    import pandas

    path = tuned(tmp_path, "classifier", 1, {"name": "stsb", "pairs": True})
    registry.promote(registry.register(path, fingerprint="pairs", step=3), "the only one")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", registry.uri)
    model = mlflow.pyfunc.load_model(f"models:/{registry.name}@champion")
    found = model.predict(pandas.DataFrame({"text_pair": ["a dog ran"], "text": ["the cat sat"]}))
    assert found["score"].tolist() == Classifier(path).score(["the cat sat"], ["a dog ran"])
    assert model.metadata.signature.inputs.input_names() == ["text", "text_pair"]


def test_names_in_a_checkpoint_cannot_leave_it(registry: Registry, checkpoints: list[str], tmp_path: Path) -> None:
    place = Path(write_checkpoint(tmp_path / "evil", tmp_path / "pieces"))
    (tmp_path / "secret").write_text("x")
    listed = place / "checkpoint.json"
    listed.write_text(listed.read_text().replace('"config.json"', '"../secret"'))
    with pytest.raises(DataError, match=r"names '\.\./secret', which lies outside"):
        registry.register(str(place), fingerprint="evil")
    assert registry.find("evil") is None
    for name in ("../x", "/etc/passwd", "a/../../b", "", "a\\..\\b"):
        assert not models.is_inside(name), name
    assert models.is_inside("tokenizer/vocab.txt")


def test_no_checkpoint_and_no_server_are_told_in_a_sentence(registry: Registry, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no complete checkpoint"):
        registry.register(str(tmp_path), fingerprint="none")
    with pytest.raises(ClozeError, match="did not answer"):
        Registry(tmp_path, "http://127.0.0.1:9").champion()


def test_a_key_tells_two_makings_of_one_fingerprint_apart() -> None:
    one = models.Checkpoint(path="/x", fingerprint="f", build="a", step=3)
    assert one.key != dataclasses.replace(one, build="b").key
