"""Tags: the first fifty losses of fine-tuning are those of transformers' Trainer."""

from __future__ import annotations

import random
from pathlib import Path

from tests.parity.test_finetune_classification import answers, settings
from tests.parity.trainer import assert_equal, fine_tune_both
from tests.tiny_models import WORDS, write_checkpoint


def write_columns(directory: Path) -> Path:
    """Sentences of one to sixteen words, of which some are cut into several pieces and some are
    names of one or two words.
    """
    draw = random.Random(7)
    directory.mkdir()
    for split, count in (("train", 237), ("dev", 20)):
        sentences = []
        for _ in range(count):
            lines = [
                f"{draw.choice([*WORDS[:10], 'cats', 'walked', 'dogs'])} O"
                for _ in range(draw.randint(1, 14))
            ]
            name = draw.choice(["paris B-LOC", "capital B-ORG", "walk B-LOC\nparks I-LOC"])
            lines.insert(draw.randint(0, len(lines)), name)
            sentences.append("\n".join(lines))
        (directory / f"{split}.txt").write_text("\n\n".join(sentences) + "\n", encoding="utf-8")
    return directory


def test_fifty_losses(tmp_path: Path) -> None:
    config = settings(write_columns(tmp_path / "data"), task="tagging")
    pretrained = write_checkpoint(tmp_path / "pretrained", tmp_path / "scratch")
    assert_equal(fine_tune_both(config, pretrained, tmp_path / "out", answers))
