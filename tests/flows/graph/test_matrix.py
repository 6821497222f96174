"""Matrices: combinations of axes, what may be an axis, and axes in other fields."""

from __future__ import annotations

from typing import Any

import pytest

from cloze.core.errors import UsageError
from cloze.flows.graph.overrides import combinations, plain_axes, slug, substitute_axes


def places(matrix: Any) -> list[dict[str, Any]]:
    return [place for place, _ in combinations(matrix, "finetune")]


def test_no_matrix_is_one_combination_without_axes() -> None:
    assert list(combinations(None, "finetune")) == [({}, [])]
    assert list(combinations({}, "finetune")) == [({}, [])]


def test_every_value_meets_every_other_in_order() -> None:
    assert places({"task": ["a", "b"], "seed": [1, 2]}) == [
        {"task": "a", "seed": 1},
        {"task": "a", "seed": 2},
        {"task": "b", "seed": 1},
        {"task": "b", "seed": 2},
    ]


def test_an_axis_of_names_brings_fields_and_says_the_name() -> None:
    found = list(
        combinations({"row": {"low": {"rate": 1e-4}, "none": None}, "seed": [1]}, "pretrain")
    )
    assert found == [
        ({"row": "low", "seed": 1}, [{"rate": 1e-4}]),
        ({"row": "none", "seed": 1}, []),
    ]
    assert plain_axes({"row": {"low": {}}, "seed": [1]}) == {"seed"}


@pytest.mark.parametrize(
    ("matrix", "sentence"),
    [
        ([1, 2], r"finetune.matrix \(\[1, 2\]\) must map axes"),
        ({"seed": 3}, r"finetune.matrix.seed \(3\) must be a list"),
        ({"seed": "abc"}, "must be a list"),
        ({"seed": []}, "at least one value"),
        ({"seed": {}}, "at least one value"),
        ({"seed": [1, 1]}, "each once"),
        ({"seed": [1, "1"]}, "each once"),
        ({"seed": [1, 1.0]}, "each once"),
        ({"seed": ["007", 7]}, "each once"),
        ({"rate": ["1e-4", 0.0001]}, "each once"),  # YAML 1.1 reads 1e-4 as a text
        ({"data": ["a/b"]}, "cannot be part of a name; give names with fields below each"),
        ({"data": [".."]}, "cannot be part of a name"),
        ({"data": [""]}, "cannot be part of a name"),
        ({"betas": [[0.9, 0.98]]}, "cannot be part of a name"),
    ],
)
def test_what_is_no_matrix_is_told(matrix: Any, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        places(matrix)


def test_words_are_as_one_types_them() -> None:
    assert [slug(value, "x") for value in (True, 1, 0.0001, "SST-2", "1e-4")] == [
        "true",
        "1",
        "0.0001",
        "SST-2",
        "1e-4",
    ]


def test_a_name_that_is_false_is_left_out() -> None:
    matrix = {"rate": {"low": {"learning_rate": 1e-4}, "high": False, "usual": None}}
    assert [axes for axes, _ in combinations(matrix, "pretrain")] == [
        {"rate": "low"},
        {"rate": "usual"},
    ]


def test_an_axis_is_replaced_at_any_depth_and_keeps_its_type_alone() -> None:
    value = {
        "data": "glue/{task}",
        "seed": "{seed}",
        "deep": [{"path": "{task}-{seed}"}],
        "other": "{none}",
        "number": 3,
    }
    assert substitute_axes(value, {"task": "sst2", "seed": 7}) == {
        "data": "glue/sst2",
        "seed": 7,
        "deep": [{"path": "sst2-7"}],
        "other": "{none}",
        "number": 3,
    }
