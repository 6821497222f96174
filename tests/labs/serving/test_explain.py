"""Attributions add up, and labels that no training has seen are chosen by entailment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import cloze
from cloze.core.errors import UsageError
from cloze.flows.cli import main
from cloze.model import checkpoint
from cloze.model.hub.write import write_directory
from cloze.model.tasks.heads import new_network
from cloze.model.tasks.table import load_task
from tests.labs.serving.test_classify import tuned
from tests.tiny_models import tiny_config, tiny_model, write_tokenizer

TEXT, PAIR = "the cat walked in the park", "a dog ran in paris."
NLI = {"name": "mnli", "labels": ["neutral", "entailment", "contradiction"], "pairs": True}


@pytest.fixture(scope="module")
def inference(tmp_path_factory: pytest.TempPathFactory) -> str:
    base = tmp_path_factory.mktemp("nli")
    return tuned(base, "classifier", 3, {**NLI, "max_length": 24})


@pytest.mark.parametrize("pair", [None, PAIR])
def test_scores_of_tokens_add_up_to_the_change_of_the_logit(
    tmp_path: Path, pair: str | None
) -> None:
    task = {"name": "mnli" if pair else "sst2", "labels": ["a", "b", "c"], "pairs": bool(pair)}
    path = tuned(tmp_path, "classifier", 3, {**task, "max_length": 24})
    request = {"text": TEXT} if pair is None else {"text": TEXT, "pair": pair}
    (answer,) = cloze.load(path).batch("classify", [request], explain=True)
    found = answer["explanation"]
    assert found["label"] == answer["label"]
    total = sum(token["score"] for token in found["tokens"])
    change = found["logit"] - found["baseline"]
    assert abs(change) > 0.01
    assert total == pytest.approx(change, abs=1e-3 * max(1.0, abs(change)))
    texts = {"text": TEXT, "pair": pair or ""}
    for token in found["tokens"]:
        assert texts[token["field"]][token["start"] : token["end"]] == token["text"]
    words = [token["text"] for token in found["tokens"]]
    assert words[:4] == ["the", "cat", "walk", "ed"]
    assert words[-1] == ("." if pair else "park")


def test_a_regression_is_explained_by_its_score(tmp_path: Path) -> None:
    path = tuned(tmp_path, "classifier", 1, {"name": "stsb", "pairs": False})
    (answer,) = cloze.load(path).batch("classify", ["the cat"], explain=True)
    assert answer["explanation"]["label"] is None
    assert answer["explanation"]["logit"] == pytest.approx(answer["score"], abs=1e-5)


@pytest.mark.parametrize(
    ("family", "task", "reason"),
    [
        ("bart", {}, "has a decoder"),
        ("elmo", {}, "reads characters"),
        (
            "bert",
            {"frozen": {"layers": "last", "lstm_size": 4, "lstm_layers": 1}},
            "frozen features",
        ),
    ],
)
def test_what_has_no_gradient_by_the_words_of_a_text_is_refused(
    family: str, task: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    config, task = tiny_config(family), {"name": "sst2", "labels": ["a", "b"], **task}
    state = tiny_model(family=family).state_dict()
    network = new_network(load_task("sst2"), config, state, task, 0.0, 1)
    path = str(tmp_path / "checkpoint")
    checkpoint.save_weights(
        path,
        model=config,
        state=network.state_dict(),
        tokenizer=write_tokenizer(tmp_path),
        heads={"classifier": {"num_labels": 2}},
        task={"max_length": 16, **task},
    )
    checkpoint.finalize(path)
    (answer,) = cloze.load(path).batch("classify", [TEXT])
    assert answer["label"] in ("a", "b")
    with pytest.raises(UsageError, match=f"{reason}; leave --explain out"):
        next(cloze.load(path).batch("classify", [TEXT], explain=True))


def test_zero_shot_scores_are_those_of_transformers(inference: str, tmp_path: Path) -> None:
    from transformers import AutoTokenizer, pipeline

    write_directory(checkpoint.load(inference), str(tmp_path / "hf"))
    pieces = AutoTokenizer.from_pretrained(str(tmp_path / "hf"))
    theirs = pipeline("zero-shot-classification", str(tmp_path / "hf"), tokenizer=pieces)
    names, template = ["cat", "park", "dog"], "this is a {}."
    expected = theirs([TEXT, PAIR], names, hypothesis_template=template)
    answers = cloze.load(inference).batch(
        "classify", [TEXT, PAIR], labels=",".join(names), hypothesis=template
    )
    for answer, other in zip(answers, expected, strict=True):
        assert [row["label"] for row in answer["predictions"]] == other["labels"]
        scores = [row["score"] for row in answer["predictions"]]
        assert scores == pytest.approx(other["scores"], abs=1e-5)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--labels", "cat"], "labels (cat) must be two or more"),
        (["--labels", "cat,dog", "--hypothesis", "about it"], "hypothesis (about it) has no {}"),
        (["--labels", "cat,dog", "--explain"], "exclude each other"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["classify", "/", "text", *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_a_model_without_entailment_is_refused(tmp_path: Path) -> None:
    path = tuned(tmp_path, "classifier", 2, {"name": "mrpc", "labels": ["0", "1"], "pairs": True})
    with pytest.raises(UsageError, match="has no label entailment"):
        next(cloze.load(path).batch("classify", ["text"], labels="a,b"))


def test_labels_for_a_model_of_single_texts_are_refused_by_what_is_missing(tmp_path: Path) -> None:
    task = {"name": "sst2", "labels": ["negative", "positive"], "pairs": False}
    path = tuned(tmp_path, "classifier", 2, task)
    with pytest.raises(UsageError, match=r"has no label entailment \(it has negative, positive\)"):
        next(cloze.load(path).batch("classify", ["A fine film."], labels="politics,sports"))
