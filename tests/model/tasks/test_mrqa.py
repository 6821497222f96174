"""MRQA's files: what is trained on, what counts as right, and TriviaQA before SQuAD."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from cloze.core.errors import DataError
from cloze.model import checkpoint
from cloze.model.tasks.formats.squad import Answer, read_squad
from cloze.model.tasks.kinds.spans import QuestionPredictions, Span
from cloze.model.tasks.table import load_task
from tests.model.tasks.stages import evaluate, finetune, settings
from tests.model.tasks.test_spans_stages import content, read

CONTEXT = "[DOC] [TLE] Paris [PAR] The capital of France is Paris, the City of Light."
HEADER = {"header": {"dataset": "TriviaQA-web", "mrqa_split": "train"}}


def question(identity: str, aliases: list[str], *spans: tuple[int, int]) -> dict[str, Any]:
    """A question as its authors write it: inclusive spans, and a detected text in any case."""
    detected = [{"text": "PARIS", "char_spans": [list(s) for s in spans], "token_spans": [[3, 3]]}]
    return {
        "qid": identity,
        "question": "What is the capital of France?",
        "question_tokens": [["What", 0]],
        "detected_answers": detected,
        "answers": aliases,
    }


def write(path: Path, *lines: dict[str, Any]) -> str:
    text = "".join(f"{json.dumps(line)}\n" for line in (HEADER, *lines)).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return str(path)


def passage(*questions: dict[str, Any], context: str = CONTEXT) -> dict[str, Any]:
    return {"id": "", "context": context, "context_tokens": [["[DOC]", 0]], "qas": list(questions)}


@pytest.mark.parametrize("name", ["dev.jsonl.gz", "dev.jsonl"])
def test_spans_are_trained_on_and_every_alias_counts(name: str, tmp_path: Path) -> None:
    aliases = ["Paris", "City of Light", "Lutetia"]
    asked = question("a1", aliases, (12, 16), (49, 53)), question("a2", [], (49, 53))
    path = write(tmp_path / name, passage(*asked))
    found = read_squad(path, unanswerable=False)
    assert found.answers == [(Answer("Paris", 12), Answer("Paris", 49)), (Answer("Paris", 49),)]
    assert found.references() == [aliases, ["Paris"]]
    predicted = [
        QuestionPredictions(spans=(Span(text, 0, 1, 1.0, 1.0),), null=(0.0, 0.0))
        for text in ("the city of light", "Lutetia")
    ]
    task = load_task("triviaqa")
    assert task.score(found, predicted) == {"f1": 0.5, "exact_match": 0.5}


def test_files_of_the_download_scripts_are_found(tmp_path: Path) -> None:
    for task, name in (("triviaqa", "TriviaQA-web"), ("newsqa", "NewsQA")):
        for split in ("train", "dev"):
            row = question(f"{task}-{split}", ["Paris"], (12, 16))
            write(tmp_path / "mrqa" / split / f"{name}.jsonl.gz", passage(row))
            found = load_task(task).read(str(tmp_path), split, None)
            assert list(found.ids) == [f"{task}-{split}"]
    with pytest.raises(DataError, match=r"train/SearchQA\.jsonl\.gz does not exist"):
        load_task("searchqa").read(str(tmp_path), "train", None)
    named = {"files": {"dev": "dev/NewsQA.jsonl.gz"}, "folder": "mrqa"}
    assert len(load_task("squad", named).read(str(tmp_path), "dev", None)) == 1


def test_a_text_beside_its_span_is_mended_and_counted(tmp_path: Path) -> None:
    asked = question("a1", ["Paris"], (12, 16)), question("a2", ["Paris"], (29, 35))
    asked[0]["detected_answers"][0]["text"] = "City of Light"
    asked[1]["detected_answers"][0]["text"] = "France"
    found = read_squad(write(tmp_path / "a.jsonl", passage(*asked)), unanswerable=False)
    light, france = CONTEXT.index("City of Light"), CONTEXT.index("France")
    assert found.answers == [(Answer("City of Light", light),), (Answer("France", france),)]
    assert found.relocated == 2
    asked[0]["detected_answers"][0]["text"] = "Lutetia"  # nowhere in the passage
    found = read_squad(write(tmp_path / "b.jsonl", passage(asked[0])), unanswerable=False)
    assert (found.answers, found.relocated) == ([(Answer("Paris", 12),)], 1)


def test_a_passage_may_have_a_header(tmp_path: Path) -> None:
    asked = passage(question("a1", ["Paris"], (12, 16))) | {"header": "Cities"}
    assert len(read_squad(write(tmp_path / "a.jsonl", asked), unanswerable=False)) == 1


def test_questions_to_be_predicted_have_no_answers(tmp_path: Path) -> None:
    asked = {"qid": "x", "question": "Where?"}
    assert not read_squad(
        write(tmp_path / "test.jsonl", passage(asked)), unanswerable=False
    ).labelled


def test_bad_files_are_refused_with_their_line(tmp_path: Path) -> None:
    for spans, message in ((((70, 99),), "char_span"), (((5, 3),), "char_span")):
        path = write(tmp_path / "dev.jsonl", passage(question("q", ["x"], *spans)))
        with pytest.raises(DataError, match=rf"line 2, question 'q': the {message} .* correct"):
            read_squad(path, unanswerable=False)
    (tmp_path / "dev.jsonl.gz").write_bytes(gzip.compress(json.dumps(HEADER).encode())[:-9])
    with pytest.raises(DataError, match="is no complete gzip file"):
        read_squad(str(tmp_path / "dev.jsonl.gz"), unanswerable=False)


def as_mrqa(squad: dict[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for paragraph in squad["data"][0]["paragraphs"]:
        (asked,) = paragraph["qas"]
        (answer,) = asked["answers"]
        begin = answer["answer_start"]
        span = begin, begin + len(answer["text"]) - 1
        rows.append(
            passage(question(asked["id"], [answer["text"]], span), context=paragraph["context"])
        )
    return rows


def test_triviaqa_before_squad(pretrained: str, tmp_path: Path) -> None:
    """BERT's "Sgl.+TriviaQA": the same encoder is trained on the one and then on the other."""
    for split, count, seed in (("train", 120, 1), ("dev", 30, 2)):
        rows = as_mrqa(content(count, seed=seed, unanswerable=False))
        write(tmp_path / "mrqa" / split / "TriviaQA-web.jsonl.gz", *rows)
        squad = content(30, seed=seed + 2, unanswerable=False)
        (tmp_path / f"{split}-v1.1.json").write_text(json.dumps(squad), encoding="utf-8")
    chosen = {"options": {"answer_length": 4}, "max_length": 24, "baselines": False}
    first = finetune(
        settings(tmp_path, task="triviaqa", **chosen), pretrained, tmp_path / "triviaqa"
    ).as_json()
    assert first["metrics"]["f1"] > 0.9
    second = finetune(
        settings(tmp_path, task="squad", **chosen, epochs=1),
        str(tmp_path / "triviaqa" / "checkpoint"),
        tmp_path / "squad",
    ).as_json()
    alone = finetune(
        settings(tmp_path, task="squad", **chosen, epochs=1), pretrained, tmp_path / "alone"
    ).as_json()
    assert second["metrics"]["f1"] > alone["metrics"]["f1"] + 0.2
    assert len(read(tmp_path / "squad" / "predictions.json")) == 30
    loaded = checkpoint.load(str(tmp_path / "squad"))
    assert loaded.task is not None
    assert loaded.task["name"] == "squad"
    same = evaluate(tmp_path / "triviaqa", tmp_path / "eval", data=str(tmp_path)).as_json()
    assert same["metrics"] == pytest.approx(first["metrics"])
