"""Presets of papers' trainings: each is a graph of the shape that its paper asks for, with the
paper's numbers.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cloze.flows.graph.nodes import Node
from cloze.flows.graph.plan import plan
from tests.flows.presets.reading import Load, inputs, rows, values


@pytest.mark.parametrize(
    ("name", "model"), [("bert-base", (12, 768)), ("bert-large-two-phase", (24, 1024))]
)
def test_bert_is_trained_at_128_then_at_512_under_one_schedule(
    name: str, model: tuple[int, int], load: Load
) -> None:
    nodes = load(name).nodes
    assert list(nodes) == [
        "corpus",
        "vocab",
        "dataset",
        "dataset@512",
        "pretrain",
        "pretrain@512",
        "report",
    ]
    first, second = nodes["pretrain"], nodes["pretrain@512"]
    assert inputs(first) == {"dataset": "dataset"}
    assert inputs(second) == {"dataset": "dataset@512", "continue": "pretrain"}
    assert [values(nodes[name], "length")[0] for name in ("dataset", "dataset@512")] == [128, 512]
    assert (first.config.model.num_hidden_layers, first.config.model.hidden_size) == model  # type: ignore[attr-defined]
    for node, steps in ((first, 900_000), (second, 100_000)):
        said = values(
            node,
            "steps",
            "schedule_steps",
            "global_batch",
            "learning_rate",
            "warmup_steps",
            "schedule",
            "betas",
        )
        assert said == [steps, 1_000_000, 256, 1e-4, 10_000, "linear", (0.9, 0.999)]


def test_a_changed_second_phase_leaves_the_first_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load: Load
) -> None:
    monkeypatch.setenv("CLOZE_RUNS_DIR", str(tmp_path))

    def prints(*settings: str) -> dict[str, str]:
        return {step.name: step.fingerprint for step in plan(load("bert-base", *settings))}

    before, after = prints(), prints("pretrain@512.steps=50000")
    assert {name for name in before if before[name] != after[name]} == {"pretrain@512", "report"}


def test_roberta_albert_and_electra_have_their_papers_numbers(load: Load) -> None:
    roberta, albert, electra = (
        load(name).nodes for name in ("roberta-base", "albert-base", "electra-small")
    )
    said = ("steps", "global_batch", "learning_rate", "warmup_steps")
    assert values(roberta["pretrain"], *said, "betas", "grad_clip", "dynamic_masking") == [
        500_000,
        8192,
        6e-4,
        24_000,
        (0.9, 0.98),
        0.0,
        True,
    ]
    assert values(roberta["vocab"], "kind", "size") == ["bpe", 50265]
    assert values(roberta["dataset"], "pairing", "length", "mask_copies") == ["full", 512, 1]
    assert values(albert["pretrain"], *said, "optimizer") == [125_000, 4096, 1.76e-3, 3125, "lamb"]
    assert values(albert["dataset"], "pairing", "masking", "length") == ["sop", "n-gram", 512]
    assert albert["pretrain"].config.model.family == "albert"  # type: ignore[attr-defined]
    assert dropouts(albert["pretrain"]) == [0.1, 0.1]
    assert values(electra["pretrain"], *said) == [1_000_000, 128, 5e-4, 10_000]
    assert electra["pretrain"].config.model.hidden_size == 256  # type: ignore[attr-defined]


def dropouts(node: Node) -> list[float]:
    model = node.config.model  # type: ignore[attr-defined]
    return [model.hidden_dropout, model.attention_dropout]


def test_deberta_spanbert_and_the_larger_ones_have_their_papers_numbers(load: Load) -> None:
    names = ("deberta-v3-base", "spanbert-large", "electra-base", "roberta-large")
    deberta, span, electra, roberta = (load(name).nodes for name in names)
    said = (
        "steps",
        "global_batch",
        "learning_rate",
        "warmup_steps",
        "betas",
        "eps",
        "weight_decay",
        "dynamic_masking",
    )
    assert values(deberta["pretrain"], *said) == [
        1_000_000,
        256,
        1e-4,
        10_000,
        (0.9, 0.999),
        1e-6,
        0.01,
        True,
    ]
    assert deberta["pretrain"].config.model.pretraining == "rtd"  # type: ignore[attr-defined]
    assert values(deberta["dataset"], "pairing", "length", "mask_share", "mask_rounding") == [
        "full",
        512,
        1.0,
        "round",
    ]
    assert values(span["pretrain"], *said) == [
        2_400_000,
        256,
        1e-4,
        10_000,
        (0.9, 0.999),
        1e-8,
        0.1,
        True,
    ]
    assert values(span["dataset"], "pairing", "masking", "length", "short_seq_prob") == [
        "document",
        "span",
        512,
        0.0,
    ]
    assert values(span["vocab"], "kind", "size", "lowercase") == ["wordpiece", 28_996, False]
    assert values(electra["pretrain"], *said) == [
        766_000,
        256,
        2e-4,
        10_000,
        (0.9, 0.999),
        1e-6,
        0.01,
        True,
    ]
    assert values(electra["dataset"], "length", "mask_share", "random_share") == [512, 0.85, 0.0]
    assert values(roberta["pretrain"], *said) == [
        500_000,
        8192,
        4e-4,
        30_000,
        (0.9, 0.98),
        1e-6,
        0.01,
        True,
    ]
    for nodes, layers in ((span, 24), (electra, 12), (roberta, 24)):
        assert nodes["pretrain"].config.model.num_hidden_layers == layers  # type: ignore[attr-defined]
    assert all(
        dropouts(nodes["pretrain"]) == [0.1, 0.1] for nodes in (deberta, span, electra, roberta)
    )


def test_modernbert_goes_through_three_phases_of_as_many_tokens_a_step(load: Load) -> None:
    nodes = load("modernbert-base").nodes
    phases = [nodes[name] for name in ("pretrain", "pretrain@context", "pretrain@decay")]
    assert [inputs(node).get("continue") for node in phases] == [
        None,
        "pretrain",
        "pretrain@context",
    ]
    assert [inputs(node)["dataset"] for node in phases] == [
        "dataset",
        "dataset@8192",
        "dataset@8192",
    ]
    assert [values(node, "schedule", "learning_rate") for node in phases] == [
        ["constant", 8e-4],
        ["constant", 3e-4],
        ["sqrt", 3e-4],
    ]
    for node in phases:
        optimizer, rate, decay, clip = values(
            node, "optimizer", "learning_rate", "weight_decay", "grad_clip"
        )
        assert (optimizer, clip) == ("stable-adamw", 0)
        assert [*dropouts(node), node.config.model.output_dropout] == [0.0, 0.0, 0.1]  # type: ignore[attr-defined]
        assert rate * decay == pytest.approx(1e-5, rel=1e-2)  # of the weights a step, at the peak
    lengths = {name: nodes[name].config.length for name in ("dataset", "dataset@8192")}  # type: ignore[attr-defined]
    assert lengths == {"dataset": 1024, "dataset@8192": 8192}
    assert (
        len({node.config.global_batch * lengths[inputs(node)["dataset"]] for node in phases}) == 1
    )  # type: ignore[attr-defined]
    assert values(nodes["dataset@8192"], "pairing", "mask_rate") == ["packed", 0.3]


def test_domain_adaptation_has_scibert_s_three_ways(load: Load) -> None:
    nodes = load(
        "domain-adaptation",
        "pretrain.checkpoint=a/b",
        "vocab.import_path=a/b",
        "extend-vocab.base=a/b",
    ).nodes
    ways = {name: inputs(node) for name, node in nodes.items() if node.stage == "pretrain"}
    assert ways == {
        "pretrain": {"checkpoint": "a/b", "dataset": "dataset"},
        "pretrain@extended": {"checkpoint": "a/b", "dataset": "dataset@extended"},
        "pretrain@scratch": {"dataset": "dataset@scratch"},
        "pretrain@scratch-512": {"continue": "pretrain@scratch", "dataset": "dataset@scratch-512"},
    }
    vocabularies = {
        name: inputs(node)["vocab"] for name, node in nodes.items() if node.stage == "dataset"
    }
    assert vocabularies == {
        "dataset": "vocab", "dataset@extended": "extend-vocab",
        "dataset@scratch": "vocab@scratch", "dataset@scratch-512": "vocab@scratch",
    }  # fmt: skip
    assert values(nodes["vocab"], "import_path") == ["a/b"]
    assert values(nodes["extend-vocab"], "base", "add") == ["a/b", 5000]
    assert values(nodes["vocab@scratch"], "import_path", "size") == [None, 30_000]


def test_decays_branch_from_kept_steps_of_one_trunk(load: Load) -> None:
    nodes = load("decay-branches").nodes
    assert {
        name: (inputs(node)["continue"], *values(node, "steps", "schedule"))
        for name, node in nodes.items()
        if "@" in name
    } == {
        f"pretrain@decay-{at}": (f"pretrain/checkpoints/step-{at:08d}", at // 5, "sqrt")
        for at in (1000, 2000, 4000)
    }
    assert values(nodes["pretrain"], "schedule", "milestones") == ["constant", (1000, 2000, 4000)]


def test_masks_go_on_where_reading_from_left_to_right_ended(load: Load) -> None:
    nodes = load("clm-then-mlm").nodes
    assert inputs(nodes["pretrain@masks"])["continue"].startswith("pretrain")
    trained = {
        name: values(nodes[f"pretrain{name}"], "objectives", "steps")
        for name in ("", "@masks", "@masks-alone", "@mixture")
    }
    assert trained == {
        "": [("clm",), 2000],
        "@masks": [("mlm",), 2000],
        "@masks-alone": [("mlm",), 4000],
        "@mixture": [("clm", "mntp"), 4000],
    }
    assert {node.config.schedule_steps for node in rows(nodes, "pretrain").values()} == {4000}  # type: ignore[attr-defined]
