"""Nodes: how their names are read, and how names and patterns choose among them."""

from __future__ import annotations

import pytest

from cloze.core.errors import UsageError
from cloze.flows.graph.config import RunConfig
from cloze.flows.graph.nodes import resolve_subpath, select_nodes, stage_of, with_descendants

CONFIG = {
    "corpus": {"sources": [{"kind": "books", "path": "books"}]},
    "vocab": {},
    "dataset": {},
    "pretrain": {},
    "finetune": {"matrix": {"task": ["sst2", "package"], "seed": [1, 2]}},
    "finetune@long": {"epochs": 9, "matrix": {"seed": [1, 2]}},
    "evaluate": {},
    "report": {},
}


@pytest.fixture(scope="module")
def config() -> RunConfig:
    return RunConfig(CONFIG, "toy")


def chosen(config: RunConfig, *wanted: str) -> set[str]:
    return select_nodes(config.nodes, wanted, config.name)


def test_a_section_says_its_stage_and_a_strange_label_is_none() -> None:
    assert [stage_of(name) for name in ("pretrain", "pretrain@512", "pretrain@a-b_c")] == [
        "pretrain"
    ] * 3
    assert [
        stage_of(name) for name in ("pretrian", "pretrain@", "pretrain@a b", "pretrain@-a", "run")
    ] == [None] * 5


def test_a_name_means_the_node_then_its_section_then_its_stage(config: RunConfig) -> None:
    assert chosen(config, "finetune@sst2-1") == {"finetune@sst2-1"}
    assert chosen(config, "finetune") == {
        f"finetune@{task}-{seed}" for task in ("sst2", "package") for seed in (1, 2)
    }
    assert chosen(config, "finetune@long") == {"finetune@long-1", "finetune@long-2"}
    assert chosen(config, "vocab", "report") == {"vocab", "report"}


def test_patterns_choose_by_name(config: RunConfig) -> None:
    assert chosen(config, "finetune@sst2-*") == {"finetune@sst2-1", "finetune@sst2-2"}
    assert chosen(config, "*@long-1") == {"finetune@long-1"}
    assert chosen(config, "[cv]o*") == {"corpus", "vocab"}


def test_what_means_no_node_is_told_with_the_nearest(config: RunConfig) -> None:
    with pytest.raises(
        UsageError,
        match="'finetune@sts2-1' is no node of run 'toy'; did you mean 'finetune@sst2-1'",
    ):
        chosen(config, "finetune@sts2-1")
    with pytest.raises(UsageError, match="no node"):
        chosen(config, "finetune@mrpc-*")


def test_what_follows_is_all_that_needs_it_near_and_far(config: RunConfig) -> None:
    follow = with_descendants(config.nodes, {"finetune@long-1"})
    assert {"finetune@long-1", "report"} <= follow
    assert not {"finetune@long-2", "finetune@sst2-1", "pretrain"} & follow
    assert with_descendants(config.nodes, {"corpus"}) == set(config.nodes)


@pytest.mark.parametrize(
    ("part", "path"),
    [("step-8000", "checkpoints/step-00008000"), ("checkpoint", "checkpoint"), ("", "")],
)
def test_a_kept_step_is_a_checkpoint(part: str, path: str) -> None:
    assert resolve_subpath(part, f"pretrain/{part}") == path


@pytest.mark.parametrize("part", ["../other", "a/../../b", "/etc/passwd"])
def test_no_reference_leads_out_of_its_node(part: str) -> None:
    with pytest.raises(UsageError, match="leads out of its node"):
        resolve_subpath(part, f"pretrain/{part}")
