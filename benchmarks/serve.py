"""Load test of `cloze serve`, beside transformers' pipeline in a plain FastAPI application.

    python -m benchmarks.serve --text FILE --vocabulary FILE [--requests 2000] [--clients 1 16 64]
    [--threads 1] [--rounds 1]

Both servers have the model of `benchmarks.verbs` in fp32 with the same number of threads; the plain
application calls `pipeline(text, truncation=True)` in an endpoint of its own, one text per request.
Clients keep their connections and send the next text when they have an answer. A tenth is sent
before the clock starts. Per number of clients: requests per second, CPU seconds of all
processes of the server per 1,000 requests, and p50 and p99 of the time to an answer.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.verbs import LENGTH, lines_of, write_models
from cloze.core.processes import free_ports

START_SECONDS = 600.0
THEIRS = """
import sys
import torch, uvicorn
torch.set_num_threads({threads})
from fastapi import Body, FastAPI
from transformers import AutoTokenizer, pipeline
pieces = AutoTokenizer.from_pretrained({path!r}, model_max_length={length})
answer = pipeline("text-classification", {path!r}, tokenizer=pieces, top_k=None)
app = FastAPI()

@app.get("/ready")
def ready() -> str:
    return "ok"

@app.post("/predict")
def predict(text: str = Body(embed=True)) -> list:
    return answer(text, truncation=True)

uvicorn.run(app, port={port}, log_level="warning", access_log=False)
"""


class Load(NamedTuple):
    """Requests per second, CPU seconds per 1,000 requests, and times to an answer in ms."""

    rate: float
    cpu: float
    p50: float
    p99: float


@contextlib.contextmanager
def running(command: list[str], port: int, threads: int) -> Iterator[int]:
    """Start a server, yield its process id once it is ready, and end it."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    with subprocess.Popen(command, env=environment) as process:
        try:
            deadline = time.monotonic() + START_SECONDS
            while time.monotonic() < deadline and process.poll() is None:
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/ready").close()
                    break
                time.sleep(0.2)
            yield process.pid
        finally:
            process.terminate()


def cpu_seconds(pid: int) -> float:
    server = psutil.Process(pid)
    times = [process.cpu_times() for process in (server, *server.children(recursive=True))]
    return sum(each.user + each.system for each in times)


async def client(port: int, path: str, bodies: Iterator[bytes], seconds: list[float]) -> None:
    """Send bodies one after the other on one connection; append the time of each."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for body in bodies:
        begin = time.perf_counter()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost:{port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200"), answer
        size = answer.lower().split(b"content-length:")[1].split(b"\r\n")[0]
        await reader.readexactly(int(size))
        seconds.append(time.perf_counter() - begin)
    writer.close()


def measure(pid: int, port: int, path: str, bodies: list[bytes], clients: int) -> Load:
    seconds: list[float] = []

    async def all_clients() -> None:
        shared = iter(bodies)
        await asyncio.gather(*(client(port, path, shared, seconds) for _ in range(clients)))

    begin, before = time.perf_counter(), cpu_seconds(pid)
    asyncio.run(all_clients())
    took, cpu = time.perf_counter() - begin, cpu_seconds(pid) - before
    parts = statistics.quantiles(seconds, n=100)
    return Load(len(bodies) / took, 1e3 * cpu / len(bodies), 1e3 * parts[49], 1e3 * parts[98])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", required=True)
    parser.add_argument("--vocabulary", required=True)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    texts = lines_of(options.text, options.requests)
    with tempfile.TemporaryDirectory(prefix="cloze-") as directory:
        ours, theirs = write_models(Path(directory), options.vocabulary)
        ports = free_ports(2)
        script = THEIRS.format(threads=options.threads, path=theirs, length=LENGTH, port=ports[1])
        commands = {
            "cloze serve": [
                sys.executable, "-m", "cloze", "serve", f"m={ours}", "--port", str(ports[0])
            ],
            "pipeline": [sys.executable, "-c", script],
        }  # fmt: skip
        paths = {"cloze serve": "/models/m/classify", "pipeline": "/predict"}
        with contextlib.ExitStack() as stack:
            pids = {
                name: stack.enter_context(running(command, port, options.threads))
                for (name, command), port in zip(commands.items(), ports, strict=True)
            }
            loads: dict[tuple[str, int], list[Load]] = {}
            for _ in range(options.rounds):
                for clients in options.clients:
                    for (name, path), port in zip(paths.items(), ports, strict=True):
                        bodies = [
                            json.dumps(
                                {"text": text}
                                if name == "pipeline"
                                else {"inputs": [{"text": text}]}
                            ).encode()
                            for text in texts
                        ]
                        measure(pids[name], port, path, bodies[: len(bodies) // 10], clients)
                        load = measure(pids[name], port, path, bodies, clients)
                        loads.setdefault((name, clients), []).append(load)
            for (name, clients), found in loads.items():
                best = max(found)
                print(
                    f"{clients:4} clients {name:<12}{best.rate:8,.0f}/s  p50 {best.p50:7.1f} ms"
                    f"  p99 {best.p99:7.1f} ms  {best.cpu:6.2f} CPU s per 1,000"
                )


if __name__ == "__main__":
    main()
