"""Presets that fine-tune a checkpoint: GLUE, BERT's grid, several tasks together."""

from __future__ import annotations

import shutil
from pathlib import Path

from cloze.flows.graph import config as configs
from cloze.flows.graph.overrides import parse
from tests.flows.presets.reading import Load, inputs, values
from tests.glue_files import write_glue


def test_glue_is_each_task_with_each_seed_and_its_test_files(load: Load, glue: Path) -> None:
    config = load("glue")
    tuned = {
        name: values(node, "task", "seed", "data")
        for name, node in config.nodes.items()
        if node.stage == "finetune"
    }
    tasks = ["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli"]
    assert tuned == {
        f"finetune@{task}-{seed}": [task, seed, str(glue)] for task in tasks for seed in (1, 2, 3)
    }
    answered = {name: node for name, node in config.nodes.items() if node.stage == "evaluate"}
    assert len(answered) == 3 * 9 + 3 * 3
    for node in answered.values():
        maker = tuned[inputs(node)["checkpoint"]]
        assert values(node, "task", "data") == [maker[0], maker[2]]
    more = [name for name in answered if name.startswith("evaluate@more")]
    assert {values(answered[name], "task", "split")[1] for name in more} == {
        "dev_mismatched",
        "test_mismatched",
        "ax",
    }
    assert not config.left_out


def test_glue_leaves_out_what_is_not_at_hand(tmp_path: Path, load: Load) -> None:
    data = write_glue(tmp_path / "glue")
    for folder in ("MNLI", "QQP"):
        shutil.rmtree(data / folder)
    (data / "RTE" / "test.tsv").unlink()
    config = configs.load("glue", parse([f"finetune.data={data}"], "x", sections=True))
    assert {node.values["task"] for node in config.nodes.values() if node.stage == "finetune"} == {
        "cola", "sst2", "mrpc", "stsb", "qnli", "rte", "wnli",
    }  # fmt: skip
    assert "evaluate@rte-1" not in config.nodes
    assert config.left_out["evaluate@rte-1"] == f"{data}/RTE has no test split"
    assert config.left_out["finetune@mnli-2"] == f"{data}/MNLI has no train split"
    assert config.left_out["evaluate@more-mnli-ax"] == "needs finetune@mnli-1, which is left out"


def test_glue_can_go_on_from_mnli(load: Load) -> None:
    nodes = load("glue", "finetune@from-mnli.when=available").nodes
    more = {
        name: inputs(node) for name, node in nodes.items() if name.startswith("finetune@from-mnli")
    }
    assert more == {
        f"finetune@from-mnli-{task}-{seed}": {"checkpoint": f"finetune@mnli-{seed}"}
        for task in ("mrpc", "stsb", "rte")
        for seed in (1, 2, 3)
    }
    assert inputs(nodes["evaluate@from-mnli-rte-2"]) == {"checkpoint": "finetune@from-mnli-rte-2"}


def test_the_grid_is_bert_s(load: Load) -> None:
    """Devlin et al. 2019, appendix A.3."""
    nodes = [node for node in load("grid").nodes.values() if node.stage == "finetune"]
    assert {tuple(values(node, "learning_rate", "global_batch", "epochs")) for node in nodes} == {
        (rate, batch, epochs)
        for rate in (5e-5, 3e-5, 2e-5)
        for batch in (16, 32)
        for epochs in (2, 3, 4)
    }
    assert len(nodes) == 18 * 3


def test_together_stands_beside_each_task_alone(load: Load) -> None:
    nodes = load("multitask").nodes
    both = {name: node for name, node in nodes.items() if name.startswith("finetune@multitask")}
    assert list(both) == [f"finetune@multitask-{seed}" for seed in (1, 2, 3)]
    alone = {
        node.values["task"]
        for name, node in nodes.items()
        if node.stage == "finetune" and name not in both
    }
    assert (
        set(values(both["finetune@multitask-1"], "tasks")[0])
        == alone
        == {"mrpc", "rte", "stsb", "cola"}
    )
