"""`cloze deploy`: what prefect.yaml may say, what a server has afterwards, and that a failed run is told where the user wants it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.graph.config import preset_names
from flows.graph.stages import TABLE
from flows.prefect import PREFECT_YAML, lint
from pipeline.core.errors import UsageError
from tests.operations.servers import Operations, cloze, until

SEVEN = ["ablation", "data", "evaluation", "finetuning", "full-run", "nightly-evaluation", "pretraining"]


def changed(tmp_path: Path, **values: Any) -> Path:
    """A copy of the file with values of its first deployment changed."""
    content = yaml.safe_load(PREFECT_YAML.read_text())
    content["deployments"][0] |= values
    path = tmp_path / "prefect.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def test_the_file_has_seven_deployments_and_no_fault() -> None:
    assert sorted(entry["name"] for entry in lint.read(PREFECT_YAML)["deployments"]) == SEVEN


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"descriptoin": "x"}, "full-run: unknown key 'descriptoin'; did you mean 'description'"),
        ({"work_pool": {"nmae": "x"}}, "unknown key 'nmae'; did you mean 'name'"),
        ({"schedules": [{"cron": "0 1 * * *", "slug": "a", "timezon": "UTC"}]}, "unknown key 'timezon'"),
        ({"schedules": [{"cron": "0 1 * * *"}]}, "a schedule needs a slug"),
        ({"schedules": [{"slug": "a"}]}, "Exactly one of 'cron'"),
        ({"parameters": {"confg": "demo"}}, "parameters.confg is no parameter of its flow; did you mean 'config'"),
        ({"entrypoint": "flows/prefect/full_run.py:full_run"}, "must be MODULE.FUNCTION"),
        ({"entrypoint": "flows.prefect.full_run.whole"}, "is not there"),
        ({"concurrency_limit": {"limit": 1, "collision_strategy": "QUEUE"}}, "choose from|did you mean"),
        ({"name": "data"}, "needs a name of its own"),
    ],
)
def test_a_slip_is_told_in_a_sentence(tmp_path: Path, values: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        lint.read(changed(tmp_path, **values))


class Hearing(BaseHTTPRequestHandler):
    """Keeps what it is sent."""

    def do_POST(self) -> None:
        self.server.heard.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))  # type: ignore[attr-defined]
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        del format, args


@pytest.fixture
def webhook() -> Iterator[HTTPServer]:
    server = HTTPServer(("127.0.0.1", 0), Hearing)
    server.heard = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_deployed_twice_is_the_same_and_what_goes_is_gone(operations: Operations, webhook: HTTPServer) -> None:
    try:
        secret = f"http://127.0.0.1:{webhook.server_port}/hook-of-ours"
        operations.environment["CLOZE_NOTIFY"] = secret
        first = cloze(operations, "deploy", "--json")
        assert first.returncode == 0, first.stderr
        told = json.loads(first.stdout)
        assert {f"{name}/{name}" for name in SEVEN} <= set(told["deployments"])  # beside those of the other tests
        nightly = operations.call("/deployments/name/nightly-evaluation/nightly-evaluation")
        assert nightly["concurrency_options"]["collision_strategy"] == "CANCEL_NEW"
        data = operations.call("/deployments/name/data/data")["id"]
        by_hand = {"schedule": {"cron": "0 5 * * *"}, "active": False}
        former = {"schedule": {"cron": "0 6 * * *"}, "active": True, "slug": "former"}
        for deployment in (nightly["id"], data):
            operations.call(f"/deployments/{deployment}/schedules", [by_hand, former])
        assert json.loads(cloze(operations, "deploy", "--json").stdout) == told
        slugs = {
            each: [found["slug"] for found in operations.call(f"/deployments/{each}/schedules")]
            for each in (nightly["id"], data)
        }
        assert slugs == {
            nightly["id"]: ["nightly"],
            data: [None],
        }  # of a deployment without schedules in the file, those made by hand stay
        assert sorted(found["name"] for found in operations.call("/automations/filter", {})) == sorted(told["automations"])
        assert "hook-of-ours" not in first.stdout + first.stderr

        form = operations.call("/deployments/name/full-run/full-run")["parameter_openapi_schema"]["properties"]
        presets, path = form["config"]["anyOf"]
        assert (presets["enum"], path["type"]) == (preset_names(), "string")
        assert form["start_from"]["anyOf"][0]["items"]["enum"] == list(TABLE)
        assert (form["steps"]["type"], form["steps"]["minimum"]) == ("integer", 1)
        assert all(field.get("description") for field in form.values())

        flow_run = operations.trigger("full-run/full-run", config="sample", at="2099-01-01T00:00:00Z")
        failed = {"type": "FAILED", "name": "Failed", "message": "shard 3 is cut short"}
        operations.call(f"/flow_runs/{flow_run}/set_state", {"state": failed, "force": True})
        heard = until(
            lambda: next((told for told in webhook.heard if told["flow"] == "full-run" and flow_run in told["url"]), None)
        )  # type: ignore[attr-defined]
        assert (heard["state"], heard["message"]) == ("Failed", "shard 3 is cut short")
    finally:
        operations.environment.pop("CLOZE_NOTIFY")
