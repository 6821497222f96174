"""`/ready`, `/metrics` and `/models` say of each model whether it has a worker, ready or not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.testclient import TestClient

from cloze.labs.serving.http.application import application
from cloze.labs.serving.http.served_model import ServingMetrics
from cloze.labs.serving.limits import Limits


def client(models: Any) -> TestClient:
    app = application(
        models, ServingMetrics(), Limits(max_items=1, max_characters=9, max_body=99), {}, port=8123
    )
    return TestClient(cast(Any, app), base_url="http://127.0.0.1:8123")


@pytest.mark.parametrize("states", [(True, False), (False, True), (True, True), (False, False)])
def test_a_model_without_a_worker_is_told_everywhere(states: tuple[bool, bool]) -> None:
    models = dict(zip(("a", "b"), states, strict=True))
    asked = client(
        {
            name: SimpleNamespace(is_ready=ready, queued=0, info={}, version="v")
            for name, ready in models.items()
        }
    )
    ready = asked.get("/ready")
    assert (ready.status_code, ready.json()) == (200 if all(states) else 503, models)
    lines = asked.get("/metrics").text.splitlines()
    assert [line for line in lines if line.startswith("cloze_serve_ready{")] == [
        f'cloze_serve_ready{{model="{name}"}} {float(state)}' for name, state in models.items()
    ]
    assert {each["name"]: each["ready"] for each in asked.get("/models").json()} == models
    assert asked.get("/health").status_code == 200  # the server's own


def test_a_model_that_is_ready_again_is_told_at_once() -> None:
    models: Any = {"m": SimpleNamespace(is_ready=False, queued=3, info={}, version="v")}
    asked = client(models)
    assert asked.get("/ready").status_code == 503
    assert 'cloze_serve_queue_items{model="m"} 3.0\n' in asked.get("/metrics").text
    models["m"].is_ready, models["m"].queued = True, 0
    assert asked.get("/ready").status_code == 200
    said = asked.get("/metrics").text
    assert 'cloze_serve_ready{model="m"} 1.0\n' in said
    assert 'cloze_serve_queue_items{model="m"} 0.0\n' in said
