"""A paper's table beside a run's scores, over hand-made manifests."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from cloze.core.artifacts.artifact import Manifest
from cloze.flows.graph import config as configs
from cloze.flows.graph.overrides import parse
from cloze.flows.report.report_nodes import NodePlacement, ReportNode
from cloze.labs.papers import section
from cloze.labs.papers.paper_table import (
    RowPoints,
    figure_points,
    paper_tables,
    pretrainings,
    table_cells,
)
from cloze.labs.papers.table_config import PaperTable, TableColumn, TableFigure, TableRow
from tests.flows.presets.reading import SOURCES

TABLE = PaperTable.model_validate(
    {
        "source": "Somebody 2020, table 1",
        "reference": "base",
        "seen": {"parameters": 1e8},
        "columns": {
            "sst2": {"label": "SST-2", "metric": "accuracy"},
            "mrpc": {},
            "test": {"nodes": {"task": "sst2", "split": "test"}},
            "perplexity": {"metric": "heldout_perplexity", "nodes": {"stage": "pretrain"}},
            "average": {"mean_of": ["sst2", "mrpc"]},
        },
        "rows": {
            "base": {"label": "Base", "published": {"sst2": 92.0, "average": 90.0}},
            "other": {"published": {"sst2": 90.5}},
            "elsewhere": {"published": {"mrpc": 70.0}},
        },
    }
)


def node(
    stage: str, row: str, summary: dict[str, Any], inputs: dict[str, str] | None = None, **axes: Any
) -> ReportNode:
    values = {"row": row, **axes}
    name = "-".join([f"{stage}@{row}", *map(str, axes.values())])
    return ReportNode(
        name=name,
        path=name,
        manifest=Manifest(
            stage=stage,
            version=1,
            fingerprint=name,
            parents={},
            config={},
            files=(),
            tokens=int(summary.get("tokens", 0)),
            summary=summary,
        ),
        placement=NodePlacement(section=stage, values=values, inputs=inputs or {}),
    )


def tables_of(table: PaperTable, nodes: list[ReportNode]) -> list[Any]:
    return paper_tables(table, table_cells(table, nodes), nodes)


def points_of(table: PaperTable, nodes: list[ReportNode]) -> list[RowPoints]:
    return figure_points(table, table_cells(table, nodes), nodes)


def run_nodes() -> list[ReportNode]:
    pretrained = [
        node("pretrain", row, {
            "parameters": 4e6, "tokens": 1e7, "heldout_perplexity": perplexity,
            "training_flops": 2.4e14,
        })
        for row, perplexity in (("base", 12.5), ("other", 14.0))
    ]  # fmt: skip
    scores = {("base", 1): 0.80, ("base", 2): 0.84, ("other", 1): 0.79, ("other", 2): 0.81}
    tuned = [
        node(
            "finetune", row,
            {"task": task, "metric": "accuracy",
             "metrics": {"accuracy": score + (0.1 if task == "mrpc" else 0.0), "majority": 0.5}},
            {"checkpoint": f"pretrain@{row}"}, task=task, seed=seed,
        )
        for (row, seed), score in scores.items()
        for task in ("sst2", "mrpc")
    ]  # fmt: skip
    evaluated = node(
        "evaluate", "base",
        {"task": "sst2", "metric": "accuracy", "metrics": {"accuracy": 0.7}, "split": "test",
         "inference": {"latency_ms": 3.5, "examples_per_second": 410.0, "memory_bytes": 2e9}},
        {"checkpoint": "finetune@base-sst2-1"}, task="sst2", seed=1,
    )  # fmt: skip
    return [*pretrained, *tuned, evaluated]


def test_cells_have_mean_deviation_and_number_and_the_published_figure() -> None:
    table, differences, costs = tables_of(TABLE, run_nodes())
    assert list(table.columns) == ["", "SST-2", "mrpc", "test", "perplexity", "average"]
    assert [list(row) for row in table.rows] == [
        ["Base", "82.0 ± 2.8 [92.0]", "92.0 ± 2.8", "70.0", "12.5",
         "87.0 ± 2.8 [90.0]"],
        ["other", "80.0 ± 1.4 [90.5]", "90.0 ± 1.4", "–", "14.0", "85.0 ± 1.4"],
        ["elsewhere", "–", "[70.0]", "–", "–", "–"],
    ]  # fmt: skip
    assert differences.title == "Difference from Base"
    assert [list(row) for row in differences.rows] == [
        ["other", "-2.0 ± 1.4 [-1.5]", "-2.0 ± 1.4", "–", "+1.5", "-2.0 ± 1.4"]
    ]
    assert list(costs.columns) == [
        "", "parameters", "training FLOPs", "ms an example", "examples per second", "memory in use"
    ]  # fmt: skip
    assert [list(row) for row in costs.rows] == [
        ["Base", "4M", "240T", "3.5", "410", "2G"], ["other", "4M", "240T", "–", "–", "–"]
    ]  # fmt: skip
    assert "4M parameters (100M) in Base" in table.notes[1]


def test_runs_with_seeds_are_compared_with_a_single_run_without() -> None:
    """A checkpoint before and after trainings of several seeds."""
    table = PaperTable.model_validate(
        {
            "source": "x",
            "reference": "before",
            "columns": {"bits": {"metric": "bits_per_byte", "nodes": {"stage": "likelihood"}}},
            "rows": {"before": {}, "after": {}},
        }
    )
    nodes = [
        node(
            "likelihood",
            row,
            {"metrics": {"bits_per_byte": value}, "metric": "bits_per_byte"},
            **axes,
        )
        for row, value, axes in (
            ("before", 2.0, {}),
            ("after", 1.5, {"seed": 1}),
            ("after", 1.7, {"seed": 2}),
        )
    ]
    _, differences, *_ = tables_of(table, nodes)
    assert [list(row) for row in differences.rows] == [["after", "-0.4 ± 0.1"]]


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_report_of_an_adaptation_names_no_paper(seeds: int) -> None:
    """Its table has no published figure."""
    preset = yaml.safe_load(configs.preset_paths()["adapt"].read_text())
    table = PaperTable.model_validate(preset["report"]["table"])
    summary = {"metrics": {"bits_per_byte": 2.0}, "metric": "bits_per_byte"}
    nodes = [node("likelihood", "before", summary, text="domain")]
    for seed in range(1, seeds + 1):
        nodes.append(node("likelihood", "after", summary, text="domain", seed=seed))
    tables = tables_of(table, nodes)
    assert list(tables[0].rows[0])[:2] == ["Before", "2.000"]
    start = (
        "Scores of one seed."
        if seeds == 1
        else f"Mean ± the sample's standard deviation over {seeds} seeds."
    )
    assert tables[0].notes[0] == start
    assert "paper" not in " ".join(" ".join([one.title, *one.notes]) for one in tables)


def test_rows_of_another_size_are_shares_of_the_reference() -> None:
    nodes = run_nodes()
    nodes[1].manifest.summary["parameters"] = 1e6
    _, _, shares, _ = tables_of(TABLE, nodes)
    assert shares.title == "Share of Base"
    assert list(shares.columns)[:3] == ["", "parameters", "SST-2"]
    assert [list(row) for row in shares.rows] == [
        ["other", "25.0%", "97.6%", "97.8%", "–", "112.0%", "97.7%"]
    ]


def test_random_weights_cost_no_pretraining() -> None:
    nodes = run_nodes()
    tuned = [node for node in nodes if node.stage == "finetune"]
    assert pretrainings(tuned, nodes)
    for member in tuned:
        member.manifest.config["from_scratch"] = True
    assert not pretrainings(tuned, nodes)


def test_a_student_has_its_own_size_and_not_its_teacher_s() -> None:
    nodes = run_nodes()
    nodes[1].manifest.summary["parameters"] = 1e6
    student, teacher = nodes[1], nodes[0]
    student.placement.inputs["teacher"] = teacher.name
    for order in ([student, teacher, *nodes[2:]], nodes):
        assert tables_of(TABLE, order)[2].rows[0][1] == "25.0%"


def _means(table: PaperTable) -> set[str]:
    return {name for name, column in table.columns.items() if column.mean_of}


def test_a_column_reads_numbers_of_a_pretraining_and_has_its_own_digits() -> None:
    table = TABLE.model_copy(
        update={
            "columns": {
                "nsp": TableColumn(
                    metric="heldout_nsp_accuracy", nodes={"stage": "pretrain"}, digits=2
                )
            },
            "rows": {"base": TableRow(published={"nsp": 0.97})},
            "reference": "",
        }
    )
    nodes = run_nodes()
    nodes[0].manifest.summary["heldout_nsp_accuracy"] = 0.85
    assert list(tables_of(table, nodes)[0].rows[0]) == ["base", "85.00 [0.97]"]


def test_a_figure_has_the_scores_by_seed_over_rows_or_a_number_of_the_pretrainings() -> None:
    nodes = run_nodes()
    over_rows = TABLE.model_copy(update={"figure": TableFigure(y="sst2")})
    points = points_of(over_rows, nodes)
    assert [(row.label, row.x, row.values) for row in points] == [
        ("Base", None, (80.0, 84.0)), ("other", None, (79.0, 81.0)),
    ]  # fmt: skip
    over_flops = TABLE.model_copy(update={"figure": TableFigure(x="training_flops", y="sst2")})
    nodes[0].manifest.summary["training_flops"] = None
    assert [(row.label, row.x) for row in points_of(over_flops, nodes)] == [("other", 2.4e14)]
    assert points_of(TABLE, nodes) == []
    for rows, x_label in ((points, "row"), (points_of(over_flops, nodes), "training FLOPs")):
        drawn = section.points(rows, x_label, "SST-2")
        assert drawn.startswith("<svg")
        assert "other" in drawn
    assert "training FLOPs" in drawn


@pytest.mark.parametrize(
    "wrong",
    [{"figure": {"y": "sst"}}, {"reference": "bas"}, {"columns": {"a": {"mean_of": ["b"]}}}],
)
def test_names_of_columns_and_rows_must_exist(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="is no (column|row)"):
        PaperTable.model_validate({**TABLE.model_dump(), **wrong})


@pytest.mark.parametrize(
    "wrong",
    [
        {"rows": {"base": {"published": {"sst": 92.0}}}},
        {"rows": {}, "columns": {"a": {"mean_of": ["b"]}, "b": {"mean_of": ["sst2"]}, "sst2": {}}},
        {"seen": {"steps": 1e6}},
        {"rows": {"base": {"seen": {"tokens": 0}}}},
    ],
)
def test_what_cannot_be_shown_is_refused_before_the_run(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        PaperTable.model_validate({**TABLE.model_dump(), "reference": "", **wrong})


def test_a_mean_may_precede_its_columns() -> None:
    columns = {"average": {"mean_of": ["sst2", "mrpc"]}, "sst2": {}, "mrpc": {}}
    table = PaperTable.model_validate(
        {**TABLE.model_dump(), "rows": {"base": {}}, "columns": columns}
    )
    shown = tables_of(table, run_nodes())[0]
    assert list(shown.columns) == ["", "average", "sst2", "mrpc"]
    assert list(shown.rows[0])[1] == "87.0 ± 2.8"


def test_a_row_of_several_pretraining_seeds_costs_one_pretraining() -> None:
    summary = {"parameters": 1e8, "tokens": 1e9, "training_flops": 1e14}
    nodes = [node("pretrain", "base", summary)]
    for seed in (1, 2, 3):
        later = node("pretrain", "base", summary, {"checkpoint": "pretrain@base"}, seed=seed)
        score = {"task": "sst2", "metric": "accuracy", "metrics": {"accuracy": 0.8}}
        nodes += [later, node("finetune", "base", score, {"checkpoint": later.name}, seed=seed)]
    assert [phase.name for phase in pretrainings(nodes, nodes)] == [
        "pretrain@base",
        "pretrain@base-1",
    ]
    columns = {"sst2": {}}
    table = PaperTable.model_validate(
        {"source": "x", "rows": {"base": {}}, "columns": columns, "seen": {"tokens": 2e9}}
    )
    shown, costs = tables_of(table, nodes)
    assert list(costs.rows[0]) == ["base", "100M", "200T"]
    assert not any("Not comparable" in note for note in shown.notes)


def test_a_cell_with_two_nodes_of_a_seed_has_a_note() -> None:
    nodes = [
        node(
            "finetune", "base", {"task": "sst2", "metrics": {"accuracy": score}}, lr=rate, seed=seed
        )
        for rate, score in ((1, 0.9), (2, 0.5))
        for seed in (1, 2)
    ]
    (note,) = [note for note in tables_of(TABLE, nodes)[0].notes if "seed counts" in note]
    assert "Row base, column sst2" in note
    assert "finetune@base-1-1, finetune@base-1-2, finetune@base-2-1" in note
    assert not any("seed counts" in note for note in tables_of(TABLE, run_nodes())[0].notes)


@pytest.mark.parametrize("nodes", [{"split": "test"}, {"stage": "evaluate"}])
def test_a_row_can_select_a_split_or_a_stage(nodes: dict[str, str]) -> None:
    table = PaperTable.model_validate(
        {"source": "x", "columns": {"sst2": {}}, "rows": {"base": {"nodes": nodes}}}
    )
    assert list(tables_of(table, run_nodes())[0].rows[0]) == ["base", "70.0"]


def test_only_shares_are_in_hundredths() -> None:
    table = PaperTable.model_validate(
        {
            "source": "x",
            "columns": {"words": {"metric": "words_seen", "nodes": {"stage": "pretrain"}}},
            "rows": {"base": {}},
        }
    )
    nodes = run_nodes()
    nodes[0].manifest.summary["words_seen"] = 250
    assert list(tables_of(table, nodes)[0].rows[0]) == ["base", "250.0"]


def test_a_run_of_the_paper_s_size_is_comparable() -> None:
    nodes = run_nodes()
    for trained in nodes[:2]:
        trained.manifest.summary["parameters"] = 1.05e8
    assert not any("Not comparable" in note for note in tables_of(TABLE, nodes)[0].notes)


@pytest.mark.parametrize(
    "name", [name for name, path in configs.preset_paths().items() if path.parent.name == "tables"]
)
@pytest.mark.parametrize("size", ["tiny", "paper"])
def test_rows_and_columns_of_every_preset_are_nodes_of_its_run(
    name: str, size: str, tmp_path: Any
) -> None:
    """Each row of a table is of the run or has published figures, each figure has a column."""
    settings = [f"size={size}", "finetune.when=always", "finetune.data=null"]
    if configs.read(name, {"size": size})["corpus"] is not False:  # fine-tunings need a checkpoint
        settings.append(SOURCES)
    graph = configs.load(name, parse(settings, "section.key=value", sections=True))
    report = graph.nodes["report"].config
    table = report.table  # type: ignore[attr-defined]
    run_rows = {
        str(node.values.get("row", node.section.partition("@")[2])) for node in graph.nodes.values()
    }
    tasks = {str(node.values.get("task", "")) for node in graph.nodes.values()}
    assert table.figure is None or size == "tiny" or table.figure.y in {*tasks, *_means(table)}
    for row, spec in table.rows.items():
        assert row in run_rows or spec.nodes or spec.published, row
        assert spec.published.keys() <= table.columns.keys(), row
    assert table.reference in {"", *table.rows}
    if size == "tiny":
        return
    for column, its in table.columns.items():
        published = any(column in spec.published for spec in table.rows.values())
        assert its.nodes or its.mean_of or column in tasks or not published, column
