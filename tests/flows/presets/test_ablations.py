"""Presets of papers' tables: rows differ in what the table says, and in nothing else."""

from __future__ import annotations

import pytest

from tests.flows.presets.reading import Load, inputs, rows, values

EVERYTHING = ("finetune.when=always", "finetune.data=null")  # tasks without files too


def test_table_5_differs_in_its_examples_and_its_last_rows_in_the_model(load: Load) -> None:
    """Devlin et al. 2019, table 5."""
    nodes = load("bert-table5", *EVERYTHING).nodes
    data, trained = rows(nodes, "dataset"), rows(nodes, "pretrain")
    assert {row: values(node, "pairing", "masking", "mask_copies") for row, node in data.items()} == {
        "bert": ["nsp", "token", 2], "no-nsp": ["segment-pair", "token", 2],
        "ltr": ["segment-pair", "none", 1],
    }  # fmt: skip
    assert {row: inputs(node) for row, node in trained.items()} == {
        row: {"dataset": f"dataset@{row}"} for row in data
    }
    assert trained["bert"].config == trained["no-nsp"].config
    assert trained["ltr"].config.model.family == "ltr"  # type: ignore[attr-defined]
    assert trained["ltr"].config.model_copy(update={"model": None}) == trained[
        "bert"
    ].config.model_copy(update={"model": None})
    tuned = [node for node in nodes.values() if node.stage == "finetune"]
    assert {node.values.get("row", "ltr-bilstm"): inputs(node)["checkpoint"] for node in tuned} == {
        "bert": "pretrain@bert", "no-nsp": "pretrain@no-nsp", "ltr": "pretrain@ltr",
        "ltr-bilstm": "pretrain@ltr",
    }  # fmt: skip
    assert {node.section for node in tuned if values(node, "bilstm")[0]} == {"finetune@ltr-bilstm"}
    assert {node.values["task"] for node in tuned} == {"qnli", "mrpc", "sst2"}
    assert not any(node.config.warnings() for node in data.values())  # type: ignore[attr-defined]


def test_table_5_of_the_paper_s_size_has_both_phases_in_each_row(load: Load) -> None:
    nodes = load(
        "bert-table5", "size=paper", "corpus.sources=[{kind: text, path: T}]", *EVERYTHING
    ).nodes
    for row in ("bert", "no-nsp", "ltr"):
        phase = nodes[f"pretrain@512-{row}"]
        assert inputs(phase) == {"continue": f"pretrain@{row}", "dataset": f"dataset@512-{row}"}
        assert inputs(nodes[f"finetune@mnli-1-{row}"])["checkpoint"] == phase.name
        assert values(nodes[f"pretrain@{row}"], "steps", "schedule_steps") == [900_000, 1_000_000]
    assert nodes["pretrain@512-ltr"].config.model.num_hidden_layers == 12  # type: ignore[attr-defined]


@pytest.mark.parametrize("size", ["tiny", "paper"])
def test_table_6_differs_in_the_model_s_size_alone(load: Load, size: str) -> None:
    """Devlin et al. 2019, table 6; widths of the tiny rows are a sixth of the paper's."""
    nodes = load("bert-table6", f"size={size}", "corpus.sources=[{kind: text, path: T}]").nodes
    trained = {
        str(node.values["row"]): node for node in nodes.values() if node.section == "pretrain"
    }
    assert list(trained) == [
        "3-768-12", "6-768-3", "6-768-12", "12-768-12", "12-1024-16", "24-1024-16",
    ]  # fmt: skip
    for row, node in trained.items():
        model = values(node, "model")[0]
        layers, width, heads = map(int, row.split("-"))
        if size == "tiny":
            width, heads = {768: 128, 1024: 192}[width], max(1, round(heads / 6))
        assert (model.num_hidden_layers, model.hidden_size) == (layers, width), row
        assert (model.num_attention_heads, model.intermediate_size) == (heads, 4 * width), row
    rest = [node.config.model_copy(update={"model": None}) for node in trained.values()]
    assert all(config == rest[0] for config in rest)


@pytest.mark.parametrize("size", ["tiny", "paper"])
def test_table_8_differs_in_what_masks_become(load: Load, size: str) -> None:
    """Devlin et al. 2019, table 8; rows are named by the shares of [MASK], the same piece, and a
    random one.
    """
    nodes = load("bert-table8", f"size={size}", "corpus.sources=[{kind: text, path: T}]").nodes
    data = {row: node for row, node in rows(nodes, "dataset").items() if row[:3] != "512"}
    names = ["80-10-10", "100-0-0", "80-0-20", "80-20-0", "0-20-80", "0-0-100"]
    assert list(data) == (names if size == "paper" else [names[0], names[1], names[5]])
    for row, node in data.items():
        masked, random, *rest = values(
            node, "mask_share", "random_share", "pairing", "masking", "mask_rate"
        )
        assert row == f"{masked:.0%}-{abs(round(1 - masked - random, 9)):.0%}-{random:.0%}".replace(
            "%", ""
        )
        assert rest == ["nsp", "token", 0.15]
        assert inputs(nodes[f"pretrain@{row}"]) == {"dataset": f"dataset@{row}"}
    trained = (nodes[f"pretrain@{row}"].config.model_dump_json() for row in data)
    assert len(set(trained)) == 1


def test_bert_is_the_same_in_both_tables(load: Load) -> None:
    """Table 8's tiny encoders have four layers, as its features are of the last four."""
    first, second = load("bert-table5").nodes, load("bert-table8").nodes
    assert first["dataset@bert"].config == second["dataset@80-10-10"].config
    small = second["pretrain@80-10-10"].config
    assert values(second["pretrain@80-10-10"], "model")[0].num_hidden_layers == 4
    assert small.model_copy(update={"model": None}) == first["pretrain@bert"].config.model_copy(
        update={"model": None}
    )


PAPER = ("size=paper", "corpus.sources=[{kind: text, path: T}]")
# of each table: the stage whose rows differ, and the fields that may
DIFFERING = {
    "albert-table2": ("pretrain", {"model"}), "albert-table3": ("pretrain", {"model"}),
    "albert-table4": ("pretrain", {"model"}), "albert-table6": ("pretrain", {"model", "steps"}),
    "albert-table7": ("corpus", set()), "albert-table8": ("pretrain", {"model"}),
    "roberta-table3": ("pretrain", {"global_batch", "steps", "learning_rate"}),
    "roberta-table4": ("pretrain", {"steps"}), "mask-rate": ("dataset", {"mask_rate", "max_predictions"}),
    "t5-objectives": ("pretrain", {"objectives"}),
    "electra-table1": ("pretrain", {"model", "steps", "objectives"}),
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERING)
def test_rows_of_a_table_differ_in_what_it_is_about(load: Load, name: str) -> None:
    stage, fields = DIFFERING[name]
    nodes = rows(load(name, *PAPER).nodes, stage)
    configs = [node.config.model_dump(exclude=fields) for node in nodes.values()]
    assert len(configs) > 1
    assert all(config == configs[0] for config in configs)
    whole = [node.config.model_dump_json() for node in nodes.values()]
    assert len(set(whole)) > 1 or not fields


def test_albert_shares_what_its_tables_say(load: Load) -> None:
    """Lan et al. 2020, tables 3 and 4."""
    sizes = rows(load("albert-table3", *PAPER).nodes, "pretrain")
    assert {row: values(node, "model")[0].embedding_size for row, node in sizes.items()} == {
        f"{sharing}-{size}": size for sharing in ("own", "shared") for size in (64, 128, 256, 768)
    }
    shared = rows(load("albert-table4", *PAPER).nodes, "pretrain")
    names = {"all": "all", "attention": "attention", "ffn": "feed-forward", "none": "none"}
    for row, node in shared.items():
        name, _, size = row.rpartition("-")
        model = values(node, "model")[0]
        assert (model.shared, model.embedding_size) == (names[name], int(size))


def test_albert_s_pair_losses(load: Load) -> None:
    """Lan et al. 2020, table 5."""
    nodes = load("albert-table5", *PAPER).nodes
    assert {row: values(node, "pairing")[0] for row, node in rows(nodes, "dataset").items()} == {
        "none": "segment-pair", "nsp": "nsp", "sop": "sop",
    }  # fmt: skip


def test_the_ways_to_a_domain_differ_in_text_vocabulary_and_start(load: Load) -> None:
    nodes = load("domain-ways", "finetune.when=always", "finetune.data=null").nodes
    data = {name: inputs(node) for name, node in nodes.items() if node.stage == "dataset"}
    assert data == {
        "dataset": {"corpus": "corpus", "vocab": "vocab"},
        "dataset@general": {"corpus": "corpus@general", "vocab": "vocab@general"},
        "dataset@continued": {"corpus": "corpus", "vocab": "vocab@general"},
    }
    trained = {name: inputs(node) for name, node in nodes.items() if node.stage == "pretrain"}
    assert trained == {
        "pretrain": {"dataset": "dataset"},
        "pretrain@general": {"dataset": "dataset@general"},
        "pretrain@continued": {"dataset": "dataset@continued", "checkpoint": "pretrain@general"},
    }
    assert {inputs(node)["checkpoint"] for node in nodes.values() if node.stage == "finetune"} == {
        *trained
    }
