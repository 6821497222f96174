"""Figures that are not finite lose wherever figures are compared, and fail an evaluation."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloze.core.artifacts import artifact
from cloze.core.errors import ClozeError, NotFiniteError
from cloze.core.figures import check_figures, goodness, is_finite
from cloze.core.stages.execute import execute
from cloze.core.stages.stage import BuildContext, Stage, StageResult
from cloze.flows.machine.retry_policy import is_retryable
from tests.flows.toy_run import LettersConfig

ODD = st.sampled_from([math.nan, math.inf, -math.inf, None, "0.5", True])


@given(st.lists(st.one_of(ODD, st.floats(-1e9, 1e9)), min_size=1), st.booleans(), st.randoms())
def test_the_best_figure_is_finite_if_one_is_and_no_order_changes_it(
    figures: list[Any], lower_is_better: bool, random: Any
) -> None:
    def best(values: list[Any]) -> float:
        return max(goodness(value, "loss" if lower_is_better else "f1") for value in values)

    finite = [value for value in figures if is_finite(value)]
    shuffled = random.sample(figures, len(figures))
    expected = (-min(finite) if lower_is_better else max(finite)) if finite else -math.inf
    assert best(figures) == best(shuffled) == expected


def stage(summary: dict[str, Any]) -> Stage:
    def run(config: LettersConfig, build: BuildContext) -> StageResult:
        return StageResult(summary=summary)

    keys = ("metrics", "heldout_loss", "loss")
    return Stage(name="x", version=1, config=LettersConfig, run=run, comparison_metrics=keys)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("nested", [False, True])
def test_a_stage_whose_figure_is_not_finite_fails_and_leaves_no_artifact(
    tmp_path: Path, value: float, nested: bool
) -> None:
    summary = {"metrics": {"f1": value}} if nested else {"heldout_loss": value}
    with pytest.raises(NotFiniteError, match=rf"^x: \w+ is {value}, so") as caught:
        execute(stage(summary), LettersConfig(), {}, str(tmp_path / "out"))
    assert caught.value.exit_code == ClozeError.exit_code == 1
    assert not is_retryable(caught.value)
    assert not artifact.is_artifact(str(tmp_path / "out"))


def test_what_is_missing_or_no_evaluation_passes(tmp_path: Path) -> None:
    summary = {"metrics": {"f1": 0.5, "by": {"a": 1}}, "heldout_loss": None, "loss": math.nan}
    execute(stage(summary), LettersConfig(), {}, str(tmp_path / "out"))
    check_figures("x", {"name": "nan", "rows": 3, "flag": True})


def test_an_artifact_of_an_earlier_version_fails_in_the_same_words(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    execute(stage({"heldout_loss": 1.0}), LettersConfig(), {}, out)
    text = (tmp_path / "out" / artifact.MANIFEST).read_text()
    assert '"heldout_loss": 1.0' in text
    (tmp_path / "out" / artifact.MANIFEST).write_text(
        text.replace('"heldout_loss": 1.0', '"heldout_loss": NaN')
    )
    with pytest.raises(NotFiniteError, match="heldout_loss is nan"):
        execute(stage({}), LettersConfig(), {}, out)
