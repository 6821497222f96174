"""The registered model on a real SQLite store: one version a checkpoint, a champion, its
predecessors; and MLflow loads what it names.
"""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import cloze
from cloze.core.errors import ClozeError, DataError, UsageError
from cloze.flows.tracking import models
from cloze.flows.tracking.mlflow_writer import Registry
from cloze.labs.seq2seq.generate import generation_pipeline
from cloze.labs.serving.classify import TextClassificationPipeline
from cloze.model import checkpoint
from cloze.model.families.registry import FAMILIES, config_class
from cloze.model.use.fill_mask import FillMaskPipeline
from tests.labs.serving.test_classify import tuned
from tests.tiny_models import tiny_config, tiny_model, write_checkpoint, write_tokenizer


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A runs directory with an empty database, tables made."""
    place = tmp_path_factory.mktemp("store")
    Registry(place).champion()
    return place


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    place = tmp_path_factory.mktemp("checkpoints")
    return [
        write_checkpoint(place / f"step-{number}", place / "pieces", seed=number)
        for number in range(3)
    ]


@pytest.fixture
def registry(
    store: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Registry:
    monkeypatch.setenv("CLOZE_REGISTERED_MODEL", request.node.name)
    return Registry(store)


def client_of(registry: Registry) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=registry.uri, registry_uri=registry.uri)


def versions_of(registry: Registry) -> list[Any]:
    """The versions of its model as MLflow tells them."""
    return list(client_of(registry).search_model_versions(f"name='{registry.name}'"))


def metrics_of(registry: Registry, version: Any) -> dict[str, float]:
    """The newest value of each metric of a version's LoggedModel."""
    model = client_of(registry).get_logged_model(version.tags["cloze.model_id"])
    return {
        metric.key: metric.value
        for metric in sorted(model.metrics, key=lambda metric: metric.timestamp)
    }


def test_a_checkpoint_is_one_version_however_often_it_is_registered(
    registry: Registry, checkpoints: list[str]
) -> None:
    assert versions_of(registry) == []
    first = registry.register(
        checkpoints[0],
        fingerprint="a/checkpoints/step-0",
        metrics={"sst2": 0.5},
        tags={"night": "1"},
        step=7,
    )
    again = registry.register(
        checkpoints[0],
        fingerprint="a/checkpoints/step-0",
        metrics={"mrpc": 0.25},
        tags={"night": "2"},
        step=7,
    )
    assert (first, again) == (1, 1)
    (version,) = versions_of(registry)
    assert metrics_of(registry, version) == {"sst2": 0.5, "mrpc": 0.25}
    names = ("night", "cloze.step", "cloze.checkpoint")
    assert [version.tags[name] for name in names] == ["2", "7", checkpoints[0]]
    assert registry.register(checkpoints[1], fingerprint="b", metrics={"sst2": 0.75}, step=8) == 2
    assert (registry.find("b"), registry.find("c")) == (2, None)
    newest = client_of(registry).get_model_version_by_alias(registry.name, "newest")
    assert (int(newest.version), metrics_of(registry, newest)) == (2, {"sst2": 0.75})


def test_the_alias_goes_where_it_is_told(registry: Registry, checkpoints: list[str]) -> None:
    assert registry.champion() is None
    versions = [registry.register(path, fingerprint=f"f{n}") for n, path in enumerate(checkpoints)]
    for version in (versions[0], versions[2], versions[2], versions[1]):
        registry.set_champion(version)
        assert registry.champion() == version


@pytest.mark.filterwarnings(
    "ignore:.*Any type hint is inferred:UserWarning"
)  # of MLflow's own, when it is imported
def test_mlflow_loads_the_champion_and_no_pickle_is_in_it(
    registry: Registry, checkpoints: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    registry.set_champion(registry.register(checkpoints[2], fingerprint="f", step=3))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", registry.uri)
    for name in ("load", "loads"):
        monkeypatch.setattr(pickle, name, None)
    model = mlflow.pyfunc.load_model(f"models:/{registry.name}@champion")
    text = "the [MASK] sat on the [MASK]."
    found = model.predict([text, "a dog ran in the [MASK]."])
    filler = FillMaskPipeline(checkpoints[2])
    expected = [
        mask for asked in (text, "a dog ran in the [MASK].") for mask in filler.fill(asked, 5)
    ]
    assert found["token"].tolist() == [
        candidate["token"] for candidates in expected for candidate in candidates
    ]
    assert found["score"].tolist() == [
        candidate["score"] for candidates in expected for candidate in candidates
    ]
    assert found[["text", "mask"]].drop_duplicates().to_numpy().tolist() == [[0, 0], [0, 1], [1, 0]]
    assert len(model.predict(["paris is the [MASK]."], params={"top_k": 2})) == 2
    with pytest.raises(UsageError, match=r"no \[MASK\]"):
        model.predict(["nothing to fill"])
    assert model.metadata.metadata["columns"] == ["text"]  # a schema would refuse lists or tables
    root = Path(registry._directory.parent / "mlflow-artifacts" / "models")
    names = {path.name for path in root.rglob("*") if path.is_file()}
    assert {"MLmodel", "model.safetensors", "checkpoint.json"} < names
    assert not [name for name in names if name.endswith((".pkl", ".pt", ".bin", ".pth"))]


@pytest.mark.filterwarnings(
    "ignore:.*Any type hint is inferred:UserWarning"
)  # of MLflow's own, when it is imported
@pytest.mark.filterwarnings(
    "ignore:Operation with range is deprecated"
)  # of MLflow's own, where an example has columns
def test_mlflow_hands_a_model_of_pairs_both_texts(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow
    import pandas

    path = tuned(tmp_path, "classifier", 1, {"name": "stsb", "pairs": True})
    registry.set_champion(registry.register(path, fingerprint="pairs", step=3))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", registry.uri)
    model = mlflow.pyfunc.load_model(f"models:/{registry.name}@champion")
    found = model.predict(pandas.DataFrame({"text_pair": ["a dog ran"], "text": ["the cat sat"]}))
    assert found["score"].tolist() == TextClassificationPipeline(path).score(
        ["the cat sat"], ["a dog ran"]
    )
    assert model.metadata.signature.inputs.input_names() == ["text", "text_pair"]


def test_names_in_a_checkpoint_cannot_leave_it(
    registry: Registry, checkpoints: list[str], tmp_path: Path
) -> None:
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


def test_no_checkpoint_and_no_server_are_told_in_a_sentence(
    registry: Registry, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="no complete checkpoint"):
        registry.register(str(tmp_path), fingerprint="none")
    with pytest.raises(ClozeError, match="did not answer"):
        Registry(tmp_path, "http://127.0.0.1:9").champion()


def test_a_key_tells_two_makings_of_one_fingerprint_apart() -> None:
    one = models.Checkpoint(path="/x", fingerprint="f", build="a", step=3)
    assert one.key != dataclasses.replace(one, build="b").key


def fine_tuned(base: Path, heads: dict[str, Any], task: dict[str, Any], outputs: int) -> str:
    """A checkpoint of random weights with one layer on the encoder."""
    parts = ("encoder.", "pooler.") if {"classifier", "choice"} & heads.keys() else ("encoder.",)
    state = {
        name: tensor for name, tensor in tiny_model().state_dict().items() if name.startswith(parts)
    }
    for head in heads if outputs else ():
        state |= {f"{head}.weight": torch.randn(outputs, 16), f"{head}.bias": torch.randn(outputs)}
    path, words = str(base / "checkpoint"), write_tokenizer(base)
    task = {"max_length": 32, **task}
    checkpoint.save_weights(
        path, model=tiny_config(), state=state, tokenizer=words, heads=heads, task=task
    )
    checkpoint.finalize(path)
    return path


TEXTS = ["the cat sat on the mat.", "a dog ran in the park."]
KINDS: dict[str, tuple[Any, dict[str, Any] | None, int, Any]] = {
    "gpt2": ("gpt2", None, 0, TEXTS),
    "ltr": ("ltr", None, 0, TEXTS),
    "labels": (
        {"classifier": {"num_labels": 2}},
        {"name": "sst2", "labels": ["bad", "good"]},
        2,
        TEXTS,
    ),
    "number": ({"classifier": {"num_labels": 1}}, {"name": "stsb", "pairs": False}, 1, TEXTS),
    "choice": (
        {"choice": {}},
        {"name": "swag"},
        1,
        {"text": TEXTS, "choices": [["the cat", "a dog"]] * 2},
    ),
    "spans": (
        {"span": {}},
        {"name": "squad"},
        2,
        {"question": ["where is the cat"], "passage": [TEXTS[0]]},
    ),
    "tags": (
        {"token_classifier": {"num_labels": 3}},
        {"name": "tagging", "labels": ["O", "B-PER", "I-PER"]},
        3,
        TEXTS,
    ),
    "retrieval": (
        {"embedding": {"pooling": "mean", "normalize": True}},
        {"name": "squad-retrieval"},
        0,
        TEXTS,
    ),
}
ANSWERS: dict[str, Callable[[str], Any]] = {
    "gpt2": lambda path: [cloze.load(path).generate(text)[0]["continuation"] for text in TEXTS],
    "ltr": lambda path: [cloze.load(path).generate(text)[0]["continuation"] for text in TEXTS],
    "labels": lambda path: [cloze.load(path).classify(text)[0]["label"] for text in TEXTS],
    "number": lambda path: [cloze.load(path).classify(text)[0]["score"] for text in TEXTS],
    "choice": lambda path: [
        cloze.load(path).classify(text, choices=("the cat", "a dog"))[0]["text"] for text in TEXTS
    ],
    "spans": lambda path: [
        found["answer"] for found in cloze.load(path).answer("where is the cat", TEXTS[0])
    ],
    "tags": lambda path: [
        entity["text"] for text in TEXTS for entity in cloze.load(path).tag(text)
    ],
    "retrieval": lambda path: cloze.load(path).embed(TEXTS).tolist(),
}
COLUMNS = {
    "gpt2": "continuation",
    "ltr": "continuation",
    "number": "score",
    "spans": "answer",
    "tags": "entity",
    "retrieval": "vector",
}


@pytest.mark.filterwarnings("ignore:.*Any type hint is inferred:UserWarning")
@pytest.mark.filterwarnings("ignore:Operation with range is deprecated")
@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_of_any_kind_answers_from_the_registry(
    kind: str, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow
    import pandas

    what, task, outputs, asked = KINDS[kind]
    torch.manual_seed(5)
    path = (
        fine_tuned(tmp_path, what, task, outputs)
        if task
        else write_checkpoint(tmp_path / "c", tmp_path, family=what)
    )
    monkeypatch.setenv("CLOZE_REGISTERED_MODEL", f"kind-{kind}")
    registry = Registry(store)
    version = registry.register(path, fingerprint=kind)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", registry.uri)
    model = mlflow.pyfunc.load_model(f"models:/{registry.name}/{version}")
    found = model.predict(pandas.DataFrame(asked) if isinstance(asked, dict) else asked)
    answers, expected = found[COLUMNS.get(kind, "label")].tolist(), ANSWERS[kind](path)
    assert expected
    assert answers == (
        pytest.approx(expected, abs=1e-5) if kind == "number" else expected
    )  # it was asked for two at once
    assert list(found.columns) == model.metadata.signature.outputs.input_names()


@pytest.mark.filterwarnings("ignore:.*Any type hint is inferred:UserWarning")
def test_every_pretrained_encoder_fills_masks_from_the_registry(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    monkeypatch.setenv("CLOZE_REGISTERED_MODEL", "pretrained")
    registry = Registry(store)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", registry.uri)
    for family in FAMILIES:
        if "masked_lm" not in tiny_config(family=family).heads:  # these write texts, see above
            continue
        path = write_checkpoint(tmp_path / family, tmp_path, family=family)
        version = registry.register(path, fingerprint=family)
        model = mlflow.pyfunc.load_model(f"models:/{registry.name}/{version}")
        if config_class(family).is_encoder_decoder:
            texts = generation_pipeline(path).generate(["the [MASK] sat."], tokens=40)
            written = model.predict(["the [MASK] sat."])["continuation"].tolist()
            assert written == [found.continuation for (found,) in texts]
            continue
        found = model.predict(["the [MASK] sat."])["token"].tolist()
        expected = FillMaskPipeline(path).fill("the [MASK] sat.", 5)[0]
        assert found == [candidate["token"] for candidate in expected], family


def test_a_checkpoint_of_several_tasks_is_no_model_and_says_why(
    registry: Registry, tmp_path: Path
) -> None:
    heads = {"sst2": {"classifier": {"num_labels": 2}}, "squad": {"span": {}}}
    path = fine_tuned(
        tmp_path, heads, {"tasks": {"sst2": {"name": "sst2"}, "squad": {"name": "squad"}}}, 2
    )
    with pytest.raises(DataError, match="MLflow cannot ask a model with these heads: squad, sst2"):
        registry.register(path, fingerprint="several")
    assert versions_of(registry) == []
