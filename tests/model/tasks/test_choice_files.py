"""Files of one's own for choosing among endings: their columns, labels and faults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cloze.core.errors import DataError, UsageError
from cloze.model.tasks.formats.choices import Choices, read_choices
from cloze.model.tasks.options import ChoiceOptions
from cloze.model.tasks.table import load_task


def read(path: Path, split: str = "dev", **options: Any) -> Choices:
    found: Choices = load_task("choice", options).read(str(path), split, None)
    return found


def test_files_of_ones_own_hold_endings_as_a_list_or_a_column_each(tmp_path: Path) -> None:
    rows = [
        {"context": "It rains.", "endings": ["We go in.", "We go out.", "We swim."], "label": "B"},
        {"context": "It snows.", "endings": ["We ski.", "We swim."], "label": "A"},
    ]
    (tmp_path / "dev.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    found = read(tmp_path, labels=["A", "B", "C"])
    assert (found.endings, found.labels) == ([row["endings"] for row in rows], [1, 0])
    (tmp_path / "own.csv").write_text("q,one,two,right\nIt rains.,a,b,2\n")
    own = {
        "columns": {"context": "q", "label": "right"},
        "endings": ["one", "two"],
        "labels": ["1", "2"],
    }
    assert read(tmp_path / "own.csv", **own).labels == [1]
    (tmp_path / "test.jsonl").write_text(
        "\n".join(json.dumps({**row, "label": None}) for row in rows)
    )
    assert read(tmp_path, "test").labels is None
    with pytest.raises(UsageError, match=r"limit_per_class \(2\) means nothing"):
        load_task("choice").read(str(tmp_path), "dev", 2)


@pytest.mark.parametrize("names", [None, ["A", "B", "C"]])
def test_a_label_of_another_questions_ending_is_named(
    tmp_path: Path, names: list[str] | None
) -> None:
    """A name that the task has, but not among this question's endings."""
    labels = names or ["0", "1", "2"]
    rows = [
        {
            "context": "It rains.",
            "endings": ["We go in.", "We swim.", "We ski."],
            "label": labels[2],
        },
        {"context": "It snows.", "endings": ["We ski.", "We swim."], "label": labels[2]},
    ]
    path = tmp_path / "dev.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    with pytest.raises(DataError) as fault:
        read(tmp_path, **({"labels": names} if names else {}))
    assert f"line 2: label {labels[2]!r} is not one of {labels[0]}, {labels[1]};" in str(
        fault.value
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"context": "x", "label": 0}, "no column 'endings' (context, label)"),
        (
            {"context": "x", "endings": "a or b", "label": 0},
            "line 1: endings is not a list of endings",
        ),
        ({"context": "x", "endings": ["a", None], "label": 0}, "line 1: ending 2 is missing"),
        (
            {"context": "x", "endings": ["a"], "label": 0},
            "line 1: 1 endings; at least two are needed",
        ),
        (
            {"context": "x", "endings": ["a", "b"], "label": 2},
            "line 1: label '2' is not one of 0, 1",
        ),
        (
            {"context": "x", "endings": ["a", "b"], "label": None},
            "line 1: label '' is not one of 0, 1",
        ),
        ({"context": "x", "endings": ["a", "b"]}, "no column 'label'"),
    ],
)
def test_a_faulty_line_is_named(tmp_path: Path, line: dict[str, Any], said: str) -> None:
    (tmp_path / "dev.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(DataError) as fault:
        read(tmp_path)
    assert said in str(fault.value)
    assert "dev.jsonl" in str(fault.value)


def test_the_real_codah_is_cut_into_five(shared_data: Path) -> None:
    path = shared_data / "tasks" / "codah"
    first, last, train = (
        load_task("codah", {"fold": fold}).read(str(path / "full_data.tsv"), split, None)
        for fold, split in ((0, "dev"), (4, "dev"), (4, "train"))
    )
    assert len(last) + len(train) == 2776
    assert 540 < len(last) < 570
    assert not set(last.contexts) & set(train.contexts)
    assert set(first.contexts) <= set(train.contexts)
    place = first.contexts.index("I am always very hungry before I go to bed. I am")
    assert first.endings[place][first.labels[place]] == "tempted to snack when I feel this way."
    with pytest.raises(DataError, match="no split 'test'"):
        load_task("codah").read(str(path), "test", None)


def test_the_real_sample_of_swag_is_read(shared_data: Path) -> None:
    path = shared_data / "reference" / "task-samples" / "swag" / "sample.json"
    found = load_task("swag").read(str(path), "dev", None)
    assert len(found) == 10
    assert (
        found.endings[0][0]
        == "A drum line passes by walking down the street playing their instruments."
    )
    assert found.labels == [0, 3, 1, 3, 0, 3, 0, 1, 3, 3]


def test_the_examples_of_a_fold_keep_their_ids(tmp_path: Path) -> None:
    rows = [
        {"id": f"q{n}", "context": f"text {n}", "endings": ["a", "b"], "label": n % 2}
        for n in range(12)
    ]
    (tmp_path / "all.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ChoiceOptions(
        files={"train": "all.jsonl", "dev": "all.jsonl"},
        columns={"id": "id", "context": "context", "label": "label"},
        folds=3,
    )
    read = {
        split: read_choices(str(tmp_path), split, options, "all.jsonl")
        for split in ("dev", "train")
    }
    for examples_of_split in read.values():
        expected = [f"q{text.split()[1]}" for text in examples_of_split.contexts]
        assert examples_of_split.ids == expected
    assert len(read["dev"].contexts) + len(read["train"].contexts) == 12
