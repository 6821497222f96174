"""What a flow's form comes to: how a training is started on many machines."""

from __future__ import annotations

from typing import Any

import pytest

from flows.graph import config as configs
from flows.prefect.parameters import parameters_of
from flows.prefect.parts import pretraining
from pipeline.core.errors import UsageError

EMPTY: dict[str, Any] = {"config": "demo", "launcher": None, "nodes": None, "hostfile": None, "launcher_options": []}


@pytest.mark.parametrize(
    ("launcher", "options", "field"),
    [
        ("slurm", ["--partition=gpu"], "slurm_options"),
        ("kubernetes", ["image=registry/cloze:1"], "kubernetes_options"),
        ("ssh", ["Port=2222"], "ssh_options"),
    ],
)
def test_the_launcher_of_a_form_is_that_of_the_trainings(launcher: str, options: list[str], field: str) -> None:
    given = {**EMPTY, "launcher": launcher, "nodes": 2, "hostfile": "/shared/hosts", "launcher_options": options}
    found = configs.load("demo", parameters_of(given, until=("pretrain",)).overrides)
    trainings = [node for node in found.nodes.values() if node.stage == "pretrain"]
    assert trainings
    for node in trainings:
        execution = node.execution
        assert (execution.launcher, execution.nodes, execution.hostfile) == (launcher, 2, "/shared/hosts")
        assert getattr(execution, field) == tuple(options)
    assert {node.execution.launcher for node in found.nodes.values() if node.stage != "pretrain"} == {"local"}


def test_an_empty_form_leaves_the_config_as_it_is() -> None:
    assert parameters_of(EMPTY, until=("pretrain",)).overrides == {}


def test_options_without_a_launcher_that_takes_them_are_refused() -> None:
    with pytest.raises(
        UsageError, match="launcher_options are given, and launcher is empty; choose slurm, kubernetes, ssh, torchrun"
    ):
        parameters_of({**EMPTY, "launcher_options": ["--partition=gpu"]})


def test_the_form_offers_the_launchers() -> None:
    launcher = pretraining.parameters.properties["launcher"]
    assert {"local", "ssh", "torchrun", "slurm", "kubernetes"} <= set(launcher["enum"])
