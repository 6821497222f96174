"""The process of `cloze serve`: finds and starts the models, listens, and loses no request."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import resource
import signal
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import uvicorn

from cloze.core import storage
from cloze.core.errors import ClozeError, UsageError
from cloze.flows.run.targets import resolve_path
from cloze.flows.tracking.models import DATA
from cloze.flows.ui.timed_protocol import TimedProtocol
from cloze.labs.serving.http.application import application
from cloze.labs.serving.http.served_model import ServedModel, ServingMetrics
from cloze.labs.serving.limits import Limits

SCHEME = "models:/"
_REGISTERED = re.compile(r"models:/(?P<name>[^/@]+)(?:@(?P<alias>[^/@]+)|/(?P<version>\d+))")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def parse(argument: str) -> tuple[str, str]:
    """Return name and source of `[NAME=]SOURCE`; the default name is the last part of the source.

    Raises:
        UsageError: the name cannot be part of a URL.
    """
    name, separator, source = argument.partition("=")
    if not separator or not _NAME.fullmatch(name):
        source = argument
        parts = re.split(r"[/@]", source.removeprefix(SCHEME).rstrip("/"))
        name = parts[0] if source.startswith(SCHEME) else parts[-1]
    if not _NAME.fullmatch(name):
        raise UsageError(f"{argument} needs a name of letters, digits, . _ -; write NAME={source}")
    return name, source


def follows(source: str) -> bool:
    """Return whether the checkpoint of the source may change: it is an alias."""
    return source.startswith(SCHEME) and "@" in source


def resolver(source: str, runs: Path, downloads: Path) -> Callable[[], tuple[str, str]]:
    """Return a function that returns version and checkpoint of a source; it may ask MLflow.

    Args:
        runs: runs directory, which knows MLflow's address.
        downloads: directory for checkpoints that MLflow does not keep on this machine.

    Raises:
        UsageError: the source starts with models:/ and has neither alias nor version.
    """
    if not source.startswith(SCHEME):
        path = storage.absolute(resolve_path(source))
        return lambda: (source, path)
    match = _REGISTERED.fullmatch(source)
    if match is None:
        raise UsageError(f"{source} is no model; write models:/NAME@ALIAS or models:/NAME/VERSION")
    return lambda: _registered(match, runs, downloads)


def _registered(match: re.Match[str], runs: Path, downloads: Path) -> tuple[str, str]:
    """Return version and checkpoint of a registered model.

    Raises:
        ClozeError: MLflow does not answer, or does not know the model.
    """
    from mlflow.exceptions import MlflowException

    from cloze.flows.tracking.spool import tracking_uri
    from cloze.flows.tracking.spool_state import connect

    name, version = match["name"], match["version"]
    try:
        client = connect(tracking_uri(runs))
        if match["alias"]:
            version = client.get_model_version_by_alias(name, match["alias"]).version
        location = client.get_model_version_download_uri(name, version)
        parsed = urlparse(location)
        if parsed.scheme in ("", "file"):
            return str(version), str(Path(unquote(parsed.path)) / DATA)
        target = downloads / f"{name}-{version}"
        if not target.exists():
            _download(client, location, target)
        return str(version), str(target / DATA)
    except (MlflowException, OSError) as error:
        sentence = " ".join(str(error).split())[:200]
        raise ClozeError(f"MLflow has no {match[0]}: {sentence}") from None


def _download(client: object, location: str, target: Path) -> None:
    """Download a model; `target` appears when it is complete."""
    from mlflow.artifacts import download_artifacts

    partial = target.with_name(f"{target.name}.partial")
    partial.mkdir(parents=True, exist_ok=True)
    uri = str(client._tracking_client.tracking_uri)  # type: ignore[attr-defined]
    path = download_artifacts(artifact_uri=location, dst_path=str(partial), tracking_uri=uri)
    Path(path).rename(target)


BACKLOG = 2048  # connections that the kernel holds
GRACE_SECONDS = 5.0  # beyond the time-out of a request


class _Server(uvicorn.Server):
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
) -> None:
    """Serve models until SIGTERM or SIGINT; requests in progress are answered first.

    Args:
        arguments: `[NAME=]SOURCE` of each model.
        runs: runs directory, which knows MLflow's address.
        examples: requests by verb.
        config: values of `ServingConfig`, for all models.
        verbs: verb by name of the model, instead of that of its heads.

    Raises:
        UsageError, DataError: a model cannot be loaded.
    """
    parsed = [parse(argument) for argument in arguments]
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
                resolver(source, runs, directory / "downloads"),
                {**config, "verb": verbs.get(name)},
                limits,
                directory,
                metrics,
                follows=follows(source),
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
            )
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
