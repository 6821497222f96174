"""What a webhook gets: JSON, whatever a failed run's message holds. Prefect's own template engine
and block, and a real listener.
"""

from __future__ import annotations

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import Flow, FlowRun
from prefect.server.events import jinja_filters
from prefect.server.utilities.user_templates import (
    register_user_template_filters,
    render_user_template,
)
from prefect.states import Failed

from cloze.flows.prefect import automations


class Listener(BaseHTTPRequestHandler):
    """Keeps the content type and the bytes that it is sent."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.heard.append((self.headers["Content-Type"], body))  # type: ignore[attr-defined]
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        del format, args


@pytest.mark.parametrize(
    "message",
    [
        'shard 3 is "cut short"',
        "a\nb\r\n\tc",
        "Zürich 日本 \N{SNOWMAN}",
        "back\\slash {{ flow.name }} <b>&'",
        None,
    ],
)
def test_a_webhook_gets_json_whatever_the_message_holds(message: str | None) -> None:
    server = HTTPServer(("127.0.0.1", 0), Listener)
    server.heard = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        flow = Flow(name='full "run"', labels={})
        run = FlowRun(flow_id=uuid4(), name="calm-owl", state=Failed(message=message))
        register_user_template_filters(jinja_filters.all_filters)
        url = f"http://127.0.0.1:{server.server_port}/"

        async def post() -> None:
            body = await render_user_template(automations.PAYLOAD, {"flow": flow, "flow_run": run})
            await automations.webhook(url).call(body)

        asyncio.run(post())
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    ((kind, body),) = server.heard  # type: ignore[attr-defined]
    assert kind == "application/json"
    heard = json.loads(body)
    assert (heard["flow"], heard["run"], heard["state"]) == ('full "run"', "calm-owl", "Failed")
    assert heard["message"] == message
    assert set(heard) == {"flow", "run", "state", "message", "url"}
