"""`prefect.yaml`: Prefect ignores keys that it does not know, so this checks every key, name and
value.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
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
from prefect.flows import load_flow_from_entrypoint
from pydantic import BaseModel

from cloze.flows.graph import stages
from cloze.flows.prefect.environment import PREFECT_YAML
from cloze.flows.prefect.parameters import fields_of

CONTENT: dict[str, Any] = yaml.safe_load(Path(PREFECT_YAML).read_text())
DEPLOYMENTS = {entry["name"]: entry for entry in CONTENT["deployments"]}
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


def unknown(values: Mapping[str, Any], model: type[BaseModel]) -> set[str]:
    """Return the keys that Prefect would ignore."""
    return set(values) - {field.alias or name for name, field in model.model_fields.items()}


def test_the_file_has_these_deployments_and_prefect_understands_it() -> None:
    assert sorted(entry["name"] for entry in CONTENT["deployments"]) == NAMES
    PrefectYamlModel.model_validate(CONTENT)
    assert not unknown(CONTENT, PrefectYamlModel)


@pytest.mark.parametrize("name", NAMES)
def test_a_deployment_has_known_keys_a_flow_and_its_parameters(name: str) -> None:
    entry = DEPLOYMENTS[name]
    limit, schedules = entry.get("concurrency_limit") or {}, entry.get("schedules") or []
    assert not unknown(entry, DeploymentConfig)
    assert not unknown(entry["work_pool"], WorkPoolConfig)
    assert not unknown(limit, ConcurrencyLimitSpec)
    assert not limit or limit["collision_strategy"] in list(ConcurrencyLimitStrategy)
    for schedule in schedules:
        assert not unknown(schedule, RawScheduleConfig)
        assert schedule["slug"]  # by which `cloze deploy` finds it again
    assert ":" not in entry["entrypoint"]  # with a file, Prefect puts its folder first on sys.path
    flow = load_flow_from_entrypoint(entry["entrypoint"])
    assert isinstance(flow, Flow)
    assert flow.name == name
    assert set(entry["parameters"]) <= set(flow.parameters.properties)
    assert set(entry["parameters"].get("until", ())) <= set(stages.TABLE)
    flow.validate_parameters(entry["parameters"])
    fields = fields_of(entry["parameters"].get("until", ()))
    assert fields is None or fields <= set(flow.parameters.properties)


@pytest.mark.parametrize(
    ("until", "shown", "hidden"),
    [
        (
            ["corpus", "vocab", "dataset"],
            {"vocab_size", "length", "mask_copies", "workers", "launcher"},
            {"steps", "global_batch", "epochs"},
        ),
        (
            ["pretrain"],
            {"steps", "global_batch", "launcher", "processes"},
            {"epochs", "mask_copies"},
        ),
        (
            ["finetune"],
            {"epochs", "task_learning_rate", "task_seed", "processes", "hostfile"},
            {"steps", "global_batch"},
        ),
        (
            ["evaluate"],
            {"processes", "retries", "force", "overrides", "config"},
            {"epochs", "until", "only"},
        ),
    ],
)
def test_a_form_has_the_fields_of_the_stages_that_it_ends_with(
    until: list[str], shown: set[str], hidden: set[str]
) -> None:
    fields = fields_of(until)
    assert fields is not None
    assert shown <= fields
    assert not hidden & fields
