"""Names of data sets of the Hugging Face Hub: `hf=ORG/NAME[@REVISION][:CONFIG[/SPLIT]]`.

A name stands for a URL of fsspec, so that sources and tasks read it as any other directory. The
Hub keeps Parquet files of every public data set on a branch, in folders of configuration and split.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from typing import Any

from cloze.core import storage
from cloze.core.errors import UsageError

KIND = "hf"
PREFIX = f"{KIND}="
DATASETS = "hf://datasets/"
BRANCH = "refs%2Fconvert%2Fparquet"
ONLY_CONFIG = "default"  # the Hub's name where a data set has one configuration
_NAME = re.compile(r"([\w.-]+/)?[\w.-]+(@[^:@]+)?(:[^/:@\s]+(/[^/:@\s]+)?)?")


def hub_url(path: str) -> str:
    """Return the URL of a path `hf=NAME`; other paths as they are.

    Raises UsageError: the name has another form.
    """
    if not path.startswith(PREFIX):
        return path
    name = path.removeprefix(PREFIX)
    if _NAME.fullmatch(name) is None:
        raise UsageError(
            f"{path} is no name of a data set of the Hub; write hf=ORG/NAME:CONFIG/SPLIT, and name "
            f"a local copy by its directory"
        )
    repository, _, part = name.partition(":")
    repository, _, revision = repository.partition("@")
    revision = revision.replace("/", "%2F") or BRANCH
    return f"{DATASETS}{repository}@{revision}/{part or ONLY_CONFIG}"


def repository(path: str) -> str:
    """Return the URL of the data set that a URL of the Hub is in; empty for other paths."""
    match = re.match(rf"{DATASETS}[^/@]+(/[^/@]+)?", path)
    return match[0] if match else ""


def hub_source(source: Mapping[str, Any]) -> dict[str, Any]:
    """Return a source of kind `hf` as the Parquet files that it names; others as they are."""
    if source.get("kind") != KIND:
        return dict(source)
    path = source.get("path")
    url = hub_url(f"{PREFIX}{path}") if isinstance(path, str) and "://" not in path else path
    return {**source, "kind": "parquet", "path": url}


def describe_siblings(path: str) -> str:
    """Return a clause that names the configurations or splits beside a missing one of the Hub."""
    if not path.startswith(DATASETS) or path.count("/") < 5:
        return ""
    directory, name = posixpath.split(path.rstrip("/"))
    names = [own for own in storage.list_names(directory, only_directories=True) if own != name]
    if not names and path.count("/") > 5:
        return describe_siblings(directory)
    return f" ({directory} has {', '.join(names[:20])})" if names else ""
