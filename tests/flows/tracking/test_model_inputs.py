"""A registered model reads what it documents, in every form that people send."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from cloze.core.errors import UsageError
from cloze.flows.tracking import models
from cloze.flows.tracking.mlflow_writer import Registry
from cloze.labs.serving.classify import TextClassificationPipeline
from cloze.model.pyfunc import _load_pyfunc
from cloze.model.use.verb import TableColumns
from tests.labs.serving.test_classify import tuned
from tests.tiny_models import write_classifier

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*Any type hint is inferred:UserWarning"),
    pytest.mark.filterwarnings("ignore:Operation with range is deprecated"),
]
TEXTS = ["the cat sat", "a dog ran in the house"]
IDS = ["bad r1", "bad r2"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("classifier")
    return write_classifier(place / "sst2", place / "pieces")


@pytest.fixture(scope="module")
def location(
    tmp_path_factory: pytest.TempPathFactory, checkpoint: str
) -> Iterator[tuple[str, str]]:
    """MLflow's address of the store and the champion."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLOZE_REGISTERED_MODEL", "inputs")
        registry = Registry(tmp_path_factory.mktemp("store"))
        registry.set_champion(registry.register(checkpoint, fingerprint="f"))
        yield registry.uri, "models:/inputs@champion"


@pytest.fixture(scope="module")
def model(location: tuple[str, str]) -> Any:
    import mlflow

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", location[0])
        return mlflow.pyfunc.load_model(location[1])


FORMS: dict[str, Any] = {
    "list": TEXTS,
    "tuple in an array": np.array(TEXTS),
    "objects": np.array(TEXTS, dtype=object),
    "one column of an array": np.array(TEXTS)[:, None],
    "series": pandas.Series(TEXTS),
    "named series": pandas.Series(TEXTS, name="review", index=[7, 9]),
    "frame": pandas.DataFrame({"text": TEXTS}),
    "id first": pandas.DataFrame({"id": IDS, "text": TEXTS}),
    "id last": pandas.DataFrame({"text": TEXTS, "id": IDS}),
    "numbers beside": pandas.DataFrame({"n": [1, None], "text": TEXTS}, index=["x", "y"]),
    "categories": pandas.DataFrame({"text": pandas.Categorical(TEXTS)}),
    "unnamed frame": pandas.DataFrame(TEXTS),
    "dict": {"text": TEXTS},
    "dict of arrays": {"id": np.array(IDS), "text": np.array(TEXTS)},
    "records": [{"id": i, "text": text} for i, text in zip(IDS, TEXTS, strict=True)],
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_read(form: str, model: Any, checkpoint: str) -> None:
    expected = TextClassificationPipeline(checkpoint).classify(TEXTS)
    found = model.predict(FORMS[form]).to_dict("records")
    assert found == [pytest.approx(best[0], abs=1e-6) for best in expected]


def test_one_text_is_one_row(model: Any) -> None:
    for one in (TEXTS[0], {"text": TEXTS[0]}, np.array(TEXTS[0])):
        assert len(model.predict(one)) == 1


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (pandas.DataFrame({"id": IDS, "review": TEXTS}), "column text, .*columns: id, review"),
        (pandas.DataFrame({"review": TEXTS}), "reads the column text"),
        (pandas.DataFrame([TEXTS], columns=["text", "text"]), "has 2 of that name"),
        (pandas.DataFrame({"text": ["a", None]}), r"row 1 \(from 0\): the text is missing"),
        (pandas.DataFrame({"text": [float("nan"), "b"]}), r"row 0 .* is missing or blank"),
        (pandas.DataFrame({"text": ["a", pandas.NA]}), r"row 1 .* is missing or blank"),
        (["a", None], r"row 1 .* is missing or blank"),
        (["a", "  "], r"row 1 .* is missing or blank"),
        ([["a", "b"]], r"row 0 .* is no text"),
        ({"text": ["a", "b"], "id": ["x"]}, "is no table .*same length"),
        (
            pandas.DataFrame({"text": TEXTS, "text_pair": ["a", None]}),
            "row 1 .*text_pair is missing",
        ),
    ],
)
def test_what_cannot_be_read_is_named(wrong: Any, said: str, model: Any) -> None:
    with pytest.raises(UsageError, match=said):
        model.predict(wrong)


def test_a_multi_label_model_returns_all_that_it_predicts(tmp_path: Path) -> None:
    names = ["toxic", "insult", "threat"]
    task = {"name": "multilabel", "labels": names, "problem_type": "multi_label_classification"}
    path = tuned(tmp_path, "classifier", 3, task)
    found = _load_pyfunc(path).predict(pandas.DataFrame({"id": IDS, "text": TEXTS}))
    assert list(found.columns) == ["labels", "label", "score"]
    for row, ranked in zip(
        found.to_dict("records"), TextClassificationPipeline(path).classify(TEXTS), strict=True
    ):
        assert row["labels"] == [own["label"] for own in ranked if own["score"] > 0.5]
        assert (row["label"], row["score"]) == (ranked[0]["label"], ranked[0]["score"])
    assert {label for row in found["labels"] for label in row} <= {*names}
    assert models.served_by({"heads": {"classifier": {}}, "task": task}) == TableColumns(
        "labels:string label:string score:double"
    )


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _asked(port: int, body: Any) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    content = {"Content-Type": "application/json"}
    connection.request("POST", "/invocations", json.dumps(body), content)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


@pytest.mark.soak  # `test_scoring_server` asks the same application
def test_mlflow_models_serve_answers_as_classify(
    location: tuple[str, str], checkpoint: str, tmp_path: Path
) -> None:
    words = "the a cat dog sat ran in house mat of paris is".split()
    texts = [f"{words[n % 12]} {words[n // 12 % 12]} {words[n * 7 % 11]} {n}" for n in range(1000)]
    expected = TextClassificationPipeline(checkpoint).classify(texts)
    paths = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}  # of uvicorn
    port, log = _free_port(), tmp_path / "log"
    command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", location[1]]
    with log.open("wb") as out, subprocess.Popen(
        [*command, "--env-manager", "local", "-h", "127.0.0.1", "-p", str(port), "-w", "1"],
        env={**os.environ, **paths, "MLFLOW_TRACKING_URI": location[0]},
        stdout=out, stderr=out, start_new_session=True,
    ) as server:  # fmt: skip
        try:
            while server.poll() is None:
                try:
                    status, found = _asked(port, {"inputs": texts})
                    break
                except OSError:
                    time.sleep(0.5)
            assert server.poll() is None, log.read_text()
            assert status == 200
            assert found["predictions"] == [pytest.approx(own[0], abs=1e-5) for own in expected]
            split = {"columns": ["id", "text"], "data": [["bad", text] for text in texts[:9]]}
            status, found = _asked(port, {"dataframe_split": split})
            assert found["predictions"] == [pytest.approx(own[0], abs=1e-5) for own in expected[:9]]
            status, found = _asked(port, {"dataframe_records": [{"text": None}]})
            assert (status, "row 0 (from 0): the text is missing" in str(found)) == (400, True)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, 15)
