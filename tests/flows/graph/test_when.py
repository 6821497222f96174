"""Sections of a run whose nodes are made only where their files are there, and fields that an
input's node lends.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cloze.core.errors import UsageError
from cloze.flows.graph.config import RunConfig

HEADER = "sentence\tlabel\n"


def archive(directory: Path, *folders: str, splits: tuple[str, ...] = ("train", "dev")) -> str:
    for folder in folders:
        (directory / folder).mkdir(parents=True, exist_ok=True)
        for split in splits:
            (directory / folder / f"{split}.tsv").write_text(HEADER + "good\t1\n")
    return str(directory)


def config(data: str, **sections: Any) -> RunConfig:
    tuned = {
        "checkpoint": "a/b",
        "data": data,
        "when": "available",
        "matrix": {
            "row": {
                "sst2": {"task": "sst2"},
                "other": {
                    "task": "sst2",
                    "data": f"{data}/other",
                    "options": {"folder": "", "files": {"train": "other.tsv"}},
                },
            },
            "seed": [1, 2],
        },
    }
    return RunConfig({"finetune": tuned, **sections}, "x")


def test_a_node_whose_files_are_not_there_is_left_out_and_said_so(tmp_path: Path) -> None:
    found = config(archive(tmp_path, "SST-2"))
    assert list(found.nodes) == ["finetune@sst2-1", "finetune@sst2-2"]
    assert found.left_out == {
        f"finetune@other-{seed}": f"{tmp_path}/other does not exist" for seed in (1, 2)
    }


def test_without_the_word_every_node_is_made(tmp_path: Path) -> None:
    values = config(archive(tmp_path, "SST-2")).values
    found = RunConfig({"finetune": {**values["finetune"], "when": "always"}}, "x")
    assert len(found.nodes) == 4
    assert not found.left_out


def test_what_needs_a_node_that_is_left_out_is_left_out_too(tmp_path: Path) -> None:
    sections = {
        "finetune@next": {
            "checkpoint": "finetune@other-{seed}",
            "when": "always",
            "matrix": {"seed": [1]},
        },
        "evaluate": {"checkpoint": "finetune"},
        "evaluate@other": {"matrix": {"row": {"other": {}}, "split": ["dev"]}},
        "evaluate@next": {"checkpoint": "finetune@next"},
    }
    found = config(archive(tmp_path, "SST-2"), **sections)
    assert list(found.nodes) == [
        "finetune@sst2-1",
        "finetune@sst2-2",
        "evaluate@sst2-1",
        "evaluate@sst2-2",
    ]
    assert found.left_out["finetune@next-1"] == "needs finetune@other-1, which is left out"
    assert found.left_out["evaluate@other-other-dev"] == "needs finetune@other-1, which is left out"
    assert found.left_out["evaluate@next"] == "needs finetune@next, which is left out"


def test_an_evaluation_is_left_out_where_its_split_is_not_there(tmp_path: Path) -> None:
    data = archive(tmp_path, "SST-2", "other")
    (tmp_path / "other" / "other.tsv").write_text(HEADER)
    (tmp_path / "SST-2" / "test.tsv").write_text("sentence\nfine\n")
    found = config(data, evaluate={"when": "available", "split": "test"})
    assert [name for name in found.nodes if name.startswith("evaluate")] == [
        "evaluate@sst2-1",
        "evaluate@sst2-2",
    ]
    assert found.left_out == {
        f"evaluate@other-{seed}": f"{tmp_path}/other has no test split" for seed in (1, 2)
    }


def test_an_evaluation_takes_over_its_model_s_data_and_task_unless_it_says_others(
    tmp_path: Path,
) -> None:
    data = archive(tmp_path, "SST-2")
    found = config(data, evaluate={}, **{"evaluate@own": {"data": "c/d"}})
    lent, own = found.nodes["evaluate@sst2-1"].config, found.nodes["evaluate@own-sst2-1"].config
    assert (lent.data, lent.task) == (data, "sst2")  # type: ignore[attr-defined]
    assert (own.data, own.task) == ("c/d", "sst2")  # type: ignore[attr-defined]


def test_a_section_can_wait_until_it_is_asked_for(tmp_path: Path) -> None:
    data = archive(tmp_path, "SST-2")
    later = {"finetune@later": {"when": "never", "epochs": 1, "matrix": {"row": {"sst2": {}}}}}
    assert "finetune@later-sst2" not in config(data, **later).nodes
    later["finetune@later"]["when"] = "available"
    assert config(data, **later).nodes["finetune@later-sst2"].config.epochs == 1  # type: ignore[attr-defined]


def test_faults_are_told(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"finetune.when \('now'\) must be always, available or never"
    ):
        RunConfig({"finetune": {"checkpoint": "a/b", "when": "now"}}, "x")
    with pytest.raises(
        UsageError, match=r"nothing of run 'x' can be made: finetune@sst2-1 and 3 more are left out"
    ):
        config(str(tmp_path / "nowhere"), report={})
