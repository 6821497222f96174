"""Choosing among endings: what is read, what a batch is, that neither its cut nor its layout
changes anything, and that it learns.
"""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cloze.core.errors import DataError
from cloze.core.storage import read_tsv
from cloze.model.families.config import ModelConfig
from cloze.model.tasks.formats.choices import Choices
from cloze.model.tasks.heads import new_network
from cloze.model.tasks.kinds.choice import LONGEST_ENDING, ChoiceSamples
from cloze.model.tasks.predict import predict
from cloze.model.tasks.source import EpochSource, TaskObjective
from cloze.model.tasks.table import load_task
from cloze.model.train.distributed import World
from cloze.pipeline.tokenizer.tokenizer import Tokenizer
from tests.model.tasks.conftest import BAD, GOOD, NEUTRAL
from tests.model.tasks.stages import evaluate, finetune, settings
from tests.model.tasks.test_objective import gradient

ALONE = World(rank=0, size=1, device=torch.device("cpu"))
SWAG = [
    "",
    "video-id",
    "fold-ind",
    "startphrase",
    "sent1",
    "sent2",
    "gold-source",
    *(f"ending{n}" for n in range(4)),
    "label",
]


def examples(count: int = 9, ragged: bool = True) -> Choices:
    draw = random.Random(2)
    endings = [
        [
            " ".join(draw.choices(NEUTRAL, k=draw.randrange(1, 6)))
            for _ in range(2 + n % 3 if ragged else 4)
        ]
        for n in range(count)
    ]
    labels = [draw.randrange(len(own)) for own in endings]
    return Choices(
        contexts=[" ".join(draw.choices(NEUTRAL, k=1 + n)) for n in range(count)],
        endings=endings,
        labels=labels,
        label_names=("0", "1", "2", "3"),
    )


def encoded(pieces: Tokenizer, given: Choices, longest: int = 32, **options: Any) -> ChoiceSamples:
    return load_task("choice", options).encode(given, pieces, longest)


def objective(shape: ModelConfig) -> TaskObjective:
    task = load_task("choice")
    still = shape.model_copy(
        update={"hidden_dropout": 0.0, "attention_dropout": 0.0, "initializer_range": 0.2}
    )
    return TaskObjective(
        task, new_network(task, still, None, {}, None, seed=1), "fp32", ALONE.device
    )


def test_a_batch_holds_the_endings_of_its_examples_one_after_the_other(pieces: Tokenizer) -> None:
    given = examples()
    samples = encoded(pieces, given)
    assert len(samples) == 9
    assert samples.counts.tolist() == [2, 3, 4] * 3
    batch = samples.batch([2, 0])
    assert batch["endings"].tolist() == [[0, 1, 2, 3], [4, 5, -1, -1]]
    assert batch["labels"].tolist() == [given.labels[2], given.labels[0]]
    assert len(batch["input_ids"]) == 6
    words = [
        " ".join(str(pieces.backend.id_to_token(int(place))) for place in row[real])
        for row, real in zip(batch["input_ids"], batch["attention_mask"], strict=True)
    ]
    wanted = [(given.contexts[i], ending) for i in (2, 0) for ending in given.endings[i]]
    assert words == [f"[CLS] {context} [SEP] {ending} [SEP]" for context, ending in wanted]
    assert samples.lengths[0] == batch["attention_mask"][4:].sum()
    first = batch["input_ids"][0].tolist().index(pieces.special.sep) + 1
    assert batch["token_type_ids"][0][: first + 1].tolist() == [0] * first + [1]


def test_gradients_add_up_however_examples_are_cut(pieces: Tokenizer, shape: ModelConfig) -> None:
    trained, samples = objective(shape), encoded(pieces, examples())
    whole, figures = gradient(trained, [samples.batch(np.arange(9))])
    blank = EpochSource(samples, batch_size=4, seed=1, micro_batch=4).blank()
    parts, summed = gradient(
        trained, [samples.batch(np.arange(4)), blank, samples.batch(np.array([8, 4, 6, 5, 7]))]
    )
    assert whole.norm() > 0.01
    torch.testing.assert_close(parts, whole, atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(
        summed, figures, atol=1e-5, rtol=1e-6
    )  # sums of fp32 losses, in another order


@pytest.mark.parametrize("layout", ["rows", "buckets", "packed"])
def test_neither_layout_nor_company_changes_an_answer(
    pieces: Tokenizer, shape: ModelConfig, layout: Any
) -> None:
    trained, samples = objective(shape).eval(), encoded(pieces, examples())
    trained.layout = (
        layout if layout != "packed" else "rows"
    )  # a CPU has no kernel for the packed one
    together = predict(trained, samples, ALONE)
    trained.layout = "rows"
    for number, row in enumerate(together):
        outputs, count = trained(samples.batch([number])), samples.counts[number]
        np.testing.assert_allclose(
            row[:count], torch.softmax(outputs.squeeze(-1), 0).detach().numpy(), atol=1e-6
        )
        assert not row[count:].any(), "an ending that there is not has no probability"


def bert_pair(context: list[int], ending: list[int], room: int) -> tuple[list[int], list[int]]:
    """`_truncate_seq_pair`, as run_swag.py of pytorch-pretrained-BERT uses it."""
    context, ending = list(context), list(ending)
    while len(context) + len(ending) > room:
        (context if len(context) > len(ending) else ending).pop()
    return context, ending


def race_pair(context: list[int], ending: list[int], room: int) -> tuple[list[int], list[int]]:
    """ALBERT's race_utils.py: the end of question and option stays, and of the passage what there
    is room for.
    """
    ending = ending[-LONGEST_ENDING:]
    return context[: room - len(ending)], ending


@pytest.mark.parametrize(("truncate", "rule"), [("longest", bert_pair), ("context", race_pair)])
def test_long_ones_are_cut_as_the_references_cut_them(
    pieces: Tokenizer, truncate: str, rule: Any
) -> None:
    given = Choices(
        contexts=["the film is good . " * 80, "good"],
        endings=[["very bad " * 50 + "dull cold " * 50, "cold ."], ["warm", "dull"]],
        labels=[0, 1],
        label_names=("0", "1"),
    )
    samples = encoded(pieces, given, 320, truncate=truncate)
    special = pieces.special
    flat = iter(samples.sequences.sequences)
    for context, endings in zip(given.contexts, given.endings, strict=True):
        for ending in endings:
            a, b = rule(*(list(ids) for ids in pieces.encode_batch([context, ending])), 317)
            assert next(flat).tolist() == [special.cls, *a, special.sep, *b, special.sep]
    assert samples.truncated == 1


def write_swag(directory: Path) -> Path:
    """A directory above one in SWAG's format: the good ending is right."""
    folder = directory / "swag"
    folder.mkdir()
    draw = random.Random(1)
    for name, count in (("train", 96), ("val", 32), ("test", 5)):
        with open(folder / f"{name}.csv", "w", newline="", encoding="utf-8") as handle:
            writer = csv.writer(handle)
            writer.writerow(SWAG[:-1] if name == "test" else SWAG)
            for number in range(count):
                label = draw.randrange(4)
                start = draw.choice(NEUTRAL)
                sentence = ", ".join(draw.choices(NEUTRAL, k=3))
                endings = [
                    f"{draw.choice(NEUTRAL)} {draw.choice(GOOD if n == label else BAD)}"
                    for n in range(4)
                ]
                row = [
                    number,
                    "lsmdc",
                    number,
                    f"{sentence} {start}",
                    sentence,
                    start,
                    "gold",
                    *endings,
                    label,
                ]
                writer.writerow(row[:-1] if name == "test" else row)
    return directory


def test_it_learns_to_choose_and_is_scored_and_predicted(pretrained: str, tmp_path: Path) -> None:
    data = write_swag(tmp_path)
    tuned = finetune(
        settings(data, task="swag", epochs=6, baselines=False), pretrained, tmp_path / "tuned"
    ).as_json()
    assert tuned["metrics"]["accuracy"] > 0.9
    evaluated = evaluate(tmp_path / "tuned", tmp_path / "dev", data=str(data), resamples=100)
    assert evaluated.as_json()["metrics"]["accuracy"] == pytest.approx(tuned["metrics"]["accuracy"])
    content = json.loads((tmp_path / "dev" / "metrics.json").read_text())
    assert content["endings"] == {"4": 32}
    assert content["chance"] == 0.25
    low, high = content["interval"]["accuracy"]
    assert low <= content["metrics"]["accuracy"] <= high
    hidden = evaluate(tmp_path / "tuned", tmp_path / "test", data=str(data), split="test")
    assert hidden.as_json()["metrics"] == {}
    rows = read_tsv(str(tmp_path / "test" / "predictions.tsv"))
    assert [row["index"] for row in rows] == list("01234")
    for row in rows:
        assert row["label"] == ""
        assert any(word in GOOD for word in row["ending"].split())
        assert row["prediction"] in "0123"


def passage(**changed: Any) -> dict[str, Any]:
    return {
        "article": "Tom has a dog.",
        "questions": ["Tom has _ .", "Who has a dog?"],
        "options": [["a cat", "a dog", "a cow", "a pig"], ["Tom", "Ann", "Bob", "Joe"]],
        "answers": ["B", "A"],
        "id": "high1.txt",
        **changed,
    }


def write_race(directory: Path, **changed: Any) -> Path:
    for level in ("high", "middle"):
        folder = directory / "RACE" / "dev" / level
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "1.txt").write_text(json.dumps(passage(id=f"{level}1.txt", **changed)))
    return directory


def test_race_is_read_from_its_directories(tmp_path: Path) -> None:
    task = load_task("race")
    found = task.read(str(write_race(tmp_path)), "dev", None)
    assert found.endings[:2] == [
        ["Tom has a cat .", "Tom has a dog .", "Tom has a cow .", "Tom has a pig ."],
        ["Who has a dog? Tom", "Who has a dog? Ann", "Who has a dog? Bob", "Who has a dog? Joe"],
    ]
    assert found.labels == [1, 0, 1, 0]
    assert found.ids == ["high1.txt-0", "high1.txt-1", "middle1.txt-0", "middle1.txt-1"]
    assert task.read(str(tmp_path / "RACE"), "dev_middle", None).ids == [
        "middle1.txt-0",
        "middle1.txt-1",
    ]
    with pytest.raises(
        DataError,
        match=r"train does not exist; the task reads a directory with train, dev and test",
    ):
        task.read(str(tmp_path), "train", None)
    assert task.max_length == 512
    longer = {"questions": ["Tom has ____ and __ .", "Who?"]}
    found = task.read(str(write_race(tmp_path, **longer)), "dev", None)
    assert found.endings[0][:2] == ["Tom has a cat and a cat .", "Tom has a dog and a dog ."]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"answers": ["B", "E"]}, "question 2: label 'E' is not one of A, B, C, D"),
        ({"answers": ["B"]}, "questions, options and answers must be lists of equal length"),
        ({"options": None}, "questions, options and answers must be lists of equal length"),
        ({"options": ["ab", ["x", "y"]]}, "options lists of texts"),
        ({"options": [["x", "y"], ["x", 3]]}, "options lists of texts"),
        ({"options": [["x", ""], ["x", "y"]]}, "question 1: ending 2 is missing"),
        ({"options": [["x"], ["x", "y"]]}, "question 1: 1 endings; at least two are needed"),
        ({"article": "  "}, "question 1: the context is empty"),
        ({"article": None}, "has no text 'article'"),
    ],
)
def test_a_faulty_passage_is_named(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError) as fault:
        load_task("race").read(str(write_race(tmp_path, **changed)), "dev_high", None)
    assert said in str(fault.value)
    assert str(tmp_path / "RACE" / "dev" / "high" / "1.txt") in str(fault.value)


def test_passages_with_one_id_and_files_that_are_none_are_refused(tmp_path: Path) -> None:
    folder = write_race(tmp_path) / "RACE" / "dev" / "high"
    (folder / "2.txt").write_text(json.dumps(passage()))
    with pytest.raises(
        DataError, match=r"2\.txt, question 1: duplicate id 'high1\.txt-0', see question 1"
    ):
        load_task("race").read(str(tmp_path), "dev", None)
    (folder / "2.txt").write_text('{"article": ')
    with pytest.raises(DataError, match=r"2\.txt, line 1, column 13: not valid JSON"):
        load_task("race").read(str(tmp_path), "dev", None)
    (tmp_path / "RACE" / "test").mkdir()
    with pytest.raises(DataError, match=r"test has no passages"):
        load_task("race").read(str(tmp_path), "test", None)
