"""A stage's inputs and figures: which are named, and how several of one role are told apart."""

from __future__ import annotations

from pathlib import PurePath

import pytest

from cloze.core.config import StageConfig
from cloze.core.errors import NotFiniteError, UsageError
from cloze.core.stages.stage import (
    InputSpec,
    Stage,
    StageResult,
    assign_input_keys,
    inputs_of_role,
    name_of,
    role_of,
    split_name,
)


def last(path: str) -> str:
    return PurePath(path).name


@pytest.mark.parametrize(
    ("texts", "keys"),
    [
        (["/a/wiki"], {"dataset": "/a/wiki"}),
        (["x=/a/wiki"], {"dataset": "/a/wiki"}),  # a single one needs no name
        (
            ["/a/wiki", "/b/books"],
            {"dataset/wiki": "/a/wiki", "dataset/books": "/b/books"},
        ),
        (["x=/a/wiki", "/b/wiki"], {"dataset/x": "/a/wiki", "dataset/wiki": "/b/wiki"}),
        (["s3://b/x=y", "/c/d"], {"dataset/x=y": "s3://b/x=y", "dataset/d": "/c/d"}),
        (["a.b-c_1=/p=q", "/c/d"], {"dataset/a.b-c_1": "/p=q", "dataset/d": "/c/d"}),
    ],
)
def test_inputs_have_the_names_that_are_given_or_those_of_their_paths(
    texts: list[str], keys: dict[str, str]
) -> None:
    assert assign_input_keys("dataset", texts, last) == keys


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        ([], "dataset is empty; give at least one node or path"),
        (["/a/wiki", "/a/wiki"], "dataset 'wiki' is given twice; give it once"),
        (["x=/a", "x=/a", "/c"], "dataset 'x' is given twice; give it once"),
        (
            ["/a/wiki", "/b/wiki"],
            "dataset 'wiki' is the name of two inputs, /a/wiki and /b/wiki; give them different "
            "names as NAME=PATH",
        ),
    ],
)
def test_no_input_hides_another(texts: list[str], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        assign_input_keys("dataset", texts, last)
    assert str(caught.value) == says


def test_inputs_of_a_role_come_by_name_and_in_order() -> None:
    inputs = {"dataset/wiki": "w", "vocab": "v", "dataset/books": "b", "datasets": "other"}
    assert list(inputs_of_role("dataset", inputs).items()) == [("books", "b"), ("wiki", "w")]
    assert inputs_of_role("vocab", inputs) == {"": "v"}
    assert inputs_of_role("corpus", inputs) == {}
    assert (role_of("dataset/a/b"), name_of("dataset/a/b")) == ("dataset", "a/b")
    assert (role_of("dataset"), name_of("dataset")) == ("dataset", "")


@pytest.mark.parametrize(
    ("text", "name", "path"),
    [
        ("a=b", "a", "b"),
        ("a=b=c", "a", "b=c"),
        ("-a=b", "", "-a=b"),
        ("/x/a=b", "", "/x/a=b"),
        ("a=", "", "a="),
        ("a=b\nc", "a", "b\nc"),
    ],
)
def test_a_name_is_a_word_before_the_first_equals_sign(text: str, name: str, path: str) -> None:
    assert split_name(text) == (name, path)


def test_a_role_takes_one_input_that_may_be_left_out_unless_its_stage_says_otherwise() -> None:
    spec = InputSpec()
    assert (spec.kinds, spec.explicit_kinds, spec.inherited_fields) == ((), (), ())
    assert (spec.required, spec.explicit_only, spec.multiple) == (False, False, False)


def test_figures_are_the_numbers_of_the_summary_by_name() -> None:
    stage = Stage(
        name="x",
        version=1,
        config=StageConfig,
        run=lambda config, build: StageResult(),
        comparison_metrics=("loss", "scores", "flag", "absent", "words"),
    )
    summary = {
        "loss": 2,
        "scores": {"f1": 0.5, "best": True, "name": "x"},
        "flag": True,
        "other": 9,
    }
    assert stage.compared_metrics({**summary, "words": "many"}) == {"loss": 2.0, "f1": 0.5}
    stage.check_figures({"loss": float("nan"), "scores": {"f1": 1.0}})  # of a step passed over
    with pytest.raises(NotFiniteError, match="f1"):
        stage.check_figures({"loss": 1.0, "scores": {"f1": float("inf")}})
