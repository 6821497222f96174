"""Presets of BERT's ablations: the rows of a table differ in what the table says, and in nothing
else.
"""

from __future__ import annotations

from tests.flows.presets.reading import Load, inputs, rows, values


def test_table_5_differs_in_its_examples_and_its_last_rows_in_the_model(load: Load) -> None:
    """Devlin et al. 2019, table 5."""
    nodes = load("ablation-table5").nodes
    data, trained = rows(nodes, "dataset"), rows(nodes, "pretrain")
    assert {row: values(node, "pairing", "masking", "mask_copies") for row, node in data.items()} == {
        "bert": ["nsp", "token", 10], "no-nsp": ["segment-pair", "token", 10],
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
    tuned = rows(nodes, "finetune")
    assert {row: inputs(node)["checkpoint"] for row, node in tuned.items()} == {
        "bert": "pretrain@bert", "no-nsp": "pretrain@no-nsp", "ltr": "pretrain@ltr",
        "ltr-bilstm": "pretrain@ltr",
    }  # fmt: skip
    assert [row for row, node in tuned.items() if values(node, "bilstm")[0]] == ["ltr-bilstm"]
    assert {row: inputs(node)["checkpoint"] for row, node in rows(nodes, "evaluate").items()} == {
        row: f"finetune@{row}" for row in tuned
    }
    assert not any(node.config.warnings() for node in data.values())  # type: ignore[attr-defined]


def test_table_6_differs_in_the_model_s_size_alone(load: Load) -> None:
    """Devlin et al. 2019, table 6; widths are a sixth of the paper's."""
    trained = rows(load("ablation-table6").nodes, "pretrain")
    sizes = {
        row: values(node, "model")[0].model_dump(
            include={"num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size"}
        )
        for row, node in trained.items()
    }
    assert list(sizes) == [
        "3-768-12",
        "6-768-3",
        "6-768-12",
        "12-768-12",
        "12-1024-16",
        "24-1024-16",
    ]
    for row, size in sizes.items():
        layers, width, heads = map(int, row.split("-"))
        assert size["num_hidden_layers"] == layers
        assert size["hidden_size"] == {768: 128, 1024: 192}[width]
        assert size["num_attention_heads"] == max(1, round(heads / 6))
        assert size["intermediate_size"] == 4 * size["hidden_size"]
    rest = [node.config.model_copy(update={"model": None}) for node in trained.values()]
    assert all(config == rest[0] for config in rest)


def test_table_8_differs_in_what_masks_become(load: Load) -> None:
    """Devlin et al. 2019, table 8; rows are named by the shares of [MASK], the same piece, and a
    random one.
    """
    nodes = load("ablation-table8").nodes
    data = rows(nodes, "dataset")
    assert list(data) == ["80-10-10", "100-0-0", "80-0-20", "80-20-0", "0-20-80", "0-0-100"]
    for row, node in data.items():
        masked, random, *rest = values(
            node, "mask_share", "random_share", "pairing", "masking", "mask_rate"
        )
        assert row == f"{masked:.0%}-{abs(round(1 - masked - random, 9)):.0%}-{random:.0%}".replace(
            "%", ""
        )
        assert rest == ["nsp", "token", 0.15]
        assert inputs(nodes[f"pretrain@{row}"]) == {"dataset": f"dataset@{row}"}
    assert len({node.config.model_dump_json() for node in rows(nodes, "pretrain").values()}) == 1


def test_bert_is_the_same_in_both_tables(load: Load) -> None:
    first, second = load("ablation-table5").nodes, load("ablation-table8").nodes
    for stage in ("dataset", "pretrain", "finetune", "evaluate"):
        assert first[f"{stage}@bert"].config == second[f"{stage}@80-10-10"].config
