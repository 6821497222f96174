"""Checkpoints of `cloze serve`: paths, and registered models by version or alias."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlparse

from cloze.core import storage
from cloze.core.errors import ClozeError, UsageError
from cloze.flows.run.targets import resolve_path
from cloze.flows.tracking.models import DATA

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


def check(argument: str) -> None:
    """Raise DataError if the source of `[NAME=]SOURCE` is a path, and nothing is there."""
    if not (source := parse(argument)[1]).startswith(SCHEME):
        resolve_path(source)


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
