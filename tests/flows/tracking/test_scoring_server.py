"""The application of `mlflow models serve` answers with the model that `cloze serve` serves."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from cloze.flows.tracking.mlflow_writer import Registry
from cloze.labs.serving.classify import TextClassificationPipeline
from cloze.model.use.fill_mask import FillMaskPipeline
from tests.tiny_models import write_checkpoint, write_classifier


@pytest.mark.filterwarnings("ignore")  # of MLflow's own and of its libraries
def test_mlflow_serves_a_registered_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mlflow.pyfunc import scoring_server
        from starlette.testclient import TestClient
    paths = {
        "served-mlm": write_checkpoint(tmp_path / "mlm", tmp_path / "a"),
        "served-sst2": write_classifier(tmp_path / "sst2", tmp_path / "b"),
    }
    clients = {}
    for name, path in paths.items():
        monkeypatch.setenv("CLOZE_REGISTERED_MODEL", name)
        registry = Registry(tmp_path)
        registry.set_champion(registry.register(path, fingerprint=name))
        monkeypatch.setenv("MLFLOW_TRACKING_URI", registry.uri)
        model = mlflow.pyfunc.load_model(f"models:/{name}@champion")
        clients[name] = TestClient(scoring_server.init(model))
    text = "the [MASK] sat on the mat."
    assert clients["served-mlm"].get("/ping").status_code == 200
    answer = clients["served-mlm"].post("/invocations", json={"inputs": [text]})
    assert answer.status_code == 200, answer.text
    (candidates,) = FillMaskPipeline(paths["served-mlm"]).fill(text, 5)
    found = answer.json()["predictions"]
    assert [row["token"] for row in found] == [row["token"] for row in candidates]
    answer = clients["served-sst2"].post("/invocations", json={"inputs": ["the cat", "a dog"]})
    expected = TextClassificationPipeline(paths["served-sst2"]).classify(["the cat", "a dog"])
    assert answer.json()["predictions"] == [pytest.approx(best[0], abs=1e-6) for best in expected]
    refused = clients["served-mlm"].post("/invocations", json={"inputs": ["nothing to fill"]})
    assert refused.status_code == 400
    assert "[MASK]" in refused.text
