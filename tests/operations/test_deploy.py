"""`cloze deploy`: what a server has afterwards, and that a failed run is reported where the user
wants it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from cloze.flows.graph.config import preset_names
from cloze.flows.graph.stages import TABLE
from tests.operations.servers import Operations, cloze, until

NAMES = [
    "ablation",
    "data",
    "evaluation",
    "finetuning",
    "full-run",
    "nightly-evaluation",
    "pretraining",
    "source-watch",
]


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
def test_deployed_twice_is_the_same_and_what_others_made_stays(
    operations: Operations, webhook: HTTPServer
) -> None:
    try:
        secret = f"http://127.0.0.1:{webhook.server_port}/hook-of-ours"
        operations.environment["CLOZE_NOTIFY"] = secret
        first = cloze(operations, "deploy", "--json")
        assert first.returncode == 0, first.stderr
        output = json.loads(first.stdout)
        assert {f"{name}/{name}" for name in NAMES} <= set(
            output["deployments"]
        )  # in addition to those of the other tests
        nightly = operations.call("/deployments/name/nightly-evaluation/nightly-evaluation")
        assert nightly["concurrency_options"]["collision_strategy"] == "CANCEL_NEW"
        data = operations.call("/deployments/name/data/data")["id"]
        by_hand = {"schedule": {"cron": "0 5 * * *"}, "active": False}
        former = {"schedule": {"cron": "0 6 * * *"}, "active": True, "slug": "former"}
        for deployment in (nightly["id"], data):
            operations.call(f"/deployments/{deployment}/schedules", [by_hand, former])
        again = json.loads(cloze(operations, "deploy", "--json").stdout)
        assert {**again, "changes": []} == {**output, "changes": []}
        assert again["changes"] == []
        slugs = {
            each: sorted(
                (found["slug"] for found in operations.call(f"/deployments/{each}/schedules")),
                key=str,
            )
            for each in (nightly["id"], data)
        }
        assert slugs == {
            nightly["id"]: [None, "former", "nightly"],
            data: [None, "former"],
        }  # no deploy has made the others
        assert sorted(
            found["name"] for found in operations.call("/automations/filter", {})
        ) == sorted(output["automations"])
        assert "hook-of-ours" not in first.stdout + first.stderr

        form = operations.call("/deployments/name/full-run/full-run")["parameter_openapi_schema"][
            "properties"
        ]
        path, presets = form["config"]["anyOf"]
        assert (presets["enum"], path["type"]) == (preset_names(), "string")
        assert form["start_from"]["anyOf"][1]["items"]["enum"] == list(TABLE)
        assert (form["steps"]["type"], form["steps"]["minimum"]) == ("integer", 1)
        assert all(field.get("description") for field in form.values())
        fields = set(
            operations.call("/deployments/name/data/data")["parameter_openapi_schema"]["properties"]
        )
        assert (
            {"vocab_size", "length", "mask_copies", "workers", "retries"}
            < fields
            < set(form) - {"until", "epochs"}
        )

        flow_run = operations.trigger(
            "full-run/full-run", config="sample", at="2099-01-01T00:00:00Z"
        )
        failed = {"type": "FAILED", "name": "Failed", "message": 'shard 3 is "cut short"\nZürich'}
        operations.call(f"/flow_runs/{flow_run}/set_state", {"state": failed, "force": True})
        heard = until(
            lambda: next(
                (
                    output
                    for output in webhook.heard
                    if output["flow"] == "full-run" and flow_run in output["url"]
                ),
                None,
            )
        )  # type: ignore[attr-defined]
        assert (heard["state"], heard["message"]) == ("Failed", 'shard 3 is "cut short"\nZürich')
    finally:
        operations.environment.pop("CLOZE_NOTIFY")
