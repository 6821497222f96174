"""What a flow's form comes to: how a training is started on many machines."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.utilities.callables import parameter_schema

from cloze.core.errors import UsageError
from cloze.flows.graph import config as configs
from cloze.flows.prefect import flow_state, graph_run
from cloze.flows.prefect.graph_run import full_run
from cloze.flows.prefect.nightly import nightly_evaluation
from cloze.flows.prefect.parameters import fields_of, left_out, parameters_of
from cloze.flows.prefect.source_watch import source_watch

EMPTY: dict[str, Any] = {
    "config": "demo",
    "until": ["pretrain"],
    "launcher": None,
    "nodes": None,
    "hostfile": None,
}


@pytest.mark.parametrize(
    ("launcher", "options", "field"),
    [
        ("slurm", ["--partition=gpu"], "slurm_options"),
        ("kubernetes", ["image=registry/cloze:1"], "kubernetes_options"),
        ("ssh", ["Port=2222"], "ssh_options"),
    ],
)
def test_the_launcher_of_a_form_is_that_of_the_run(
    launcher: str, options: list[str], field: str
) -> None:
    given = {
        **EMPTY,
        "launcher": launcher,
        "nodes": 2,
        "hostfile": "/shared/hosts",
        "overrides": {f"run.{field}": options},
    }
    found = configs.load("demo", parameters_of(given).overrides)
    trainings = [node for node in found.nodes.values() if node.stage == "pretrain"]
    assert trainings
    for node in trainings:
        execution = node.execution
        assert (execution.launcher, execution.nodes, execution.hostfile) == (
            launcher,
            2,
            "/shared/hosts",
        )
        assert getattr(execution, field) == tuple(options)
    typed = {"run": {"launcher": launcher, "nodes": 2, "hostfile": "/shared/hosts", field: options}}
    by_hand = configs.load("demo", typed)
    assert {name: node.execution for name, node in found.nodes.items()} == {
        name: node.execution for name, node in by_hand.nodes.items()
    }
    assert {node.execution.launcher for node in found.nodes.values()} == {launcher}


def test_a_launcher_that_a_section_names_counts_more_than_the_forms() -> None:
    form = {**EMPTY, "launcher": "slurm", "overrides": {"report.run.launcher": "local"}}
    found = configs.load("demo", parameters_of(form).overrides)
    launchers = {node.execution.launcher for name, node in found.nodes.items() if name != "report"}
    assert launchers == {"slurm"}
    assert found.nodes["report"].execution.launcher == "local"


def test_the_form_of_data_has_the_launcher_too() -> None:
    fields = fields_of(["corpus", "vocab", "dataset"])
    assert fields is not None
    assert {"launcher", "nodes", "hostfile", "processes"} <= fields


def test_an_empty_form_leaves_the_config_as_it_is() -> None:
    assert parameters_of(EMPTY).overrides == {}


def test_fields_and_overrides_are_merged_and_overrides_win() -> None:
    overrides = {
        "pretrain.run.retries": 3,
        "pretrain.steps": 5,
        "vocab": {"size": 900},
        "corpus.sources": [{"kind": "wikipedia", "path": "/tmp/x.xml"}],  # which the preset lacks
    }
    form = {**EMPTY, "config": "bert-base", "launcher": "slurm", "nodes": 4, "steps": 7}
    form |= {"vocab_size": 800, "length": 64, "overrides": overrides}
    found = configs.load("bert-base", parameters_of(form).overrides)
    trainings = [node for node in found.nodes.values() if node.stage == "pretrain"]
    assert {(n.execution.launcher, n.execution.nodes) for n in trainings} == {("slurm", 4)}
    assert "retries" in str(parameters_of(form).overrides["pretrain"]["run"])
    sizes = {node.config.size for node in found.nodes.values() if node.stage == "vocab"}  # type: ignore[attr-defined]
    assert sizes == {900}
    demo = {**EMPTY, "steps": 7, "overrides": {"pretrain.steps": 5, "pretrain.run.retries": 3}}
    (training,) = (
        node
        for node in configs.load("demo", parameters_of(demo).overrides).nodes.values()
        if node.name == "pretrain"
    )
    assert (training.config.steps, training.execution.retries) == (5, 3)  # type: ignore[attr-defined]
    whole = {"pretrain": {"model": "bert-mini"}, "pretrain.run": {"retries": 3}}
    assert parameters_of({**EMPTY, "launcher": "slurm", "overrides": whole}).overrides == {
        "pretrain": {"model": "bert-mini", "run": {"": {"retries": 3}}},
        "run": {"launcher": "slurm"},
    }


def test_what_a_form_s_schema_takes_is_what_the_config_takes() -> None:
    filled = {
        "epochs": 2,
        "task_learning_rate": 1e-4,
        "task_seed": 0,
        "steps": 1,
        "global_batch": 8,
        "learning_rate": 0.5,
    }
    filled |= {
        "seed": 0,
        "vocab_size": 900,
        "length": 8,
        "mask_copies": 1,
        "workers": 1,
        "processes": 1,
    }
    found = configs.load("demo", parameters_of({"config": "demo", **filled}).overrides)
    assert {node.stage for node in found.nodes.values()} >= {"pretrain", "finetune"}
    kinds = full_run.parameters.properties
    assert {name: kinds[name]["type"] for name, value in filled.items()} == {
        name: "number" if isinstance(value, float) else "integer" for name, value in filled.items()
    }


def test_the_form_offers_the_launchers() -> None:
    launcher, _ = full_run.parameters.properties["launcher"]["anyOf"]
    assert {"local", "ssh", "slurm", "kubernetes"} <= set(launcher["enum"])


@pytest.mark.parametrize("flow", [full_run, nightly_evaluation, source_watch])
def test_no_alternative_of_a_form_takes_what_is_typed_into_another(flow: Any) -> None:
    """Prefect's first UI shows a value in the first alternative of its JSON type."""
    found = 0
    for field in parameter_schema(flow.fn).model_dump()["properties"].values():
        by_type: dict[str, list[dict[str, Any]]] = {}
        for alternative in field.get("anyOf", ()):
            by_type.setdefault(alternative["type"], []).append(alternative)
        for first, *others in by_type.values():
            found += len(others)
            assert not others or "enum" not in {**first, **first.get("items", {})}, field["title"]
    assert found >= 1 or flow is nightly_evaluation


def test_a_deployment_runs_those_of_its_stages_that_the_config_has(tmp_path: Path) -> None:
    """`data` names corpus, vocab and dataset; a config with a tokenizer or without a dataset failed."""
    config = tmp_path / "own.yaml"
    config.write_text("corpus:\n  sources: [{kind: text, path: .}]\n")
    until = ["corpus", "vocab", "dataset"]
    parameters = parameters_of({"config": str(config), "until": until})
    assert parameters.until == ["corpus"]
    told = left_out({"config": str(config), "until": until}, parameters)
    assert "own.yaml' does not have stages vocab, dataset" in told
    assert parameters_of({"config": "demo", "until": until}).until == until
    # alone, a stage that the config lacks is refused when the run is planned
    assert parameters_of({"config": str(config), "until": ["finetune"]}).until == ["finetune"]
    assert parameters_of({"config": str(config), "until": ["corp*"]}).until == ["corp*"]


@pytest.mark.parametrize(
    ("sources", "until", "told"),
    [
        ("corpus", ["corpus", "vocab"], "does not have stage vocab: left out"),
        ("corpus", ["corpus"], ""),
        ("corpus", [], ""),
    ],
)
def test_a_stage_that_is_left_out_is_in_the_flows_log(
    sources: str, until: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "own.yaml"
    config.write_text(f"{sources}:\n  sources: [{{kind: text, path: .}}]\n")
    log: list[str] = []
    record = SimpleNamespace(
        warning=lambda text, *values: log.append(text % values), error=lambda *_: None
    )

    def session(parameters: Any, *_: Any, **__: Any) -> None:
        assert list(parameters.until or []) == until[:1]
        raise UsageError("far enough")

    monkeypatch.setattr(graph_run, "get_run_logger", lambda: record)
    monkeypatch.setattr(graph_run, "RunSession", session)
    monkeypatch.setattr(graph_run, "install_log_filter", lambda: None)
    monkeypatch.setattr(graph_run, "flow_run", SimpleNamespace(name="n", id=None))
    monkeypatch.setattr(flow_state, "ignore_suspend", lambda: None)
    state = graph_run._run({**EMPTY, "config": str(config), "until": until, "retries": 0})
    assert state.message == "far enough"
    assert [each for each in log if told in each] == log
    assert bool(log) == bool(told)
