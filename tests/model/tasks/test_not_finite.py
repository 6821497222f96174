"""A model of NaNs has no score: its largest logit is always that of class 0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cloze.core.errors import NotFiniteError
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import BuildContext
from cloze.model import checkpoint
from cloze.model.tasks.predict import _has_nan_row
from cloze.model.use.configs import ScoreConfig
from cloze.model.use.scoring import run as score
from tests.model.tasks.stages import evaluate, finetune, settings

SHORT: dict[str, Any] = {"epochs": 1, "baselines": False}


def of_nans(path: str, out: Path) -> str:
    """A copy of the checkpoint whose weights are so large that its outputs are NaN.

    Weights that are NaN themselves are refused when a checkpoint is opened.
    """
    loaded = checkpoint.load(path)
    state = {
        name: torch.full_like(weight, 3e38) if weight.is_floating_point() else weight
        for name, weight in loaded.state.items()
    }
    checkpoint.save_weights(
        str(out), model=loaded.model, state=state, tokenizer=loaded.tokenizer,
        heads=loaded.heads, task=loaded.task,
    )  # fmt: skip
    checkpoint.finalize(str(out))
    return str(out)


@pytest.mark.parametrize("task", ["sst2", "stsb"])
def test_an_evaluation_of_it_fails_in_a_sentence_and_leaves_no_score(
    pretrained: str, sentiment: Path, likeness: Path, tmp_path: Path, task: str
) -> None:
    data = sentiment if task == "sst2" else likeness
    tuned = tmp_path / "tuned"
    finetune(settings(data, task=task, **SHORT), pretrained, tuned)
    broken = of_nans(str(tuned), tmp_path / "broken")
    with pytest.raises(NotFiniteError, match=f"{task}: output is nan, so this evaluation"):
        evaluate(broken, tmp_path / "eval", data=str(data))
    assert not (tmp_path / "eval" / "manifest.json").exists()


def test_minimal_pairs_of_it_have_no_accuracy(pretrained: str, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text('{"sentence_good": "a film", "sentence_bad": "film a", "UID": "x"}\n')
    inputs = {"checkpoint": of_nans(pretrained, tmp_path / "broken")}
    build = BuildContext(
        path=str(tmp_path / "out"), inputs=inputs, execution=Execution(device="cpu"), fingerprint=""
    )
    with pytest.raises(NotFiniteError, match="log-likelihood is nan"):
        score(ScoreConfig(data=str(pairs), precision="fp32"), build)


def test_one_answer_may_be_nan_in_places() -> None:
    """Padding between sequences of other lengths is no answer."""

    rows = np.array([[0.5, np.nan], [1.0, 2.0]], dtype=np.float32)
    assert not _has_nan_row(rows)
    assert not _has_nan_row(np.zeros((0, 2), np.float32))
    assert not _has_nan_row(np.array([[1, 2]]))
    assert _has_nan_row(np.vstack([rows, np.full((1, 2), np.nan)]))
    assert _has_nan_row(np.array([1.0, np.nan]))
