"""From sections to nodes: labels, inputs by role, instances, kept steps; and what cannot be is
told.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cloze.core.errors import UsageError
from cloze.core.stages.execution import LAUNCHER_FIELDS, Execution, Resources
from cloze.flows.graph.config import RunConfig, load
from cloze.flows.graph.nodes import InputSource, Node

BASE: dict[str, Any] = {
    "corpus": {"sources": [{"kind": "books", "path": "books"}]},
    "vocab": {},
    "dataset": {"length": 128, "seed": 7},
}


def nodes(**sections: Any) -> dict[str, Node]:
    """The nodes of a run with these sections after corpus, vocab and dataset; `_at_` in a name
    stands for `@`.
    """
    return RunConfig(
        {**BASE, **{name.replace("_at_", "@"): values for name, values in sections.items()}}, "toy"
    ).nodes


def inputs(node: Node) -> dict[str, str]:
    return {
        role: f"{origin.node}/{origin.path}".rstrip("/") if origin.node else origin.path
        for role, origin in node.inputs.items()
    }


def test_a_section_with_another_launcher_does_not_get_the_runs_options_for_its_own() -> None:
    run = {"launcher": "slurm", "slurm_options": ["--partition=gpu"], "nodes": 2}
    found = nodes(run=run, pretrain={}, finetune={"run": {"launcher": "local", "nodes": 1}})
    assert found["pretrain"].execution.slurm_options == ("--partition=gpu",)
    assert found["finetune"].execution == Execution()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("launcher", "slurm"),
        ("resources", {"gpus": 1, "cpus": 4, "memory": "24G", "time": "2h"}),
        ("slurm_options", ["--partition=gpu"]),
        ("kubernetes_options", ["image=a"]),
        ("ssh_options", ["Port=1"]),
        ("hostfile", "hosts"),
        ("min_nodes", 1),
    ],
)
@pytest.mark.parametrize("stage", ["corpus", "vocab", "pretrain", "evaluate", "report"])
def test_where_a_node_runs_may_stand_in_its_section(stage: str, field: str, value: Any) -> None:
    base = {**BASE, "pretrain": {}, "finetune": {}, "evaluate": {}, "report": {}}
    launcher = {"launcher": LAUNCHER_FIELDS[field]} if field in LAUNCHER_FIELDS else {}
    beside = {**base[stage], field: value, **launcher}
    below = {**base[stage], "run": {field: value, **launcher}}
    found = [RunConfig({**base, stage: each}, "toy").nodes for each in (beside, below)]
    assert found[0] == found[1]
    assert found[0][stage].execution != Execution()
    other = "dataset" if stage != "dataset" else "vocab"
    assert found[0][other].execution == Execution()


def test_a_launcher_named_twice_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"vocab\.launcher and vocab\.run\.launcher are the same; leave one out"
    ):
        nodes(vocab={"launcher": "slurm", "run": {"launcher": "local"}})


def test_an_override_in_one_form_changes_what_the_other_says(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(
        "corpus: {sources: [{kind: books, path: x}], launcher: slurm, resources: {cpus: 2}}\n"
        "vocab: {run: {launcher: slurm}}\n"
        "vocab@b: {launcher: ssh, hostfile: h}\n"
    )
    changed = {"corpus": {"run": {"launcher": "local"}, "resources": {"memory": "1G"}},
               "vocab": {"launcher": "local"}}  # fmt: skip
    found = load(str(file), changed).nodes
    assert found["corpus"].execution.launcher == found["vocab"].execution.launcher == "local"
    assert found["corpus"].execution.resources == Resources(cpus=2, memory="1G")
    assert found["vocab@b"].execution.launcher == "ssh"


def test_inputs_are_the_nearest_before() -> None:
    found = nodes(pretrain={}, finetune={}, evaluate={}, report={})
    assert list(found) == [
        "corpus",
        "vocab",
        "dataset",
        "pretrain",
        "finetune",
        "evaluate",
        "report",
    ]
    assert inputs(found["pretrain"]) == {"dataset": "dataset"}
    assert inputs(found["finetune"]) == {
        "checkpoint": "pretrain",
        "corpus": "corpus",
        "vocab": "vocab",
    }
    assert inputs(found["report"]) == {name: name for name in list(found)[:-1]}
    assert found["finetune"].depends_on == ("pretrain", "corpus", "vocab")


def test_a_corpus_without_semantic_duplicates_serves_what_comes_after_it() -> None:
    found = nodes(pretrain={}, vectors={}, semdedup={}, dataset_at_clean={}, pretrain_at_clean={})
    assert inputs(found["vectors"]) == {"corpus": "corpus", "checkpoint": "pretrain"}
    assert inputs(found["semdedup"]) == {"corpus": "corpus", "vectors": "vectors"}
    assert inputs(found["dataset"])["corpus"] == "corpus"
    assert inputs(found["dataset@clean"])["corpus"] == "semdedup"


def test_a_label_takes_over_and_the_nearest_before_is_a_labelled_one_too() -> None:
    found = nodes(
        dataset_at_512={"length": 512},
        pretrain={"dataset": "dataset", "steps": 5},
        pretrain_at_512={"continue": "pretrain"},
    )
    assert (found["dataset@512"].config.length, found["dataset@512"].config.seed) == (512, 7)  # type: ignore[attr-defined]
    assert found["pretrain@512"].config.steps == 5  # type: ignore[attr-defined]
    assert inputs(found["pretrain"]) == {"dataset": "dataset"}
    assert inputs(found["pretrain@512"]) == {"dataset": "dataset", "continue": "pretrain"}, (
        "the role is taken over, too"
    )
    assert inputs(nodes(dataset_at_512={"length": 512}, pretrain={})["pretrain"]) == {
        "dataset": "dataset@512"
    }


def test_a_training_mixes_several_datasets_by_label_name_or_path() -> None:
    found = nodes(
        dataset_at_wiki={"length": 64},
        dataset_at_books={},
        pretrain={"dataset": ["dataset@wiki", "dataset@books", "old=out/dataset", "out/news"]},
        pretrain_at_more={"continue": "pretrain"},
        pretrain_at_one={"dataset": ["dataset@wiki"]},
    )
    mixed = {
        "dataset/wiki": "dataset@wiki",
        "dataset/books": "dataset@books",
        "dataset/old": "out/dataset",
        "dataset/news": "out/news",
    }
    assert inputs(found["pretrain"]) == mixed
    assert found["pretrain"].depends_on == ("dataset@wiki", "dataset@books")
    assert inputs(found["pretrain@more"]) == {**mixed, "continue": "pretrain"}
    assert inputs(found["pretrain@one"]) == {"dataset": "dataset@wiki"}


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"pretrain": {"dataset": ["dataset", "dataset"]}}, "dataset 'dataset' is given twice"),
        (
            {"pretrain": {"dataset": ["a/dataset", "dataset"]}},
            "dataset 'dataset' is the name of two inputs, a/dataset and dataset",
        ),
        ({"pretrain": {"dataset": []}}, "dataset is empty"),
        ({"pretrain": {"dataset": ["dataset", "datset"]}}, "'datset'. is no node of this run"),
        (
            {"pretrain": {}, "finetune": {"checkpoint": ["pretrain", "pretrain"]}},
            "takes one node or path, not a list",
        ),
        (
            {"pretrain": {"dataset": ["dataset", "a/other"], "mixture": {"dataset": 1, "othr": 2}}},
            "did you mean 'other'",
        ),
        (
            {"pretrain": {"dataset": ["dataset", "corpus"]}},
            "is a corpus node; it takes one of dataset",
        ),
    ],
)
def test_what_cannot_be_mixed_is_a_sentence(sections: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        nodes(**sections)


def test_a_label_can_unsay_a_role() -> None:
    found = nodes(pretrain={"checkpoint": "out/side"}, pretrain_at_new={"checkpoint": False})
    assert inputs(found["pretrain"])["checkpoint"] == "out/side"
    assert "checkpoint" not in found["pretrain@new"].inputs


def test_a_named_role_is_not_taken_by_itself() -> None:
    assert (
        "continue"
        not in nodes(pretrain={}, pretrain_at_b={"dataset": "dataset"})["pretrain@b"].inputs
    )


def test_a_kept_step_is_an_input_and_its_training_keeps_it() -> None:
    found = nodes(
        pretrain={"steps": 9000}, pretrain_at_decay={"continue": "pretrain/step-8000", "steps": 10}
    )
    assert found["pretrain@decay"].inputs["continue"] == InputSource(
        node="pretrain", path="checkpoints/step-00008000"
    )
    assert found["pretrain"].config.milestones == (8000,)  # type: ignore[attr-defined]
    assert found["pretrain@decay"].config.milestones == ()  # type: ignore[attr-defined]


def test_instances_follow_instance_by_instance() -> None:
    found = nodes(
        pretrain={"matrix": {"seed": [1, 2]}},
        finetune={"matrix": {"task": ["sst2", "package"]}},
        evaluate={},
    )
    assert [name for name in found if name.startswith("finetune")] == [
        "finetune@sst2-1", "finetune@sst2-2", "finetune@package-1", "finetune@package-2",
    ]  # fmt: skip
    assert inputs(found["finetune@package-2"])["checkpoint"] == "pretrain@2"
    assert inputs(found["evaluate@package-2"])["checkpoint"] == "finetune@package-2"
    assert found["evaluate@package-2"].values == {"task": "package", "seed": 2}
    assert found["finetune@sst2-1"].config.task == "sst2"  # type: ignore[attr-defined]
    assert found["finetune@sst2-2"].config.seed == 1, "an axis of an input sets no field"  # type: ignore[attr-defined]


def test_axes_of_one_name_belong_together() -> None:
    found = nodes(
        dataset_at_x={"matrix": {"row": {"a": {"length": 64}, "b": {"length": 32}}}},
        pretrain={"matrix": {"row": {"a": {"steps": 1}, "b": {"steps": 2}}}},
    )
    assert {
        name: inputs(node)["dataset"] for name, node in found.items() if node.stage == "pretrain"
    } == {
        "pretrain@a": "dataset@x-a",
        "pretrain@b": "dataset@x-b",
    }
    with pytest.raises(UsageError, match="no instance of dataset@x-a has the values"):
        nodes(dataset_at_x={"matrix": {"row": {"a": {}}}}, pretrain={"matrix": {"row": {"c": {}}}})


def test_named_points_of_two_axes_are_merged() -> None:
    size = {"small": {"model": "bert-mini"}, "deep": {"model": {"num_hidden_layers": 6}}}
    act = {"relu": {"model": {"hidden_act": "relu"}, "steps": 3}}
    found = nodes(pretrain={"model": "bert-tiny", "matrix": {"size": size, "act": act}})
    models = {name: found[f"pretrain@{name}-relu"].config.model for name in size}  # type: ignore[attr-defined]
    assert [model.hidden_act for model in models.values()] == ["relu", "relu"]
    assert (models["small"].num_hidden_layers, models["small"].hidden_size) == (4, 256)
    assert (models["deep"].num_hidden_layers, models["deep"].hidden_size) == (6, 128)
    other = {"long": {"tokens": 1000}}
    with pytest.raises(UsageError, match="tokens"):
        nodes(pretrain={"matrix": {"act": act, "other": other}})


@pytest.mark.parametrize("stage", ["report", "submission"])
def test_axes_count_in_the_fingerprint_of_a_report(stage: str) -> None:
    """They decide which scores are averaged."""

    def fields(axis: str, path: str = "books") -> dict[str, Any]:
        seeds = {name: {"seed": int(name)} for name in "12"}
        corpus = {"sources": [{"kind": "books", "path": path}]}
        found = nodes(corpus=corpus, pretrain={"matrix": {axis: seeds}}, **{stage: {}})
        return found[stage].config.fingerprint_fields()

    assert fields("run") != fields("seed")
    assert fields("run") == fields("run", "/elsewhere/books")


def test_two_inputs_with_the_same_axis_are_joined() -> None:
    found = nodes(
        vocab_at_v={"matrix": {"size": [100, 200]}}, dataset_at_d={}, pretrain={}, finetune={}
    )
    assert [name for name in found if name.startswith("finetune")] == [
        "finetune@100",
        "finetune@200",
    ]
    assert inputs(found["finetune@200"]) == {
        "checkpoint": "pretrain@200",
        "corpus": "corpus",
        "vocab": "vocab@v-200",
    }


def test_an_axis_in_a_reference_and_in_a_field() -> None:
    found = nodes(
        pretrain={"steps": 40},
        pretrain_at_decay={
            "continue": "pretrain/step-{at}",
            "matrix": {"at": [10, 20]},
            "steps": 5,
        },
        finetune={
            "data": "glue/{task}",
            "matrix": {"task": ["sst2"]},
            "checkpoint": "pretrain@decay",
        },
    )
    assert inputs(found["pretrain@decay-20"])["continue"] == "pretrain/checkpoints/step-00000020"
    assert found["pretrain"].config.milestones == (10, 20)  # type: ignore[attr-defined]
    assert found["finetune@sst2-10"].config.data == "glue/sst2"  # type: ignore[attr-defined]


def test_an_instance_can_be_named_and_brings_no_axis() -> None:
    found = nodes(pretrain={"matrix": {"seed": [1, 2]}}, finetune={"checkpoint": "pretrain@2"})
    assert inputs(found["finetune"])["checkpoint"] == "pretrain@2"


def test_run_is_laid_over_the_runs_own() -> None:
    found = nodes(run={"workers": 3, "retries": 1}, pretrain={"run": {"retries": 5}})
    assert (found["pretrain"].execution.workers, found["pretrain"].execution.retries) == (3, 5)
    assert found["dataset"].execution.retries == 1


def test_where_the_gathered_nodes_stand_is_told() -> None:
    found = nodes(pretrain={"matrix": {"seed": [1, 2]}}, report={})
    told = found["report"].config.nodes["pretrain@2"]  # type: ignore[attr-defined]
    assert (told.section, told.values, told.inputs) == (
        "pretrain",
        {"seed": 2},
        {"dataset": "dataset"},
    )
    assert "nodes" not in found["report"].config.model_dump()


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        (
            {"pretrain": {"continue": "pretrain@b"}, "pretrain_at_b": {"continue": "pretrain"}},
            r"circle \(pretrain -> pretrain@b -> pretrain\)",
        ),
        ({"pretrain": {"continue": "pretrain"}}, r"in a circle \(pretrain -> pretrain\)"),
        (
            {"pretrain": {"dataset": "vocab"}},
            r"pretrain.dataset \(vocab\) is a vocab node; it takes one of dataset",
        ),
        ({"pretrain": {"dataset": "datset"}}, "pretrain.dataset .*did you mean 'dataset'"),
        ({"pretrain": {"datset": "dataset"}}, "unknown config key pretrain.datset"),
        (
            {"pretrain": {"matrix": {"sead": [1, 2]}}},
            "pretrain.matrix.sead is no field of pretrain.*did you mean 'seed'",
        ),
        (
            {
                "pretrain": {"continue": "pretrain@x/step-{at}"},
                "pretrain_at_x": {"continue": False},
            },
            "refers to an axis|no node",
        ),
        ({"report": {"matrix": {"seed": [1]}}}, "gathers all nodes"),
        (
            {"pretrain": {"matrix": {"seed": ["5"]}}, "pretrain_at_5": {"matrix": {}}},
            "two nodes would be called pretrain@5",
        ),
        ({"pretrain_at_a b": {}}, "a label .* that is no word"),
        ({"pretrian": {}}, "did you mean 'pretrain'"),
        ({"evaluate": {}}, "stage evaluate needs stage finetune"),
    ],
)
def test_what_cannot_be_is_told(sections: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        nodes(**sections)
