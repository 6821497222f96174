"""The graph of a night: which nodes each checkpoint gets, and from what they start."""

from __future__ import annotations

from cloze.flows.nightly import suite


def test_a_task_that_reads_a_corpus_gets_the_checkpoints_own() -> None:
    wanted = suite.Suite(
        settings=suite.NightSettings(),
        sections={"finetune": {"task": "package"}, "evaluate": {}},
        reference="",
        overrides={},
    )
    graph = wanted.config(
        {"demo.1": {"pretrain": "/c/checkpoints/step-00000001", "corpus": "/runs/corpus"}}
    )
    inputs = {
        name: {role: origin.path or origin.node for role, origin in node.inputs.items()}
        for name, node in graph.nodes.items()
    }
    assert inputs == {
        "finetune@demo.1": {"checkpoint": "/c/checkpoints/step-00000001", "corpus": "/runs/corpus"},
        "evaluate@demo.1": {"checkpoint": "finetune@demo.1", "corpus": "/runs/corpus"},
    }


def test_a_task_after_another_starts_from_its_model() -> None:
    sections = {
        "finetune@mnli": {"task": "mnli", "data": "samples/tasks"},
        "finetune@rte": {"task": "rte", "data": "samples/tasks", "checkpoint": "finetune@mnli"},
        "perplexity": {"checkpoint": "pretrain"},
    }
    wanted = suite.Suite(
        settings=suite.NightSettings(), sections=sections, reference="", overrides={}
    )
    artifacts = {"dataset": "/runs/dataset"}
    graph = wanted.config(
        {label: {"pretrain": f"/c/{label}", **artifacts} for label in ("demo.1", "demo.2")}
    )
    checkpoints = {
        name: node.inputs["checkpoint"].path or node.inputs["checkpoint"].node
        for name, node in graph.nodes.items()
    }
    assert checkpoints == {
        **{f"finetune@mnli-{of}": f"/c/{of}" for of in ("demo.1", "demo.2")},
        **{f"finetune@rte-{of}": f"finetune@mnli-{of}" for of in ("demo.1", "demo.2")},
        **{f"perplexity@{of}": f"/c/{of}" for of in ("demo.1", "demo.2")},
    }


def test_an_ensemble_has_the_members_of_one_checkpoint() -> None:
    sections = {
        "finetune": {"matrix": {"task": ["sst2", "rte"], "seed": [1, 2]}, "data": "samples/tasks"},
        "evaluate@ensemble": {
            "checkpoint": "finetune@{task}-*",
            "matrix": {"task": ["sst2", "rte"]},
        },
        "evaluate@two": {"checkpoint": ["finetune@rte-1", "finetune@rte-2"]},
    }
    wanted = suite.Suite(
        settings=suite.NightSettings(), sections=sections, reference="", overrides={}
    )
    graph = wanted.config({label: {"pretrain": f"/c/{label}"} for label in ("demo.1", "demo.2")})
    members = {
        (node.section, node.values.get("task"), node.values["of"]): set(node.depends_on)
        for node in graph.nodes.values()
        if node.stage == "evaluate"
    }
    pairs = {
        (task, of): {f"finetune@{task}-{seed}-{of}" for seed in (1, 2)}
        for task in ("sst2", "rte")
        for of in ("demo.1", "demo.2")
    }
    assert members == {
        **{("evaluate@ensemble", *key): pair for key, pair in pairs.items()},
        **{("evaluate@two", None, of): pairs["rte", of] for of in ("demo.1", "demo.2")},
    }
