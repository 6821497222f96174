"""A model of a task has the weights that it is given, in memory or by a path."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cloze.labs.inside.prune import Scorer
from cloze.model import checkpoint
from cloze.model.tasks.formats.texts import LabelledTexts
from cloze.model.tasks.predict import FinetunedModel
from cloze.model.train.distributed import World
from tests.tiny_models import write_classifier

TEXTS = [f"the {animal} {verb} in paris ." for animal in ("cat", "dog") for verb in "bcdefghijkl"]
EXAMPLES = LabelledTexts(texts=TEXTS, text_pairs=None, labels=None, label_names=("a", "b"))


def test_weights_in_memory_are_used_though_a_checkpoint_lies_at_their_path(tmp_path: Path) -> None:
    path = write_classifier(tmp_path / "checkpoint", tmp_path / "scratch")
    loaded = checkpoint.load(path)
    turned = {
        name: -tensor if name.startswith("classifier.") else tensor
        for name, tensor in loaded.state.items()
    }
    models = [FinetunedModel(source) for source in (path, loaded, replace(loaded, state=turned))]
    by_path, as_read, other = (model.outputs(model.encode(EXAMPLES)) for model in models)
    assert (by_path == as_read).all()
    assert other == pytest.approx(-by_path, abs=1e-6)
    assert abs(by_path).min() > 0


def test_a_score_is_that_of_the_model_that_is_asked_about(tmp_path: Path) -> None:
    path = write_classifier(tmp_path / "checkpoint", tmp_path / "scratch", ("0", "1"))
    lines = ["sentence\tlabel", *(f"{text}\t{int(n < 5)}" for n, text in enumerate(TEXTS[:20]))]
    (tmp_path / "dev.tsv").write_text("\n".join(lines) + "\n")
    loaded = checkpoint.load(path)
    scorer = Scorer(loaded, str(tmp_path), World(rank=0, size=1, device=torch.device("cpu")))
    for bias, accuracy in (([1e6, 0.0], 0.75), ([0.0, 1e6], 0.25)):
        certain = loaded.state | {"classifier.bias": torch.tensor(bias)}
        found = scorer.score(scorer.model(replace(loaded, state=certain)))
        assert found["accuracy"] == accuracy
    assert scorer.before == scorer.score(scorer.whole)
