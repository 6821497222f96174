"""Texts and pairs of texts: the first fifty losses of fine-tuning are those of transformers' Trainer."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from model.tasks.finetune.config import FinetuneConfig
from tests.parity.trainer import Theirs, assert_equal, fine_tune_both
from tests.tiny_models import WORDS, write_checkpoint

CLASSES = Theirs(
    architecture="BertForSequenceClassification", head="classifier", labels=lambda batch: {"labels": batch["labels"]}
)


def settings(data: Path, **values: Any) -> FinetuneConfig:
    """Two epochs of 30 steps, the last one of each smaller; rates as high as tiny models want them."""
    base = {"epochs": 2, "batch_size": 8, "learning_rate": 3e-3, "precision": "fp32", "seed": 5, "baselines": False}
    return FinetuneConfig.model_validate({"data": str(data), **base, **values})


def write_texts(directory: Path, *, pairs: bool) -> Path:
    """Texts of one to twenty words that a word among them tells apart; of pairs, the second text says two classes and the first one.

    One class has twice as many examples as the others.
    """
    draw = random.Random(3)
    directory.mkdir()
    for split, count in (("train", 237), ("dev", 20)):
        lines = ["first\tsecond\tclass" if pairs else "first\tclass"]
        for _ in range(count):
            texts = [[draw.choice(WORDS[:10]) for _ in range(draw.randint(1, 19))] for _ in range(1 + pairs)]
            label = draw.choice((0, 1, 2, 2))
            told = texts[0 if label == 0 else -1]
            told.insert(draw.randint(0, len(told)), ("walk", "paris", "capital")[label])
            lines.append("\t".join([*(" ".join(text) for text in texts), "abc"[label]]))
        (directory / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return directory


@pytest.mark.parametrize("pairs", [False, True], ids=["texts", "pairs"])
def test_fifty_losses(tmp_path: Path, pairs: bool) -> None:
    columns = {"text": "first", "label": "class"} | ({"pair": "second"} if pairs else {})
    data = write_texts(tmp_path / "data", pairs=pairs)
    config = settings(data, task="classification", options={"columns": columns})
    pretrained = write_checkpoint(tmp_path / "pretrained", tmp_path / "scratch")
    assert_equal(fine_tune_both(config, pretrained, tmp_path / "out", CLASSES))
