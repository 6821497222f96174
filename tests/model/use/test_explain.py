"""Attributions add up, and labels that no training has seen are chosen by entailment."""

from __future__ import annotations

from pathlib import Path

import pytest

import cloze
from cloze.core.errors import UsageError
from cloze.flows.cli import main
from cloze.model import checkpoint
from cloze.model.hub.write import write_directory
from tests.model.use.test_classify import tuned

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
    assert main(["classify", "/nowhere", "text", *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_a_model_without_entailment_is_refused(tmp_path: Path) -> None:
    path = tuned(tmp_path, "classifier", 2, {"name": "mrpc", "labels": ["0", "1"], "pairs": True})
    with pytest.raises(UsageError, match="has no label entailment"):
        next(cloze.load(path).batch("classify", ["text"], labels="a,b"))
