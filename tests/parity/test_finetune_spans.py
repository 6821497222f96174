"""Questions on passages: the first fifty losses of fine-tuning are those of
transformers' Trainer.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from torch import Tensor

from cloze.model.layers.batch import Batch
from cloze.model.tasks.finetune.stage import FinetuneConfig
from cloze.model.tasks.span_windows import ENDS, STARTS
from tests.parity.pretrained import new_tokenizer, write_pretrained
from tests.parity.test_finetune_classification import FRAMES
from tests.parity.trainer import assert_equal, fine_tune_both
from tests.slices import few
from tests.tiny_models import WORDS


def write_questions(directory: Path) -> Path:
    """The answer is what stands between two words of the passage; of one in four it stands nowhere.

    All passages and all questions are as long as the others: their softmax is also over padding,
    ours over real positions alone. Of a passage there are three windows, one of them with the
    answer at most.
    """
    draw = random.Random(4)
    directory.mkdir()
    for split, count in (("train", 80), ("dev", 10)):
        asked = []
        for number in range(count):
            words = [draw.choice(WORDS[:6]) for _ in range(56)]
            answer = None
            if number % 4:
                place = draw.randrange(54)
                words[place : place + 3] = ["paris", draw.choice(WORDS[:6]), "capital"]
                answer = {
                    "text": words[place + 1],
                    "answer_start": len(" ".join(words[: place + 1])) + 1,
                }
            qa = {
                "id": str(number),
                "question": "the capital",
                "answers": [answer] if answer else [],
                "is_impossible": not answer,
            }
            asked.append({"context": " ".join(words), "qas": [qa]})
        content = {"version": "v2.0", "data": [{"title": "random", "paragraphs": asked}]}
        (directory / f"{split}.json").write_text(json.dumps(content), encoding="utf-8")
    return directory


@pytest.mark.parametrize(("family", "kind"), few(FRAMES, "roberta"))
def test_fifty_losses(family: str, kind: str, tmp_path: Path) -> None:
    longest = 26 + new_tokenizer(kind).frame_size(pair=True)  # so that all windows are full
    config = FinetuneConfig(
        task="squad2",
        data=str(write_questions(tmp_path / "data")),
        options={"stride": 16, "answer_length": 4},
        max_length=longest,
        epochs=2,
        global_batch=8,
        learning_rate=3e-3,
        precision="fp32",
        seed=5,
        baselines=False,
    )
    pretrained = write_pretrained(tmp_path / "pretrained", family, kind)
    lengths: set[int] = set()

    def labels(batch: Batch) -> dict[str, Tensor]:
        lengths.update(batch["attention_mask"].sum(dim=1).tolist())
        return {STARTS: batch[STARTS], ENDS: batch[ENDS]}

    found = fine_tune_both(config, pretrained, tmp_path / "out", labels)
    assert lengths == {longest}
    assert_equal(found)
