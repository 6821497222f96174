"""Questions on passages as stages: trained, evaluated again, and asked about passages
of one's own.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from cloze.core.errors import DataError, UsageError
from cloze.labs.serving.predictors import QuestionAnsweringPipeline
from cloze.model import checkpoint
from tests.model.tasks.conftest import BAD, GOOD, NEUTRAL
from tests.model.tasks.stages import evaluate, finetune, settings

CHOSEN = {
    "task": "squad2",
    "options": {"answer_length": 4},
    "max_length": 24,
    "baselines": False,
    "epochs": 5,
}


def content(
    count: int, *, seed: int, unanswerable: bool = True, labelled: bool = True
) -> dict[str, Any]:
    """Questions for the good word of a passage of 26 words; of one in three it has none, but a bad
    one.
    """
    draw = random.Random(seed)
    paragraphs = []
    for number in range(count):
        words = [draw.choice(NEUTRAL) for _ in range(26)]
        none = unanswerable and number % 3 == 0
        place = draw.randrange(26)
        words[place] = draw.choice(BAD if none else GOOD)
        start = len(" ".join([*words[:place], ""]))
        qa: dict[str, Any] = {"id": f"{seed}-{number}", "question": "is the film"}
        if labelled:
            qa |= {
                "is_impossible": none,
                "answers": [] if none else [{"text": words[place], "answer_start": start}],
            }
        paragraphs.append({"context": " ".join(words), "qas": [qa]})
    return {"version": "v2.0", "data": [{"title": "films", "paragraphs": paragraphs}]}


def write(path: Path, what: dict[str, Any]) -> None:
    path.write_text(json.dumps(what), encoding="utf-8")


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("films")
    write(directory / "train-v2.0.json", content(180, seed=1))
    write(directory / "dev-v2.0.json", content(45, seed=2))
    write(directory / "test-v2.0.json", content(9, seed=3, labelled=False))
    return directory


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory, pretrained: str, films: Path) -> Path:
    out = tmp_path_factory.mktemp("tuned") / "squad2"
    finetune(settings(films, **CHOSEN), pretrained, out)
    return out


def test_it_learns_and_its_checkpoint_keeps_the_threshold(tuned: Path) -> None:
    metrics = read(tuned / "metrics.json")["metrics"]
    assert metrics["f1"] == metrics["best_f1"] > 0.9
    assert metrics["HasAns_f1"] > 0.8
    assert metrics["NoAns_f1"] > 0.8
    loaded = checkpoint.load(str(tuned))
    assert loaded.heads == {"span": {}}
    assert loaded.state["span.weight"].shape == (2, 32)
    assert loaded.task is not None
    assert loaded.task["options"] == {
        "answer_length": 4,
        "null_threshold": metrics["best_f1_thresh"],
    }


def test_one_of_several_tasks_keeps_its_threshold(
    pretrained: str, films: Path, sentiment: Path, tmp_path: Path
) -> None:
    tasks = {
        "films": {"task": "squad2", "data": str(films), "options": {"answer_length": 4}},
        "sst2": {"data": str(sentiment)},
    }
    config = settings(films, **{**CHOSEN, "task": "multitask", "tasks": tasks, "options": {}})
    metrics = finetune(config, pretrained, tmp_path / "both").manifest.summary["metrics"]
    threshold = metrics["films_best_f1_thresh"]
    assert threshold != 0.0
    assert metrics["films_f1"] == metrics["films_best_f1"]
    task = checkpoint.load(str(tmp_path / "both")).task or {}
    assert task["options"] == {}
    assert task["tasks"]["films"]["options"] == {"answer_length": 4, "null_threshold": threshold}
    assert task["tasks"]["sst2"]["options"] == {}
    alone = evaluate(tmp_path / "both", tmp_path / "alone", data=str(films), task="films")
    assert alone.as_json()["metrics"]["f1"] == metrics["films_f1"]


def test_an_evaluation_says_the_same_and_writes_the_same(
    tuned: Path, films: Path, tmp_path: Path
) -> None:
    result = evaluate(tuned, tmp_path / "eval", data=str(films)).as_json()
    assert result["metrics"] == read(tuned / "metrics.json")["metrics"]
    assert result["examples"] == 45
    low, high = result["interval"]["f1"]
    assert low <= result["metrics"]["f1"] <= high
    for name in ("predictions.json", "nbest_predictions.json", "null_odds.json"):
        assert (tmp_path / "eval" / name).read_bytes() == (tuned / name).read_bytes()
    predictions, odds = read(tuned / "predictions.json"), read(tuned / "null_odds.json")
    assert list(predictions) == [f"2-{number}" for number in range(45)]
    threshold = result["metrics"]["best_f1_thresh"]
    assert {name for name, text in predictions.items() if not text} == {
        name for name, odd in odds.items() if odd > threshold
    }
    file = evaluate(
        tuned, tmp_path / "file", data=str(films / "dev-v2.0.json"), options={"null_threshold": 1e9}
    ).as_json()
    assert file["metrics"]["NoAns_f1"] == 0.0
    assert file["metrics"]["best_f1"] == result["metrics"]["best_f1"]


def test_a_file_without_answers_is_predicted_and_not_scored(
    tuned: Path, films: Path, tmp_path: Path
) -> None:
    result = evaluate(tuned, tmp_path / "eval", data=str(films), split="test").as_json()
    assert result["metrics"] == {}
    assert len(read(tmp_path / "eval" / "predictions.json")) == result["examples"] == 9


def test_unanswerable_questions_alone_are_trained_on_and_scored(
    pretrained: str, tmp_path: Path
) -> None:
    only = content(20, seed=4)
    only["data"][0]["paragraphs"] = only["data"][0]["paragraphs"][::3]
    for split in ("train", "dev"):
        write(tmp_path / f"{split}-v2.0.json", only)
    result = finetune(settings(tmp_path, **{**CHOSEN, "epochs": 2}), pretrained, tmp_path / "out")
    metrics = result.as_json()["metrics"]
    assert metrics["f1"] == metrics["exact_match"] == metrics["NoAns_f1"] == 1.0
    assert "HasAns_f1" not in metrics
    with pytest.raises(
        DataError, match=r"train-v2\.0\.json has unanswerable questions only; use the task squad2"
    ):
        files = {split: f"{split}-v2.0.json" for split in ("train", "dev")}
        finetune(
            settings(tmp_path, **{**CHOSEN, "task": "squad", "options": {"files": files}}),
            pretrained,
            tmp_path / "v1",
        )


def test_questions_without_answers_are_no_part_of_the_first_version(
    pretrained: str, films: Path, tmp_path: Path
) -> None:
    options = {
        "answer_length": 4,
        "files": {split: f"{split}-v2.0.json" for split in ("train", "dev")},
    }
    chosen = {**CHOSEN, "task": "squad", "options": options, "epochs": 1}
    result = finetune(settings(films, **chosen), pretrained, tmp_path / "out")
    counters = result.manifest.counters
    assert (counters["kept/train"], counters["kept/dev"]) == (120, 30)
    assert counters["dropped/unanswerable"] == 75
    assert list(result.as_json()["metrics"]) == ["f1", "exact_match"]
    assert not (tmp_path / "out" / "null_odds.json").exists()
    assert all(read(tmp_path / "out" / "predictions.json").values())


def test_what_no_window_can_give_is_in_the_manifest(pretrained: str, tmp_path: Path) -> None:
    for split in ("train", "dev"):
        write(tmp_path / f"{split}-v2.0.json", content(12, seed=5))
    changed = content(12, seed=5)
    changed["data"][0]["paragraphs"][1]["qas"][0]["answers"][0] |= {"text": "ood"}
    changed["data"][0]["paragraphs"][1]["context"] = "the film is good"
    changed["data"][0]["paragraphs"][1]["qas"][0]["answers"][0]["answer_start"] = 13
    write(tmp_path / "train-v2.0.json", changed)
    counters = finetune(
        settings(tmp_path, **{**CHOSEN, "epochs": 1}), pretrained, tmp_path / "out"
    ).manifest.counters
    assert (
        counters["lost/train/inside_a_piece"]
        == counters["lost/train/all_answers_of_a_question"]
        == 1
    )
    assert not any(name.startswith("lost/dev") for name in counters)


def test_answers_are_ranked_and_say_where_they_stand(tuned: Path, films: Path) -> None:
    answerer = QuestionAnsweringPipeline(str(tuned))
    dev, predictions = read(films / "dev-v2.0.json"), read(tuned / "predictions.json")
    asked = [(p["qas"][0]["question"], p["context"]) for p in dev["data"][0]["paragraphs"]]
    found = answerer.answer_batch(asked, top_k=3)
    assert [ranked[0]["answer"] for ranked in found] == list(predictions.values())
    for (question, passage), ranked in zip(asked, found, strict=True):
        assert 3 <= len(ranked) <= 4
        assert (
            sum(answer["start"] is None for answer in ranked) == 1
        )  # "no answer" is always reported
        scores = [answer["score"] for answer in ranked]
        assert scores == sorted(scores, reverse=True)
        assert all(
            passage[a["start"] : a["end"]] == a["answer"] for a in ranked if a["start"] is not None
        )
        assert answerer.answer(question, passage, top_k=3)[0]["answer"] == ranked[0]["answer"]
    filler = " ".join(random.Random(6).choices(NEUTRAL, k=2000))
    best = answerer.answer("is the film", f"{filler} lovely {filler}")
    assert {answer["answer"]: answer for answer in best}["lovely"]["start"] == len(filler) + 1
    assert answerer.answer("is the film", " ")[0] == {
        "answer": "",
        "score": 1.0,
        "start": None,
        "end": None,
    }
    assert answerer.answer_batch([]) == []
    with pytest.raises(UsageError, match="question 1 is empty"):
        answerer.answer(" ", "good")


def test_a_checkpoint_that_answers_nothing_is_refused(pretrained: str) -> None:
    with pytest.raises(UsageError, match=r"was pretrained, not fine-tuned"):
        QuestionAnsweringPipeline(pretrained)
