"""Open questions: files of NQ-open, DrQA and DPR; several right answers, and patterns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cloze.core.errors import DataError, UsageError
from cloze.labs.seq2seq.text_to_text_task import Written
from cloze.model.tasks.table import load_task

PAIRS = [
    ("who wrote hamlet", ["William Shakespeare", "Shakespeare"]),
    ("where is köln", ['the "Rhineland"', "Germany"]),
]
LAYOUTS = {
    "NQ-open.dev.jsonl": lambda: "\n".join(
        json.dumps({"question": question, "answer": answers}) for question, answers in PAIRS
    ),
    "nq-dev.qa.csv": lambda: "\n".join(
        f"{question}\t{answers!r}" for question, answers in PAIRS
    ),
}  # fmt: skip


def scored(task: Any, examples: Any, texts: list[str]) -> dict[str, float]:
    scores: dict[str, float] = task.score(examples, [Written(text, False) for text in texts])
    return scores


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_has_the_same_questions_and_answers(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(LAYOUTS[name]() + "\n", encoding="utf-8")
    task = load_task("nq-open", {"files": {"dev": name}})
    found = task.read(str(tmp_path), "dev", None)
    assert list(found.texts) == [question for question, _ in PAIRS]
    assert list(found.answers) == [own for _, own in PAIRS]
    assert found.targets[0] == "William Shakespeare"


def test_questions_of_a_csv_are_quoted_and_answers_may_be_unknown(tmp_path: Path) -> None:
    """As EfficientQA's files without annotations; the Hub's web_questions has `answers`."""
    task = load_task("nq-open", {"files": {"dev": "dev.csv", "test": "test.jsonl"}})
    (tmp_path / "dev.csv").write_text('"who said ""no""?"\t"[\'Ann\', ""Bob\'s""]"\n')
    dev = task.read(str(tmp_path), "dev", None)
    assert (list(dev.texts), list(dev.answers)) == (['who said "no"?'], [["Ann", "Bob's"]])
    (tmp_path / "test.jsonl").write_text('{"question": "who"}\n{"question": "when"}\n')
    test = task.read(str(tmp_path), "test", None)
    assert (list(test.texts), test.labelled) == (["who", "when"], False)
    (tmp_path / "test.jsonl").write_text('{"question": "who", "answers": ["Ann"]}\n')
    assert list(task.read(str(tmp_path), "test", None).answers) == [["Ann"]]
    (tmp_path / "test.jsonl").write_text(
        '{"question": "who", "answer": ["Ann"]}\n{"question": "when", "answer": []}\n'
    )
    with pytest.raises(DataError, match=r"test\.jsonl, line 2 .* list of answers"):
        task.read(str(tmp_path), "test", None)


def test_any_answer_is_right_after_squads_normalization(tmp_path: Path) -> None:
    (tmp_path / "NQ-open.dev.jsonl").write_text(LAYOUTS["NQ-open.dev.jsonl"](), encoding="utf-8")
    task: Any = load_task("nq-open")
    found = task.read(str(tmp_path), "dev", None)
    assert task.metrics == ("exact_match", "f1")
    assert scored(task, found, ["shakespeare.", "The Rhineland!"]) == {"exact_match": 1, "f1": 1}
    # one of two words in common: 2 * 1 / (2 + 1)
    half = scored(task, found, ["Shakespeare Smith", "France"])
    assert half == {"exact_match": 0, "f1": pytest.approx((2 / 3) / 2)}
    assert task.baselines(found) == {"majority": 0.5}


def test_answers_of_trec_are_patterns(tmp_path: Path) -> None:
    rows = [
        {"question": "when", "answer": [r"19(45|46)"]},
        {"question": "who", "answer": [r"J\.? ?Doe", "John Doe"]},
        {"question": "what", "answer": ["a ("]},
    ]
    lines = "\n".join(map(json.dumps, rows)) + "\n"
    for split in ("train", "test"):
        (tmp_path / f"CuratedTrec-{split}.txt").write_text(lines)
    task: Any = load_task("trec", {"folds": 0})
    test = task.read(str(tmp_path), "test", None)
    assert scored(task, test, ["1946", "j Doe", "a ("])["exact_match"] == 1
    assert scored(task, test, ["in 1946", "Doe", "b"])["exact_match"] == 0
    train = task.read(str(tmp_path), "train", None)
    assert list(train.targets) == ["John Doe"]
    assert train.dropped == {"answer_is_a_pattern": 2}


@pytest.mark.parametrize(
    "line",
    [
        '{"question": "who"}',
        '{"question": "who", "answer": [1]}',
        '{"question": "who", "answer": [" "]}',
        '{"answer": ["x"]}',
        '{"question": "who", "answer": {"x": 1}}',
    ],
)
def test_a_file_of_another_form_is_one_sentence(line: str, tmp_path: Path) -> None:
    good = '{"question": "a", "answer": ["b"]}'
    (tmp_path / "NQ-open.dev.jsonl").write_text(f"{good}\n{line}\n")
    with pytest.raises(
        DataError,
        match=r"NQ-open.dev.jsonl, line 2(: the answers is empty| has no question with a list)",
    ):
        load_task("nq-open").read(str(tmp_path), "dev", None)


def test_its_metrics_are_its_own() -> None:
    with pytest.raises(UsageError, match="'f1'"):
        load_task("text-to-text", {"metrics": ["f1"]})
    assert load_task("webq", {"metrics": ["f1"]}).metrics == ("f1",)
