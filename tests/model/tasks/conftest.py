"""A tiny checkpoint and a set that it can learn: what the tests of fine-tuning and evaluation
share.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from cloze.model import checkpoint
from cloze.model.families.bert import BertConfig
from cloze.model.families.config import ModelConfig
from cloze.model.families.models import new_model
from cloze.pipeline import tokenizer
from cloze.pipeline.tokenizer.tokenizer import Tokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
GOOD, BAD = ["good", "lovely", "warm", "bright"], ["bad", "awful", "cold", "dull"]
STSB_HEADER = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2"
NEUTRAL = ["a", "the", "film", "plot", "and", "cast", "is", "with", "of", "very", ".", ","]


@pytest.fixture(scope="session")
def vocab_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_text("\n".join([*SPECIAL, *GOOD, *BAD, *NEUTRAL, "##s"]) + "\n", encoding="utf-8")
    return str(path)


@pytest.fixture(scope="session")
def pieces(vocab_file: str) -> Tokenizer:
    return tokenizer.load(vocab_file)


@pytest.fixture(scope="session")
def shape(pieces: Tokenizer) -> ModelConfig:
    return BertConfig(
        vocab_size=pieces.vocab_size,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
    )


@pytest.fixture(scope="session")
def pretrained(
    tmp_path_factory: pytest.TempPathFactory, pieces: Tokenizer, shape: ModelConfig
) -> str:
    """A checkpoint as pretraining leaves it, with random weights."""
    directory = tmp_path_factory.mktemp("pretrained")
    pieces.save(str(directory / "tokenizer"))
    torch.manual_seed(7)
    path = str(directory / "checkpoint")
    checkpoint.save_weights(
        path,
        model=shape,
        state=new_model(shape).state_dict(),
        tokenizer=str(directory / "tokenizer"),
        heads=shape.heads,
    )
    checkpoint.finalize(path)
    return path


@pytest.fixture(scope="session")
def sentiment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in SST-2's format: a sentence is positive where it holds a good word."""
    directory = tmp_path_factory.mktemp("sentiment")
    draw = random.Random(5)
    for split, count in (("train", 240), ("dev", 70), ("test", 9)):
        lines = ["index\tsentence" if split == "test" else "sentence\tlabel"]
        for number in range(count):
            label = int(draw.random() < 0.6)
            words = [draw.choice(NEUTRAL) for _ in range(draw.randrange(2, 14))]
            words.insert(draw.randrange(len(words)), draw.choice((BAD, GOOD)[label]))
            lines.append(
                f"{number}\t{' '.join(words)}" if split == "test" else f"{' '.join(words)}\t{label}"
            )
        (directory / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return directory


@pytest.fixture(scope="session")
def likeness(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory above one in STS-B's format: the score is how many of the second sentence's words
    are good ones.
    """
    directory = tmp_path_factory.mktemp("glue") / "STS-B"
    directory.mkdir()
    draw = random.Random(3)
    for split, count in (("train", 200), ("dev", 40), ("test", 7)):
        lines = [STSB_HEADER if split == "test" else STSB_HEADER + "\tscore"]
        for number in range(count):
            good = draw.randrange(6)
            words = [*draw.choices(GOOD, k=good), *draw.choices(BAD, k=5 - good)]
            fields = [str(number), *"x" * 6, " ".join(draw.choices(NEUTRAL, k=3)), " ".join(words)]
            lines.append("\t".join(fields if split == "test" else [*fields, f"{good:.3f}"]))
        (directory / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return directory.parent
