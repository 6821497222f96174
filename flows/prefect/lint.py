"""A strict reading of `prefect.yaml`. Prefect leaves out keys that it does not know, so that a slip of the pen goes unseen."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from prefect import Flow
from prefect.cli.deploy._models import (
    ConcurrencyLimitSpec,
    DeploymentConfig,
    PrefectYamlModel,
    RawScheduleConfig,
    WorkPoolConfig,
)
from prefect.client.schemas.objects import ConcurrencyLimitStrategy
from pydantic import BaseModel, ValidationError

from pipeline.core.errors import UsageError, did_you_mean

BELOW: dict[tuple[type[BaseModel], str], type[BaseModel]] = {
    (PrefectYamlModel, "deployments"): DeploymentConfig,
    (DeploymentConfig, "work_pool"): WorkPoolConfig,
    (DeploymentConfig, "concurrency_limit"): ConcurrencyLimitSpec,
    (DeploymentConfig, "schedules"): RawScheduleConfig,
}
ANCHORS = "x-"  # keys of this kind hold what YAML's anchors name


def read(path: Path) -> dict[str, Any]:
    """The content of the file, of which Prefect will understand everything.

    Raises:
        UsageError: no YAML, an unknown key, a wrong value, a schedule without slug, an entrypoint that is no flow, a name twice.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise UsageError(f"{path} cannot be read ({' '.join(str(error).split())}); mend it") from error
    if not isinstance(content, dict):
        raise UsageError(f"{path} must hold a mapping with the key deployments, found {type(content).__name__}")
    _keys(content, PrefectYamlModel, path.name)
    try:
        PrefectYamlModel.model_validate(content)
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(str(part) for part in fault["loc"])
        raise UsageError(f"{path.name}: {where} ({fault.get('input')!r}): {fault['msg']}; mend it") from error
    names: set[str] = set()
    for deployment in content.get("deployments") or []:
        _deployment(deployment, path.name, names)
    return content


def _keys(values: Mapping[str, Any], model: type[BaseModel], where: str) -> None:
    known = {field.alias or name for name, field in model.model_fields.items()}
    for key, value in values.items():
        if str(key) not in known and not (model is PrefectYamlModel and str(key).startswith(ANCHORS)):
            raise UsageError(f"{where}: unknown key {key!r}; {did_you_mean(str(key), known)}")
        below = BELOW.get((model, str(key)))
        if below is not None:
            for number, item in enumerate(value if isinstance(value, list) else [value]):
                if isinstance(item, Mapping):
                    _keys(item, below, f"{where}: {item.get('name') or item.get('slug') or f'{key}[{number}]'}")


def _deployment(values: Mapping[str, Any], where: str, names: set[str]) -> None:
    name = str(values.get("name"))
    where = f"{where}: {name}"
    if name in names or not values.get("name"):
        raise UsageError(f"{where}: every deployment needs a name of its own")
    names.add(name)
    flow = _flow(str(values.get("entrypoint")), where)
    unknown = [key for key in values.get("parameters") or {} if key not in flow.parameters.properties]
    if unknown:
        raise UsageError(
            f"{where}: parameters.{unknown[0]} is no parameter of its flow; {did_you_mean(unknown[0], flow.parameters.properties)}"
        )
    for schedule in values.get("schedules") or []:
        if not schedule.get("slug"):
            raise UsageError(f"{where}: a schedule needs a slug, by which it is found again when it is changed or removed")
    limit = values.get("concurrency_limit")
    strategies = [item.value for item in ConcurrencyLimitStrategy]
    strategy = limit.get("collision_strategy") if isinstance(limit, Mapping) else None
    if strategy is not None and strategy not in strategies:
        raise UsageError(
            f"{where}: concurrency_limit.collision_strategy ({strategy!r}); {did_you_mean(str(strategy), strategies)}"
        )


def _flow(entrypoint: str, where: str) -> Flow[..., Any]:
    module, _, name = entrypoint.rpartition(".")
    if ":" in entrypoint or not module:
        raise UsageError(
            f"{where}: entrypoint {entrypoint!r} must be MODULE.FUNCTION; with a file's path Prefect puts its folder first on sys.path"
        )
    try:
        flow = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"{where}: entrypoint {entrypoint!r} is not there ({error}); name a function of flows.prefect"
        ) from error
    if not isinstance(flow, Flow):
        raise UsageError(f"{where}: entrypoint {entrypoint!r} is no flow; put @flow above it")
    return flow
