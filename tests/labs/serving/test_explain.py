"""Attributions add up, and labels that no training has seen are chosen by entailment."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn

import cloze
from cloze.core.errors import UsageError
from cloze.flows.cli import main
from cloze.labs.serving.explain import attribute
from cloze.model import checkpoint
from cloze.model.hub.write import write_directory
from cloze.model.tasks.heads import new_network
from cloze.model.tasks.table import load_task
from cloze.pipeline import tokenizer
from tests.labs.serving.test_classify import tuned
from tests.tiny_models import tiny_config, tiny_model, write_checkpoint, write_tokenizer

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
    with pytest.raises(UsageError, match=f"{reason}; ask another checkpoint"):
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


def adds_up(found: dict[str, Any]) -> None:
    """Completeness, and tokens that say the truth about their place."""
    change = found["logit"] - found["baseline"]
    total = sum(token["score"] for token in found["tokens"])
    assert abs(change) > 0.01
    assert total == pytest.approx(change, abs=1e-3 * max(1.0, abs(change)))


def shares_add_up(found: dict[str, Any]) -> None:
    sizes = [abs(token["score"]) for token in found["tokens"]]
    assert sum(found["context"].values()) == pytest.approx(1.0)
    assert sum(sizes) > 0


@pytest.mark.parametrize("truncate", ["longest", "context"])
def test_a_choice_is_explained_by_its_own_sequence(tmp_path: Path, truncate: str) -> None:
    options = {"name": "swag", "options": {"truncate": truncate}, "max_length": 12}
    path = tuned(tmp_path, "choice", 1, options)
    endings = ["a dog ran in the park " * 4, PAIR * 3]
    requests = [{"text": TEXT, "choices": own} for own in (endings, endings[::-1])]
    (answer,) = cloze.load(path).batch("classify", requests[:1], explain=True)
    requests.insert(0, {"text": PAIR, "choices": endings})
    *_, reversed_answer = cloze.load(path).batch("classify", requests, explain=True)
    found = answer["explanation"]
    assert reversed_answer["explanation"]["tokens"] == [
        {**token, "score": pytest.approx(token["score"], abs=1e-4)} for token in found["tokens"]
    ]
    if truncate == "context":  # which keeps the end of an ending
        assert found["tokens"][-1]["end"] == len(answer["text"].rstrip())
    adds_up(found)
    assert found["label"] == answer["text"]
    contents = {"text": TEXT, "choice": answer["text"]}
    assert {token["field"] for token in found["tokens"]} == {"text", "choice"}
    for token in found["tokens"]:
        assert contents[token["field"]][token["start"] : token["end"]] == token["text"]


@pytest.mark.parametrize("max_length", [8, 24])
def test_each_entity_says_which_side_of_its_words_mattered(tmp_path: Path, max_length: int) -> None:
    task = {"name": "tagging", "labels": ["B-A", "B-B", "B-C"], "max_length": max_length}
    path = tuned(tmp_path, "token_classifier", 3, task)
    text = f"walked walked {TEXT}, {PAIR}"
    (answer,) = cloze.load(path).batch("tag", [text], explain=True)
    assert answer["entities"]
    for entity in answer["entities"]:
        found = entity["explanation"]
        adds_up(found)
        shares_add_up(found)
        assert found["label"] == f"B-{entity['type']}"
        assert all(token["score"] for token in found["tokens"])  # each word has its own tokens
        for token in found["tokens"]:
            assert text[token["start"] : token["end"]] == token["text"]
        right = sum(abs(t["score"]) for t in found["tokens"] if t["start"] > entity["start"])
        total = sum(abs(t["score"]) for t in found["tokens"])
        assert found["context"]["right"] == pytest.approx(right / total)


@pytest.mark.parametrize("passage", [f"{PAIR} {TEXT}", f"{PAIR} {TEXT} " * 4])
def test_an_answer_is_explained_by_question_and_passage(tmp_path: Path, passage: str) -> None:
    path = tuned(tmp_path, "span", 2, {"name": "squad", "max_length": 24})
    request = {"question": "the dog in paris", "passage": passage}
    (answer,) = cloze.load(path).batch("answer", [request], explain=True)
    found = answer["explanation"]
    adds_up(found)
    shares_add_up(found)
    assert found["label"] == answer["answer"]
    for token in found["tokens"]:
        assert request[token["field"]][token["start"] : token["end"]] == token["text"]
    inside = [t for t in found["tokens"] if t["field"] == "passage" and t["end"] > answer["start"]]
    assert inside
    assert found["context"]["other"] > 0


@pytest.mark.parametrize("text", ["the [MASK] walked in the [MASK]", "[MASK]", "a 😀 [MASK] שלום"])
def test_a_masked_word_says_how_much_lies_left_and_right(tmp_path: Path, text: str) -> None:
    path = write_checkpoint(tmp_path / "mlm", tmp_path)
    (filled,) = cloze.load(path).batch("fill-mask", [text])
    (answer,) = cloze.load(path).batch("explain-mask", [text])
    seen: list[int] = []
    for mask, candidates in zip(answer["masks"], filled["predictions"], strict=True):
        found = mask["explanation"]
        assert mask["token"] == candidates[0]["token"]
        assert mask["score"] == pytest.approx(candidates[0]["score"], abs=1e-6)
        if text == "[MASK]":  # nothing but special tokens: nothing mattered
            assert found["logit"] == pytest.approx(found["baseline"])
            assert set(found["context"].values()) == {None}
        else:
            adds_up(found)
            shares_add_up(found)
            place = [t for t in found["tokens"] if t["text"] == "[MASK]"][len(seen)]["start"]
            seen.append(place)
            sizes = {token["start"]: abs(token["score"]) for token in found["tokens"]}
            left = sum(size for start, size in sizes.items() if start < place)
            assert found["context"]["left"] == pytest.approx(left / sum(sizes.values()))
    if len(answer["masks"]) == 2:
        assert answer["masks"][1]["explanation"]["context"]["right"] == 0
        assert 0 < answer["masks"][0]["explanation"]["context"]["right"] < 1


@pytest.mark.parametrize(("objective", "code"), [("mlm", 0), ("clm", 2)])
def test_masks_of_a_model_without_them_are_refused(
    tmp_path: Path, objective: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tuned(tmp_path, "classifier", 2, {"name": "sst2", "labels": ["a", "b"]})
    if objective == "mlm":
        path = write_checkpoint(tmp_path / "mlm", tmp_path)
    assert main(["explain-mask", path, "a [MASK]"]) == code
    assert ("masked_lm" in capsys.readouterr().err) == bool(code)


class Squares(nn.Module):
    """f(x) = sum over positions of |x|^2: its part at a position is |x|^2 - |baseline|^2."""

    def __init__(self, size: int) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.encoder = nn.Module()
        self.encoder.embeddings = nn.Module()
        self.encoder.embeddings.word = nn.Embedding(size, 4)

    def forward(self, batch: Any) -> torch.Tensor:
        embeddings: Any = self.get_submodule("encoder.embeddings.word")
        found: torch.Tensor = embeddings(batch["input_ids"]).square().sum(dim=(1, 2))
        return found


def test_scores_are_those_of_an_integral_by_hand(tmp_path: Path) -> None:
    """The gradient is 2x, so its integral from the baseline b to x is x^2 - b^2."""
    pieces = tokenizer.load(write_tokenizer(tmp_path))
    network = Squares(pieces.backend.get_vocab_size())
    special = pieces.special
    word = next(i for i in range(100) if i not in special.ids)
    ids = torch.tensor([special.cls, word, word + 1, special.sep])
    found = attribute(
        network,
        pieces,
        torch.device("cpu"),
        lambda count: cast(Any, {"input_ids": ids.expand(count, -1)}),
        lambda outputs: outputs,
    )
    weight = network.get_parameter("encoder.embeddings.word.weight").detach()
    by_hand = weight[ids].square().sum(dim=1) - weight[special.pad].square().sum()
    by_hand[[0, 3]] = 0.0  # special tokens stay
    assert found.scores == pytest.approx(by_hand.double().numpy(), abs=1e-5)


def test_the_model_of_a_mask_is_loaded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, read = write_checkpoint(tmp_path / "checkpoint", tmp_path / "scratch"), list[str]()
    verify = checkpoint.checkpoint_files.verify
    monkeypatch.setattr(
        checkpoint.checkpoint_files,
        "verify",
        lambda directory, **how: [read.append(directory), verify(directory, **how)][1],
    )
    assert cloze.load(path).batch("explain-mask", ["a [MASK]"])
    assert len(read) == 1
