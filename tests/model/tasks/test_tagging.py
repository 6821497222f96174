"""Tagging from files to predictions: windows lose no word, loss is taken at first pieces, and what
is written can be scored again.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from cloze.core.errors import DataError, UsageError
from cloze.model.layers.batch import IGNORE_INDEX
from cloze.model.tasks.encode import FIRST, cut, encode_words
from cloze.model.tasks.formats.columns import TaggedWords
from cloze.model.tasks.kinds.tagging import Tagging
from cloze.model.tasks.table import load_task
from cloze.pipeline.tokenizer.tokenizer import Tokenizer
from tests.model.tasks.columns import sentences, write_columns
from tests.model.tasks.stages import evaluate, finetune, settings


@pytest.fixture(scope="session")
def names(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a train, a dev and a test split."""
    directory = tmp_path_factory.mktemp("names")
    for split, count, seed in (("train", 150, 1), ("dev", 50, 2), ("test", 20, 3)):
        write_columns(directory / f"{split}.txt", sentences(count, seed))
    return directory


@pytest.mark.parametrize("room", [2, 3, 7, 10, 61])
def test_windows_answer_for_each_word_once_and_hold_what_fits(room):
    draw = np.random.default_rng(room)
    for count in (1, 2, 9, 60):
        sizes = draw.integers(1, max(room // 2, 1) + 1, size=count)
        windows = cut(4, sizes, room)
        assert [place for window in windows for place in range(*window.own)] == list(range(count))
        for window in windows:
            assert window.sentence == 4
            assert sizes[slice(*window.words)].sum() <= room
            assert window.words[0] <= window.own[0] < window.own[1] <= window.words[1]
        for before, after in zip(windows, windows[1:], strict=False):
            assert after.words[0] < before.words[1]  # they overlap
            assert sizes[after.words[0] : before.words[1]].sum() <= room // 2


def test_words_in_the_middle_of_a_long_sentence_have_neighbours_on_both_sides():
    windows = cut(0, np.ones(100, dtype=np.int64), 20)
    for window in windows:
        left = window.own[0] - window.words[0] if window.words[0] else 5
        right = window.words[1] - window.own[1] if window.words[1] < 100 else 5
        assert min(left, right) >= 5


def test_a_sentence_that_fits_is_one_window(pieces: Tokenizer):
    samples = encode_words([["good", "films", "the"]], pieces, 8, [np.array([1, 0, 0])])
    assert len(samples) == 1
    batch = samples.batch([0], "rows")
    assert [pieces.backend.id_to_token(i) for i in batch["input_ids"][0].tolist()] == [
        *("[CLS]", "good", "film", "##s", "the", "[SEP]")
    ]
    assert batch[FIRST][0].tolist() == [False, True, True, False, True, False]
    assert batch["labels"][0].tolist() == [IGNORE_INDEX, 1, 0, IGNORE_INDEX, 0, IGNORE_INDEX]


def test_a_word_without_pieces_moves_no_tag(pieces: Tokenizer):
    sentence = ["good", "\u200d\u0001", "\U000e0001", "bad", "½€"]
    samples = encode_words([sentence], pieces, 32, [np.array([1, 2, 3, 4, 5])])
    batch = samples.batch([0], "rows")
    found = batch["input_ids"][0][batch[FIRST][0]].tolist()
    assert found[0] == pieces.backend.token_to_id("good")
    assert found[3] == pieces.backend.token_to_id("bad")
    assert found[1] == pieces.special.unk
    assert batch["labels"][0][batch[FIRST][0]].tolist() == [1, 2, 3, 4, 5]


def test_a_word_longer_than_half_a_window_loses_pieces_and_is_counted(pieces: Tokenizer):
    samples = encode_words([["film" + "s" * 40, "good"], ["the"]], pieces, 8)
    assert samples.truncated in (0, 1)  # one unknown piece, where the tokenizer has none for it
    split = encode_words([["." * 40, "good"], ["the"]], pieces, 8)
    assert split.truncated == 1
    assert max(split.lengths) <= 8
    assert sum(len(first) for first in split.first) == 3


def test_loss_is_summed_over_first_pieces_alone(pieces: Tokenizer):
    task = load_task("tagging")
    assert isinstance(task, Tagging)
    examples = TaggedWords(words=[["good", "films"], ["the"]], tags=[["B-X", "I-X"], ["O"]])
    adopted = task.align_labels(examples, {"labels": ["O", "B-X", "I-X"]})
    batch = task.encode(adopted, pieces, 16).batch([0, 1], "rows")
    assert task.count(batch) == 3
    outputs = torch.randn(*batch["input_ids"].shape, 3, generator=torch.Generator().manual_seed(1))
    log = torch.log_softmax(outputs, dim=-1)
    expected = -(log[0, 1, 1] + log[0, 2, 2] + log[1, 1, 0])
    torch.testing.assert_close(task.loss(outputs, batch).total, expected)
    moved = outputs.clone()
    moved[0, 3] += 9.0  # the piece ##s
    moved[:, 0] -= 9.0  # [CLS]
    torch.testing.assert_close(task.loss(moved, batch).total, expected)


@pytest.mark.parametrize("layout", ["rows", "buckets"])
def test_layouts_change_no_answer(layout, pieces: Tokenizer, shape, names: Path):
    from cloze.model.families.models import new_backbone

    task = load_task("tagging")
    train = task.read(str(names), "train", None)
    meaning = task.metadata(train)
    samples = task.encode(task.align_labels(train, meaning), pieces, 24)
    torch.manual_seed(1)
    network = task.network(new_backbone(shape), shape, meaning, 0.0).eval()
    chosen = np.arange(12)
    with torch.no_grad():
        found = []
        for kind in ("rows", layout):
            batch = samples.batch(chosen, kind)
            found.append(task.select_outputs(network(batch), batch)[1][batch["first_pieces"]])
    np.testing.assert_allclose(*found, atol=1e-5)


def test_a_checkpoint_is_trained_evaluated_and_its_predictions_score_as_they_did(
    pretrained: str, names: Path, tmp_path: Path
):
    out = tmp_path / "ner"
    made = finetune(
        settings(names, task="tagging", epochs=12, max_length=24, baselines=False), pretrained, out
    )
    metrics = made.manifest.summary["metrics"]
    assert list(metrics) == ["f1", "precision", "recall", "accuracy"]
    assert metrics["f1"] > 0.9  # windows of 22 words; two thirds of the sentences are longer
    assert made.manifest.summary["scheme"] == {"train": "BIO", "dev": "BIO"}
    done = evaluate(out, tmp_path / "eval", data=str(names / "dev.txt"))
    assert done.manifest.summary["metrics"] == pytest.approx(metrics)
    content = json.loads((tmp_path / "eval" / "metrics.json").read_text())
    assert content["by_type"].keys() == {"LOC", "PER"}
    low, high = content["interval"]["f1"]
    assert low <= metrics["f1"] <= high
    lines = (tmp_path / "eval" / "predictions.txt").read_text().split("\n")
    source = (names / "dev.txt").read_text().split("\n")
    assert [line.rsplit(" ", 1)[0] for line in lines] == source
    again = load_task("tagging", {"columns": {"tag": 2}}).read(
        str(tmp_path / "eval" / "predictions.txt"), "dev", None
    )
    gold = load_task("tagging").read(str(names), "dev", None)
    from cloze.model.tasks.metrics import tagging_scores

    assert tagging_scores(gold.tags, again.tags)["f1"] == pytest.approx(metrics["f1"])
    # words alone: they are predicted and not scored
    words = tmp_path / "words.txt"
    words.write_text("\n".join(line.split(" ")[0] for line in source), encoding="utf-8")
    bare = evaluate(out, tmp_path / "bare", data=str(words))
    assert bare.manifest.summary["metrics"] == {}
    predicted = [
        line.split(" ") for line in (tmp_path / "bare" / "predictions.txt").read_text().split("\n")
    ]
    assert [row[-1] for row in predicted] == [line.rsplit(" ", 1)[-1] for line in lines]


def test_types_that_were_not_trained_are_refused_with_file_and_line(names: Path, tmp_path: Path):
    task = load_task("tagging")
    meaning = task.metadata(task.read(str(names), "train", None))
    other = write_columns(
        tmp_path / "other.txt", [[("the", "O")], [("film", "O"), ("plot", "B-ORG")]]
    )
    with pytest.raises(
        DataError,
        match=r"other\.txt, line 6: the tag's type 'ORG' is unknown to the model \(it has LOC, PER\)",
    ):
        task.align_labels(task.read(str(other), "dev", None), meaning)


def test_a_limit_per_class_is_refused(names: Path):
    with pytest.raises(UsageError, match="limit_per_class"):
        load_task("tagging").read(str(names), "train", 5)
