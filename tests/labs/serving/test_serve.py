"""`cloze serve` as a process of its own: every request is answered or refused, whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import cloze
from cloze.core.processes import free_ports
from cloze.flows.tracking.mlflow_writer import Registry
from tests import warm
from tests.tiny_models import write_checkpoint, write_classifier

pytestmark = pytest.mark.usefixtures("warm")

CHROMIUM = shutil.which("chromium")
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
SECONDS = 180.0  # for what takes a moment on an idle machine
TEXTS = ["the cat sat", "a dog ran in the capital of paris", "paris"]


class Site:
    """A server on a port of this machine."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process, self.port = process, port

    def ask(self, path: str, body: Any = None, method: str = "") -> tuple[int, Any]:
        """Status and content of an answer; a body that is no text is sent as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        content = body if body is None or isinstance(body, str) else json.dumps(body)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request(
                method or ("GET" if body is None else "POST"), path, content, headers
            )
            answer = connection.getresponse()
            text = answer.read().decode()
            is_json = "json" in str(answer.getheader("content-type"))
            return answer.status, json.loads(text) if is_json else text
        finally:
            connection.close()

    def predictions(self, name: str, verb: str, *texts: str) -> list[dict[str, Any]]:
        inputs = [{"text": text} for text in texts]
        status, answer = self.ask(f"/models/{name}/{verb}", {"inputs": inputs})
        assert status == 200, answer
        found: list[dict[str, Any]] = answer["predictions"]
        return found

    def wait(self) -> None:
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(OSError):
                if self.ask("/ready")[0] == 200:
                    return
            time.sleep(0.1)
        raise AssertionError(self.process.communicate()[1])

    def workers(self) -> list[int]:
        """Processes that run models."""
        found = []
        for process in warm.family(self.process.pid):
            with contextlib.suppress(psutil.Error):  # it has ended
                if any("job.json" in word for word in process.cmdline()):
                    found.append(process.pid)
        return found


@contextlib.contextmanager
def running(place: Path, *arguments: str) -> Iterator[Site]:
    (port,) = free_ports(1)
    command = [warm.python(), "-c", warm.ENTRY, "serve", *arguments, "--port", str(port)]
    environment = {**os.environ, "CLOZE_HOME": str(place)}
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=environment, cwd=place
    ) as process:
        try:
            yield Site(process, port)
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=60)
            process.kill()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("models")
    write_classifier(base / "sst2", base / "a")
    write_checkpoint(base / "mlm", base / "b")
    return base


@pytest.fixture(scope="module")
def site(models: Path) -> Iterator[Site]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.executable", warm.python())
        arguments = ["sst2", "vectors=mlm", "--verb", "vectors=embed", "--max-characters", "2000"]
        with running(models, *arguments, "--max-items", "100", "--max-body", "100000") as site:
            site.wait()
            yield site


def test_answers_are_those_of_the_commands(site: Site, models: Path) -> None:
    expected = list(cloze.load(str(models / "sst2")).batch("classify", TEXTS))
    found = site.predictions("sst2", "classify", *TEXTS)
    assert [row["label"] for row in found] == [row["label"] for row in expected]
    for row, other in zip(found, expected, strict=True):
        assert row["score"] == pytest.approx(other["score"], abs=1e-6)
    vectors = cloze.load(str(models / "mlm")).embed(TEXTS)
    served = site.predictions("vectors", "embed", *TEXTS)
    assert np.array([row["embedding"] for row in served]) == pytest.approx(vectors, abs=1e-5)


@pytest.mark.parametrize(
    ("path", "body", "status", "sentence"),
    [
        ("/models/sst3/classify", {"inputs": [{"text": "a"}]}, 404, "use sst2, vectors"),
        ("/models/sst2/embed", {"inputs": [{"text": "a"}]}, 404, "answers classify, not embed"),
        ("/models/sst2/sing", {"inputs": [{"text": "a"}]}, 404, "Not Found"),
        ("/models/sst2/classify", '{"inputs": [{"text": "a"', 422, "JSON decode error"),
        ("/models/sst2/classify", "\xff", 400, "parsing the body"),
        ("/models/sst2/classify", r'{"inputs": [{"text": "\ud800"}]}', 422, "half a character"),
        ("/models/sst2/classify", {"inputs": []}, 422, "at least 1 item"),
        ("/models/sst2/classify", {"inputs": [{"txt": "a"}]}, 422, "Extra inputs"),
        ("/models/sst2/classify", {"inputs": [{"text": 3}]}, 422, "valid string"),
        ("/models/sst2/classify", {"inputs": [{}]}, 422, "has no 'text'"),
        ("/models/sst2/classify", {"inputs": [{"text": "a\0"}]}, 422, "NUL"),
        ("/models/sst2/classify", {"inputs": [{"text": "a", "pair": "b"}]}, 422, "single texts"),
        (
            "/models/vectors/embed",
            {"inputs": [{"text": "a"}, {"text": " "}]},
            422,
            "an empty 'text'",
        ),
        ("/models/sst2/classify", {"inputs": [{"text": "a" * 2001}]}, 413, "more than 2,000"),
        ("/models/sst2/classify", {"inputs": [{"text": "a"}] * 101}, 413, "more than 100"),
        ("/models/sst2/classify", "x" * 100_001, 413, "longer than 100,000 bytes"),
    ],
)
def test_a_faulty_request_is_refused_with_a_sentence(
    site: Site, path: str, body: Any, status: int, sentence: str
) -> None:
    found, answer = site.ask(path, body)
    assert (found, sentence in json.dumps(answer)) == (status, True), answer
    assert site.predictions("sst2", "classify", "the cat")  # nobody else suffers


def test_one_faulty_input_does_not_spoil_its_batch(site: Site) -> None:
    status, answer = site.ask(
        "/models/vectors/embed", {"inputs": [{"text": "a"}, {"text": " "}, {"text": "b"}]}
    )
    assert status == 422
    assert [error["input"] for error in answer["detail"]] == [1]


def test_metrics_schema_and_page(site: Site) -> None:
    site.predictions("sst2", "classify", "the cat")
    status, metrics = site.ask("/metrics")
    assert status == 200
    count = re.search(r'cloze_serve_requests_total{model="sst2",status="200"} (\d+)', metrics)
    assert count is not None
    assert int(count[1]) > 0
    assert 'cloze_serve_ready{model="vectors"} 1.0' in metrics
    assert "cloze_serve_batch_items_bucket" in metrics
    _, schema = site.ask("/openapi.json")
    body = schema["paths"]["/models/{name}/fill-mask"]["post"]["requestBody"]
    (example,) = body["content"]["application/json"]["examples"].values()
    assert "[MASK]" in example["value"]["inputs"][0]["text"]
    names = [(row["name"], row["verb"], row["ready"]) for row in site.ask("/models")[1]]
    assert names == [("sst2", "classify", True), ("vectors", "embed", True)]
    assert site.ask("/health") == (200, "ok\n")
    evil = "</textarea><script>alert(1)</script>"
    _, page = site.ask("/", f"model=sst2&text={evil}", "POST")
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=SECONDS)
    connection.request("GET", "/models", headers={"Host": "evil.example"})
    assert connection.getresponse().status == 403


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_a_browser_fills_in_the_form_and_reads_the_answer(site: Site) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        page = chromium.new_page(viewport={"width": 900, "height": 1000})
        page.set_default_timeout(1000 * SECONDS)
        faults: list[str] = []
        page.on("console", lambda message: faults.append(message.text))
        page.goto(f"http://127.0.0.1:{site.port}/")
        section = page.locator("section").filter(has_text="sst2")
        section.get_by_label("text").fill("the cat ran in the park")
        section.get_by_role("button", name="classify").click()
        answer = json.loads(section.get_by_label("answer").inner_text())
        assert answer["label"] in ("negative", "positive")
        bars = section.get_by_role("group", name="probabilities").locator("meter").all()
        shown = {str(bar.get_attribute("aria-label")): bar.get_attribute("value") for bar in bars}
        assert shown == {row["label"]: str(row["score"]) for row in answer["predictions"]}
        assert re.search(r"\b\d+ ms", section.inner_text())
        assert section.get_by_label("text").input_value() == "the cat ran in the park"
        section.get_by_label("text").fill("")
        section.get_by_role("button", name="classify").click()
        assert "has no 'text'" in section.get_by_role("alert").inner_text()
        if os.environ.get("CLOZE_SCREENSHOT"):
            page.screenshot(path=os.environ["CLOZE_SCREENSHOT"])
        assert not [fault for fault in faults if "favicon" not in fault]
        chromium.close()


async def one_request(port: int, body: bytes) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = (
            f"POST /models/sst2/classify HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        await writer.drain()
        line = await asyncio.wait_for(reader.readline(), SECONDS)
        await reader.read()
        return int(line.split()[1])
    finally:
        writer.close()


def ask_at_once(port: int, count: int) -> Counter[int]:
    """Statuses of many requests, each on a connection of its own, all at once."""
    body = json.dumps({"inputs": [{"text": "the cat sat"}]}).encode()

    async def ask() -> Counter[int]:
        return Counter(await asyncio.gather(*(one_request(port, body) for _ in range(count))))

    return asyncio.run(ask())


def test_a_thousand_connections_are_answered_or_refused(site: Site) -> None:
    statuses = ask_at_once(site.port, 1000)
    assert sum(statuses.values()) == 1000
    assert statuses.keys() <= {200, 429, 503, 504}
    assert statuses[200] > 0
    assert site.predictions("sst2", "classify", "the cat")


def test_a_slow_client_holds_nobody_up(site: Site) -> None:
    with (
        socket.create_connection(("127.0.0.1", site.port)) as slow,
        socket.create_connection(("127.0.0.1", site.port)) as silent,
    ):
        head = f"POST /models/sst2/classify HTTP/1.1\r\nHost: localhost:{site.port}\r\n"
        slow.sendall(head.encode() + b"Content-Length: 1000\r\n\r\n{")
        silent.sendall(b"POST /models")
        assert site.predictions("sst2", "classify", "the cat")
        silent.settimeout(60)
        assert silent.recv(100) == b""  # no headers in time


def test_a_killed_worker_is_started_again_and_no_request_hangs(site: Site) -> None:
    before = site.workers()
    assert before
    with contextlib.ExitStack() as stack:
        stopped = threading.Event()
        statuses: list[int] = []

        def keep_asking() -> None:
            while not stopped.is_set():
                statuses.append(
                    site.ask("/models/sst2/classify", {"inputs": [{"text": "a cat"}]})[0]
                )

        threads = [threading.Thread(target=keep_asking) for _ in range(4)]
        for thread in threads:
            thread.start()
            stack.callback(thread.join)
        stack.callback(stopped.set)
        time.sleep(0.5)
        for pid in before:
            with contextlib.suppress(psutil.NoSuchProcess):
                os.kill(warm.real(pid), signal.SIGKILL)
        deadline = time.monotonic() + SECONDS
        while set(before) & set(site.workers()) or site.ask("/ready")[0] != 200:
            assert time.monotonic() < deadline
            time.sleep(0.2)
    assert set(statuses) <= {200, 503, 504}
    assert statuses[-1] == 200
    assert len(site.predictions("vectors", "embed", "the cat")) == 1
    restarts = re.search(r'worker_restarts_total{model="sst2"} (\d+)', site.ask("/metrics")[1])
    assert restarts is not None


def test_a_full_queue_refuses_and_a_stop_answers_what_was_accepted(models: Path) -> None:
    arguments = ["sst2", "--max-queue", "4", "--max-batch", "2", "--max-wait-ms", "0"]
    with running(models, *arguments) as site:
        site.wait()
        statuses = ask_at_once(site.port, 200)
        assert sum(statuses.values()) == 200
        assert statuses.keys() == {200, 429}
        inputs = {"inputs": [{"text": "the cat"}] * 4}
        answers: list[int] = []
        threads = [
            threading.Thread(
                target=lambda: answers.append(site.ask("/models/sst2/classify", inputs)[0])
            )
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        time.sleep(0.05)
        site.process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join()
        assert site.process.wait(60) == 0
        assert set(answers) <= {200, 429}
        assert not site.workers()


def test_a_model_that_cannot_be_loaded_ends_the_server(models: Path) -> None:
    with running(models, "nowhere") as site:
        assert site.process.stderr is not None
        assert site.process.wait(SECONDS) == 3
        said = site.process.stderr.read()
        assert "nowhere does not exist" in said
        assert "Models at" not in said  # nothing listened


def test_the_alias_is_followed_without_a_lost_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOZE_REGISTERED_MODEL", "followed")
    for seed in (0, 1):
        write_checkpoint(tmp_path / f"c{seed}", tmp_path / "pieces", seed=seed)
    (tmp_path / "runs").mkdir()
    registry = Registry(tmp_path / "runs")
    first, second = (
        registry.register(str(tmp_path / f"c{seed}"), fingerprint=f"f{seed}") for seed in (0, 1)
    )
    registry.set_champion(first)
    inputs = {"inputs": [{"text": "the [MASK] sat"}]}
    with running(tmp_path, "models:/followed@champion", "--poll", "0.5") as site:
        site.wait()
        versions: list[tuple[int, str]] = []
        deadline = time.monotonic() + SECONDS
        while not versions or versions[-1][1] != str(second):
            status, answer = site.ask("/models/followed/fill-mask", inputs)
            versions.append((status, answer.get("version", "")))
            if len(versions) == 5:
                registry.set_champion(second)
            assert time.monotonic() < deadline
        expected = cloze.load(str(tmp_path / "c1")).fill_mask("the [MASK] sat")
        _, answer = site.ask("/models/followed/fill-mask", inputs)
    assert {status for status, _ in versions} == {200}
    assert list(dict.fromkeys(version for _, version in versions)) == [str(first), str(second)]
    (found,) = answer["predictions"][0]["predictions"]
    assert [row["token"] for row in found] == [row["token"] for row in expected[0]]
