"""What a released version has made is verified, read and continued by this one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import cloze
from cloze.core import storage
from cloze.core.artifacts import artifact
from cloze.model.train.config import PretrainConfig
from cloze.pipeline import tokenizer
from tests.model.train.ranks import here

RELEASED = Path(__file__).parent / "released"
VERSIONS = sorted(path.name for path in RELEASED.iterdir() if path.is_dir())
KINDS = ("corpus", "vocab", "dataset", "pretrain", "finetune")


@pytest.fixture(params=VERSIONS)
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy: readers may write leases and caches beside an artifact."""
    return Path(shutil.copytree(RELEASED / request.param, tmp_path / "made"))


@pytest.mark.parametrize("kind", KINDS)
def test_each_artifact_is_whole(kind: str, made: Path) -> None:
    found = artifact.verify(str(made / kind))
    assert found.ok, found.errors
    assert found.files > 1
    assert artifact.read_manifest(str(made / kind)).stage == kind
    (made / kind / "more.arrow").write_bytes(b"x")
    assert not artifact.verify(str(made / kind)).ok


def test_a_checkpoint_answers_and_a_vocabulary_reads(made: Path) -> None:
    (mask,) = cloze.load(made / "pretrain").fill_mask("The [MASK] stands.", top_k=3)
    assert len(mask) == 3
    (own,) = cloze.load(made / "pretrain").fill_mask("The [MASK] stands.", top_k=3)
    assert own == mask
    pieces = tokenizer.load(str(made / "vocab"))
    assert pieces.vocab_size == 200


def test_a_fine_tuned_model_gives_the_answers_that_were_written_beside_it(made: Path) -> None:
    model = cloze.load(made / "finetune")
    rows = storage.read_tsv(str(made / "finetune" / "predictions.tsv"))
    for row in rows:
        best = model.classify(row["text"])[0]
        assert best["label"] == row["prediction"]
        assert best["score"] == pytest.approx(float(row["score"]), abs=2e-6)
    assert len(rows) == 4


def test_a_training_goes_on_in_a_new_phase_on_the_dataset(made: Path, tmp_path: Path) -> None:
    """At a rate of nearly nothing the weights stay those that were released."""
    settings: dict[str, Any] = {"steps": 2, "global_batch": 4, "learning_rate": 1e-12}
    more = {"continue": str(made / "pretrain")}
    result = here(PretrainConfig(**settings), str(made / "dataset"), tmp_path / "next", more=more)
    assert [done for done, figures in result.reports if "learning_rate" in figures][
        -1
    ] == 6  # after the four of before
    then, now = _weights(made / "pretrain"), _weights(tmp_path / "next")
    assert then.keys() == now.keys()
    for name, weight in then.items():
        torch.testing.assert_close(now[name], weight, atol=1e-6, rtol=0)


def _weights(training: Path) -> dict[str, torch.Tensor]:
    (newest,) = sorted(training.glob("checkpoints/*/model.safetensors"))[-1:]
    return load_file(newest)
