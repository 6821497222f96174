"""Texts get their labels, scores and endings: as the evaluation gives them, ranked, from Python and
from the command line.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas
import pytest
import torch
from click.testing import CliRunner

from cloze.core import storage
from cloze.core.errors import DataError, UsageError
from cloze.flows.cli import cloze
from cloze.labs.serving.classify import Classify, TextClassificationPipeline
from cloze.labs.serving.verbs import ClassifyConfig
from cloze.model import checkpoint
from cloze.model.pyfunc import _load_pyfunc
from cloze.model.use.request import Request
from tests.tiny_models import (
    tiny_config,
    tiny_model,
    write_checkpoint,
    write_classifier,
    write_tokenizer,
)

TEXTS = ["the cat sat", "a dog ran in the capital of paris", "paris"]


def tuned(base: Path, head: str, outputs: int, task: dict[str, Any]) -> str:
    """A fine-tuned checkpoint of random weights."""
    torch.manual_seed(5)
    state = {
        name: tensor
        for name, tensor in tiny_model().state_dict().items()
        if name.startswith(("encoder.", "pooler."))
    }
    state |= {f"{head}.weight": torch.randn(outputs, 16), f"{head}.bias": torch.randn(outputs)}
    heads: dict[str, Any] = {head: {"num_labels": outputs} if head == "classifier" else {}}
    path = str(base / "checkpoint")
    checkpoint.save_weights(
        path,
        model=tiny_config(),
        state=state,
        tokenizer=write_tokenizer(base),
        heads=heads,
        task={"max_length": 16, **task},
    )
    checkpoint.finalize(path)
    return path


@pytest.fixture(scope="module")
def labels(tmp_path_factory: pytest.TempPathFactory) -> str:
    base = tmp_path_factory.mktemp("labels")
    return write_classifier(base / "checkpoint", base, ("negative", "neutral", "positive"))


@pytest.fixture(scope="module")
def likeness(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tuned(tmp_path_factory.mktemp("stsb"), "classifier", 1, {"name": "stsb"})


@pytest.fixture(scope="module")
def choosing(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tuned(tmp_path_factory.mktemp("swag"), "choice", 1, {"name": "swag"})


def answered(
    path: str, asked: list[dict[str, Any]], top_k: int | None = None
) -> list[dict[str, Any]]:
    """What the verb says in this process."""
    verb = Classify(path, ClassifyConfig(file="x", top_k=top_k))
    read = [verb.read(Request(index=0, fields=fields, where="x, line 1")) for fields in asked]
    return verb.answer(verb.encode(read))


def told(*arguments: str) -> list[dict[str, Any]]:
    done = CliRunner().invoke(cloze, ["classify", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_labels_are_ranked_and_their_probabilities_add_up(labels: str) -> None:
    found = TextClassificationPipeline(labels).classify(TEXTS)
    for ranked in found:
        assert {entry["label"] for entry in ranked} == {"negative", "neutral", "positive"}
        scores = [entry["score"] for entry in ranked]
        assert scores == sorted(scores, reverse=True)
        assert sum(scores) == pytest.approx(1.0, abs=1e-5)
    assert TextClassificationPipeline(labels).classify(TEXTS, top_k=1) == [
        ranked[:1] for ranked in found
    ]
    assert TextClassificationPipeline(labels).classify([]) == []
    alone = [TextClassificationPipeline(labels).classify([text])[0] for text in TEXTS]
    assert [[entry["label"] for entry in ranked] for ranked in alone] == [
        [e["label"] for e in ranked] for ranked in found
    ]


def test_what_does_not_belong_to_the_task_is_refused(
    labels: str, likeness: str, choosing: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="task sst2 .* reads single texts; leave the pairs out"):
        TextClassificationPipeline(labels).classify(["a"], ["b"])
    with pytest.raises(
        UsageError, match="task stsb .* reads pairs of texts; give each text its pair"
    ):
        TextClassificationPipeline(likeness).score(["a"])
    with pytest.raises(UsageError, match="2 texts and 1 pairs do not belong together"):
        TextClassificationPipeline(likeness).score(["a", "b"], ["c"])
    with pytest.raises(
        UsageError, match="task stsb .* gives scores, not labels; use score instead of classify"
    ):
        TextClassificationPipeline(likeness).classify(["a"], ["b"])
    with pytest.raises(UsageError, match="two or more choices"):
        TextClassificationPipeline(choosing).choose(["a"], [["b"]])
    pretrained = write_checkpoint(tmp_path / "checkpoint", tmp_path)
    with pytest.raises(UsageError, match="was pretrained, not fine-tuned"):
        TextClassificationPipeline(pretrained)


def test_endings_of_any_number_are_ranked(choosing: str) -> None:
    choices = [
        ["sat", "ran in paris"],
        ["a", "b", "the cat sat on the"],
        ["paris", "a dog", "the", "of the capital"],
    ]
    found = TextClassificationPipeline(choosing).choose(TEXTS, choices)
    for ranked, given in zip(found, choices, strict=True):
        assert sorted(entry["choice"] for entry in ranked) == list(range(len(given)))
        assert all(entry["text"] == given[entry["choice"]] for entry in ranked)
        assert sum(entry["score"] for entry in ranked) == pytest.approx(1.0, abs=1e-5)
        assert ranked[0]["score"] == max(entry["score"] for entry in ranked)


def test_overlong_texts_are_cut_and_counted(labels: str) -> None:
    classifier = TextClassificationPipeline(labels)
    long = "the cat sat " * 30
    assert classifier.classify([long])[0] != classifier.classify(["the"])[0]
    assert classifier.truncated == 1


def test_the_verb_answers_as_python_does(labels: str, likeness: str) -> None:
    expected = TextClassificationPipeline(labels).classify(TEXTS)
    for asked, ranked in zip(
        answered(labels, [{"text": text} for text in TEXTS], top_k=2), expected, strict=True
    ):
        assert [entry["label"] for entry in asked["predictions"]] == [
            entry["label"] for entry in ranked[:2]
        ]
        assert (asked["label"], asked["score"]) == (
            asked["predictions"][0]["label"],
            asked["predictions"][0]["score"],
        )
    (found,) = answered(likeness, [{"text": "the cat", "pair": "a dog"}])
    assert found == {"score": TextClassificationPipeline(likeness).score(["the cat"], ["a dog"])[0]}


def test_a_model_of_which_nobody_said_it_reads_both(tmp_path: Path) -> None:
    """Such as one that others trained."""
    path = tuned(tmp_path, "classifier", 2, {"name": "classification", "labels": ["no", "yes"]})
    asked = [{"text": "paris"}, {"text": "the cat", "pair": "a dog"}, {"text": "the cat"}]
    found = answered(path, asked)
    classifier = TextClassificationPipeline(path)
    assert classifier.pairs is None
    for fields, answer in zip(asked, found, strict=True):
        (alone,) = classifier.classify(
            [fields["text"]], [fields["pair"]] if "pair" in fields else None
        )
        assert [entry["label"] for entry in answer["predictions"]] == [
            entry["label"] for entry in alone
        ]
        assert answer["score"] == pytest.approx(alone[0]["score"], abs=1e-6)
    assert found[1]["score"] != found[2]["score"]


@pytest.mark.usefixtures("warm")
def test_the_command_line_hands_everything_on(likeness: str, choosing: str, tmp_path: Path) -> None:
    (tmp_path / "pairs.jsonl").write_text(
        '{"text": "the cat", "pair": "a dog", "id": "x"}\n{"text": "paris"}\n'
    )
    (line, other) = told(likeness, "--file", str(tmp_path / "pairs.jsonl"), "--pair", "the cat")
    scores = TextClassificationPipeline(likeness).score(["the cat", "paris"], ["a dog", "the cat"])
    assert (line["id"], line["index"], line["score"]) == (
        "x",
        0,
        pytest.approx(scores[0], abs=1e-6),
    )
    assert (other["index"], other["score"]) == (1, pytest.approx(scores[1], abs=1e-6))
    out = "memory://classified/answers.jsonl"
    told(likeness, "--file", str(tmp_path / "pairs.jsonl"), "--pair", "the cat", "--out", out)
    assert [json.loads(text)["index"] for text in storage.read_text(out).splitlines()] == [0, 1]
    (best,) = told(
        choosing, "--text", "the cat", "--choice", "sat", "--choice", "ran in paris", "--json"
    )
    expected = TextClassificationPipeline(choosing).choose(["the cat"], [["sat", "ran in paris"]])[
        0
    ]
    assert [entry["text"] for entry in best["predictions"]] == [entry["text"] for entry in expected]
    assert (best["choice"], best["text"]) == (expected[0]["choice"], expected[0]["text"])


@pytest.mark.parametrize(
    ("which", "line", "fault"),
    [
        ("labels", {"text": ""}, "an empty 'text'"),
        ("labels", {"text": "a", "pair": "b"}, "has a 'pair', and the model reads single texts"),
        (
            "labels",
            {"text": "a", "choices": ["b", "c"]},
            "has 'choices', and the model chooses none",
        ),
        ("likeness", {"text": "a"}, "has no 'pair', and the model reads pairs"),
        ("choosing", {"text": "a"}, "has no 'choices', among which the model chooses"),
        ("choosing", {"text": "a", "choices": ["b"]}, "no list of two or more texts"),
        ("choosing", {"text": "a", "choices": ["b", 3]}, "no list of two or more texts"),
        ("choosing", {"text": "a", "choices": "b, c"}, "no list of two or more texts"),
    ],
)
def test_a_bad_line_is_told_by_its_number(
    which: str, line: dict[str, Any], fault: str, request: pytest.FixtureRequest
) -> None:
    verb = Classify(request.getfixturevalue(which), ClassifyConfig(file="x"))
    with pytest.raises(DataError, match=f"x, line 3 .*{fault}"):
        verb.read(Request(index=2, fields=line, where="x, line 3"))


def test_a_registered_model_answers_alike(labels: str, likeness: str, choosing: str) -> None:
    found = _load_pyfunc(labels).predict(TEXTS)
    expected = TextClassificationPipeline(labels).classify(TEXTS)
    assert list(found["label"]) == [ranked[0]["label"] for ranked in expected]
    pairs = pandas.DataFrame({"text": ["the cat"], "text_pair": ["a dog"]})
    assert list(_load_pyfunc(likeness).predict(pairs)["score"]) == TextClassificationPipeline(
        likeness
    ).score(["the cat"], ["a dog"])
    choices = pandas.DataFrame({"text": ["the cat"], "choices": [["sat", "ran in paris"]]})
    best = TextClassificationPipeline(choosing).choose(["the cat"], [["sat", "ran in paris"]])[0][0]
    assert _load_pyfunc(choosing).predict(choices).to_dict("records") == [
        {"label": best["text"], "score": best["score"]}
    ]
    with pytest.raises(UsageError, match="reads the column choices"):
        _load_pyfunc(choosing).predict(["the cat"])
