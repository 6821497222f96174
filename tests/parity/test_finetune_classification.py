"""Texts, pairs of texts and choices: the first fifty losses of fine-tuning are those of
transformers' Trainer.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from cloze.model.layers.batch import Batch
from cloze.model.tasks.finetune.stage import FinetuneConfig
from tests.parity.pretrained import PLAIN, write_pretrained
from tests.parity.trainer import assert_equal, fine_tune_both
from tests.slices import few
from tests.tiny_models import WORDS

# The four ways to frame a pair and to classify it
FRAMES = (
    ("bert", "wordpiece"),
    ("roberta", "byte_level"),
    ("albert", "unigram"),
    ("deberta", "unigram"),
)


def answers(batch: Batch) -> dict[str, Tensor]:
    return {"labels": batch["labels"]}


def settings(data: Path, **values: Any) -> FinetuneConfig:
    """Two epochs of 30 steps, the last one of each smaller; rates as high as tiny
    models want them.
    """
    base = {
        "epochs": 2,
        "global_batch": 8,
        "learning_rate": 3e-3,
        "precision": "fp32",
        "seed": 5,
        "baselines": False,
    }
    return FinetuneConfig.model_validate({"data": str(data), **base, **values})


def write_texts(directory: Path, *, pairs: bool) -> Path:
    """Texts of four to twelve words; a word that comes three times says the class: in the first
    text of a pair or in the second.

    One class has twice as many examples as the others.
    """
    draw = random.Random(3)
    directory.mkdir()
    for split, count in (("train", 237), ("dev", 20)):
        lines = ["first\tsecond\tclass" if pairs else "first\tclass"]
        for _ in range(count):
            texts = [
                [draw.choice(WORDS[:10]) for _ in range(draw.randint(1, 9))]
                for _ in range(1 + pairs)
            ]
            label = draw.choice((0, 1, 2, 2))
            told = texts[0 if label == 0 else -1]
            for _ in range(3):
                told.insert(draw.randint(0, len(told)), ("walk", "paris", "capital")[label])
            lines.append("\t".join([*(" ".join(text) for text in texts), "abc"[label]]))
        (directory / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return directory


def fifty_losses(tmp_path: Path, family: str, kind: str, *, pairs: bool) -> None:
    columns = {"text": "first", "label": "class"} | ({"pair": "second"} if pairs else {})
    data = write_texts(tmp_path / "data", pairs=pairs)
    config = settings(data, task="classification", options={"columns": columns})
    pretrained = write_pretrained(tmp_path / "pretrained", family, kind, max_position_embeddings=64)
    assert_equal(fine_tune_both(config, pretrained, tmp_path / "out", answers))


def test_fifty_losses_of_texts(tmp_path: Path) -> None:
    fifty_losses(tmp_path, "bert", "wordpiece", pairs=False)


@pytest.mark.parametrize(("family", "kind"), few(FRAMES, "deberta"))
def test_fifty_losses_of_pairs(family: str, kind: str, tmp_path: Path) -> None:
    fifty_losses(tmp_path, family, kind, pairs=True)


def write_choices(directory: Path) -> list[str]:
    """Of three endings the right one goes on with the last word of the context; returns the
    endings' columns.
    """
    draw = random.Random(6)
    directory.mkdir()
    columns = ["ending0", "ending1", "ending2"]
    for split, count in (("train", 237), ("dev", 20)):
        lines = [",".join(["context", "start", *columns, "label"])]
        for _ in range(count):
            context = " ".join(draw.choice(PLAIN[:9]) for _ in range(draw.randint(1, 9)))
            label, last = draw.randrange(3), draw.choice(["walk", "paris", "capital"])
            wrong = draw.choice(PLAIN[:9])
            endings = [f"{last if place == label else wrong} {wrong}" for place in range(3)]
            lines.append(",".join([context, f"the {last}", *endings, str(label)]))
        (directory / f"{split}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return columns


@pytest.mark.parametrize(("family", "kind"), few(FRAMES, "albert"))
def test_fifty_losses_of_choices(family: str, kind: str, tmp_path: Path) -> None:
    endings = write_choices(tmp_path / "data")
    config = settings(tmp_path / "data", task="choice", options={"endings": endings})
    pretrained = write_pretrained(tmp_path / "pretrained", family, kind, max_position_embeddings=64)
    assert_equal(fine_tune_both(config, pretrained, tmp_path / "out", answers))
