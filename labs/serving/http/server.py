"""The process of `cloze serve`: finds and starts the models, listens, and loses no request."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import uvicorn

from cloze.core.errors import UsageError
from cloze.flows.ui.timed_protocol import AnnouncingServer, TimedProtocol
from cloze.labs.serving.http import sources
from cloze.labs.serving.http.application import application
from cloze.labs.serving.http.served_model import ServedModel, ServingMetrics
from cloze.labs.serving.limits import Limits

BACKLOG = 2048  # connections that the kernel holds
GRACE_SECONDS = 5.0  # beyond the time-out of a request


class _Server(AnnouncingServer):
    """A server whose owner handles the signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def serve(
    arguments: Collection[str],
    runs: Path,
    *,
    host: str,
    port: int,
    allowed: Collection[str],
    limits: Limits,
    examples: Mapping[str, Sequence[Mapping[str, Any]]],
    config: Mapping[str, Any],
    verbs: Mapping[str, str],
    announce: Callable[[], object],
) -> None:
    """Serve models until SIGTERM or SIGINT; requests in progress are answered first.

    Args:
        arguments: `[NAME=]SOURCE` of each model.
        runs: runs directory, which knows MLflow's address.
        examples: requests by verb.
        config: values of `ServingConfig`, for all models.
        verbs: verb by name of the model, instead of that of its heads.
        announce: called once the server listens.

    Raises:
        UsageError, DataError: a model cannot be loaded.
    """
    parsed = [sources.parse(argument) for argument in arguments]
    names = [name for name, _ in parsed]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two models are called {name}; write NAME={dict(parsed)[name]}")
    for name in verbs.keys() - set(names):
        raise UsageError(f"--verb names model {name}; the models are {', '.join(names)}")
    _raise_file_limit()
    logging.getLogger("cloze").setLevel(logging.INFO)
    metrics = ServingMetrics()

    async def run(directory: Path) -> None:
        models = {
            name: ServedModel(
                name,
                sources.resolver(source, runs, directory / "downloads"),
                {**config, "verb": verbs.get(name)},
                limits,
                directory,
                metrics,
                follows=sources.follows(source),
            )
            for name, source in parsed
        }
        app = application(models, metrics, limits, examples, port=port, allowed=allowed)
        server = _Server(
            uvicorn.Config(
                app, host=host, port=port, http=TimedProtocol, ws="none", lifespan="off",
                log_level="warning", access_log=False, backlog=BACKLOG,
                limit_concurrency=limits.max_connections,
                timeout_graceful_shutdown=int(limits.timeout + GRACE_SECONDS),
            ),
            announce,
        )  # fmt: skip
        await _run(server, models.values())

    with tempfile.TemporaryDirectory(prefix="cloze-serve-") as directory:
        asyncio.run(run(Path(directory)))


async def _run(server: uvicorn.Server, models: Collection[ServedModel]) -> None:
    """Run until a signal, or until a model cannot be loaded."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, setattr, server, "should_exit", True)
    listening = asyncio.create_task(server.serve())
    starting = asyncio.gather(*(model.start() for model in models))
    try:
        first: set[asyncio.Future[Any]] = {listening, starting}
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
        await listening
    finally:
        starting.cancel()
        server.should_exit = True
        await asyncio.gather(starting, listening, return_exceptions=True)
        await asyncio.gather(*(model.close() for model in models), return_exceptions=True)


def _raise_file_limit() -> None:
    """Allow as many connections as the system lets this process have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65536)), hard))
