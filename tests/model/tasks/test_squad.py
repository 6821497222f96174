"""SQuAD's files and metrics: what is read, what is refused and how, and that scores are those of
the official programs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloze.core.errors import DataError, UsageError
from cloze.model.tasks.formats.squad import Answer, counts, read_squad
from cloze.model.tasks.metrics import (
    answer_f1,
    best_threshold,
    exact_match,
    normalize_answer,
    question_scores,
)
from cloze.model.tasks.table import load_task

PASSAGE = "The tower was built in 1889 by Gustave Eiffel. The tower is 330 metres tall."
OFFICIAL = json.loads((Path(__file__).parent / "squad_official.json").read_text(encoding="utf-8"))


def question(identity: str = "q1", *answers: tuple[str, int], **more: Any) -> dict[str, Any]:
    given = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": identity, "question": "When was it built?", "answers": given, **more}


def article(*questions: dict[str, Any], context: str = PASSAGE) -> dict[str, Any]:
    return {"title": "Eiffel Tower", "paragraphs": [{"context": context, "qas": list(questions)}]}


def write(path: Path, *articles: Any) -> str:
    path.write_text(json.dumps({"version": "1.1", "data": list(articles)}), encoding="utf-8")
    return str(path)


def test_both_versions_are_read(tmp_path: Path) -> None:
    asked = [
        question("q1", ("1889", 23), ("in 1889", 20)),
        question("q2", is_impossible=True),
        question("q3"),
    ]
    path = write(
        tmp_path / "dev.json", article(*asked), article(question("q4", ("red", 0)), context="red")
    )
    found = read_squad(path, unanswerable=True)
    assert list(found.ids) == ["q1", "q2", "q3", "q4"]
    assert found.passages == [PASSAGE, "red"]
    assert found.passage_of == [0, 0, 0, 1]
    assert found.answers == [
        (Answer("1889", 23), Answer("in 1889", 20)),
        (),
        (),
        (Answer("red", 0),),
    ]
    assert found.labelled
    assert counts(found) == {"answerable": 2, "unanswerable": 2}
    assert not found.dropped
    answerable = read_squad(path, unanswerable=False)
    assert list(answerable.ids) == ["q1", "q4"]
    assert answerable.passage_of == [0, 1]
    assert answerable.dropped == {"unanswerable": 2}


def test_the_form_of_tables_is_read_too(tmp_path: Path) -> None:
    rows = [
        {
            "id": 7,
            "question": "When?",
            "context": PASSAGE,
            "answers": {"text": ["1889"], "answer_start": [23]},
        },
        {
            "id": 8,
            "question": "Who?",
            "context": PASSAGE,
            "answers": {"text": [], "answer_start": []},
        },
    ]
    found = read_squad(write(tmp_path / "a.json", *rows), unanswerable=True)
    assert (found.ids, found.passages, found.passage_of) == (["7", "8"], [PASSAGE], [0, 0])
    assert found.answers == [(Answer("1889", 23),), ()]
    rows[1]["answers"]["text"] = ["Eiffel"]
    with pytest.raises(
        DataError, match=r"b\.json, question '8': 1 texts of answers and 0 of answer_start"
    ):
        read_squad(write(tmp_path / "b.json", *rows), unanswerable=True)


def test_a_bom_crlf_and_nuls_do_no_harm(tmp_path: Path) -> None:
    text = json.dumps(
        {"data": [article(question("q1", ("1889", 24)), context="\0" + PASSAGE)]}, indent=1
    )
    (tmp_path / "a.json").write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    assert read_squad(str(tmp_path / "a.json"), unanswerable=False).answers == [
        (Answer("1889", 24),)
    ]


def test_blanks_around_an_answer_are_no_part_of_it(tmp_path: Path) -> None:
    found = read_squad(
        write(tmp_path / "a.json", article(question("q1", (" 1889 ", 22)))), unanswerable=False
    )
    assert found.answers == [(Answer("1889", 23),)]


@pytest.mark.parametrize(("start", "found"), [(22, 23), (0, 23), (100, 23), (-5, 23), (123, 23)])
def test_an_answer_near_its_start_is_mended_and_counted(
    tmp_path: Path, start: int, found: int
) -> None:
    read = read_squad(
        write(tmp_path / "a.json", article(question("q1", ("1889", start)))), unanswerable=False
    )
    assert read.answers == [(Answer("1889", found),)]
    assert read.relocated == 1


def test_of_several_places_the_nearest_is_taken(tmp_path: Path) -> None:
    for start, place in ((1, 0), (40, 47), (24, 47), (23, 0), (0, 0), (47, 47)):
        read = read_squad(
            write(tmp_path / "a.json", article(question("q1", ("The tower", start)))),
            unanswerable=False,
        )
        assert read.answers == [(Answer("The tower", place),)], start
        assert read.relocated == (start != place)


def test_an_answer_that_is_nowhere_near_is_told_with_its_question(tmp_path: Path) -> None:
    far = PASSAGE + " " * 200
    for asked, context in ((("1899", 23), PASSAGE), (("1889", 124), far)):
        with pytest.raises(
            DataError,
            match=rf"a\.json, question 'q1', answer 1: '{asked[0]}' is not at answer_start",
        ):
            read_squad(
                write(tmp_path / "a.json", article(question("q1", asked), context=context)),
                unanswerable=False,
            )


def test_a_file_that_says_nothing_of_answers_is_one_to_predict(tmp_path: Path) -> None:
    for number, asked in enumerate(
        ({"id": "q1", "question": "When?"}, {"id": "q1", "question": "When?", "answers": []})
    ):
        found = read_squad(write(tmp_path / f"{number}.json", article(asked)), unanswerable=False)
        assert not found.labelled
        assert len(found) == 1
        assert counts(found) == {}


BAD: dict[str, tuple[Any, str]] = {
    "empty": (b"", r"x\.json is empty"),
    "blank": (b" \r\n", r"x\.json is empty"),
    "truncated": (
        b'{"data": [\n{"title": "A", "para',
        r"x\.json, line 2, column \d+: not valid JSON .*; use a complete file",
    ),
    "cut between values": (
        b'{"data": [{"title": "A"}\n',
        r"x\.json, line \d, column \d+: not valid JSON .*ends too early",
    ),
    "NULs": (b"\0\0\0\0", r"x\.json, line 1, column 1: not valid JSON"),
    "latin-1": (
        '{"data": "é"}'.encode("latin-1"),
        r"x\.json: byte 11 is not UTF-8; convert the file",
    ),
    "deep": (b"[" * 100_000, r"x\.json"),
    "a list": ([1], r"x\.json is list where SQuAD's form has an object"),
    "a table of another task": ({"rows": []}, r"x\.json has no 'data' \(it has rows\)"),
    "no articles": ({"data": []}, r"x\.json has no questions"),
    "article": ({"data": ["A"]}, r"x\.json, article 1 is str"),
    "paragraphs": ({"data": [{"title": "A"}]}, r"x\.json, article 1 \('A'\) has no 'paragraphs'"),
    "context": (
        {"data": [{"title": "A", "paragraphs": [{"qas": []}]}]},
        r"article 1 \('A'\), paragraph 1 has no 'context'",
    ),
    "context's type": (
        {"data": [article(question(), context=["a"])]},
        r"paragraph 1: context is list and must be str",
    ),
    "id": ({"data": [article({"question": "When?"})]}, r"paragraph 1, question 1 has no 'id'"),
    "question": ({"data": [article({"id": "q1"})]}, r"x\.json, question 'q1' has no 'question'"),
    "blank question": (
        {"data": [article(question() | {"question": " "})]},
        r"question 'q1': the question is empty; remove it",
    ),
    "answers": (
        {"data": [article(question() | {"answers": "1889"})]},
        r"question 'q1': answers is str and must be list or dict",
    ),
    "text": (
        {"data": [article(question() | {"answers": [{"answer_start": 1}]})]},
        r"'q1', answer 1 has no 'text'",
    ),
    "start": (
        {"data": [article(question() | {"answers": [{"text": "1889"}]})]},
        r"'q1', answer 1 has no 'answer_start'",
    ),
    "start's type": (
        {"data": [article(question("q1", ("1889", "23")))]},
        r"answer 1: answer_start is str and must be int",
    ),  # type: ignore[arg-type]
    "blank answer": (
        {"data": [article(question("q1", (" ", 3)))]},
        r"'q1', answer 1: the text is empty",
    ),
    "is_impossible": (
        {"data": [article(question(is_impossible="no"))]},
        r"'q1': is_impossible \('no'\) must be true or false",
    ),
    "twice": (
        {"data": [article(question("q1", ("1889", 23)), question("q1"))]},
        r"question 'q1' occurs twice",
    ),
    "some unknown": (
        {"data": [article(question("q1", ("1889", 23)), {"id": "q2", "question": "Who?"})]},
        r"question 'q2' has no answers, unlike others",
    ),
    "unanswerable": (
        {"data": [article(question(is_impossible=True))]},
        r"x\.json has unanswerable questions only; use .*squad2",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_in_one_sentence(tmp_path: Path, name: str) -> None:
    content, message = BAD[name]
    path = tmp_path / "x.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    with pytest.raises(DataError, match=message) as raised:
        read_squad(str(path), unanswerable=False)
    assert "\n" not in str(raised.value)


def test_the_task_finds_its_files(tmp_path: Path) -> None:
    (tmp_path / "squad").mkdir()
    write(tmp_path / "squad" / "dev-v1.1.json", article(question("one", ("1889", 23))))
    write(tmp_path / "squad" / "dev-v2.0.json", article(question("two", is_impossible=True)))
    for path in (tmp_path, tmp_path / "squad"):
        assert load_task("squad").read(str(path), "dev", None).ids == ["one"]
        assert load_task("squad2").read(str(path), "dev", None).ids == ["two"]
    named = load_task("squad", {"files": {"dev": "mine.json"}})
    write(tmp_path / "mine.json", article(question("mine", ("1889", 23))))
    assert named.read(str(tmp_path), "dev", None).ids == ["mine"]
    with pytest.raises(
        DataError,
        match=(
            r"train-v1\.1\.json does not exist; the task reads a directory with train-v1\.1\.json"
        ),
    ):
        load_task("squad").read(str(tmp_path), "train", None)
    with pytest.raises(UsageError, match=r"limit_per_class \(3\) means nothing to task squad"):
        load_task("squad").read(str(tmp_path), "dev", 3)


@pytest.mark.parametrize("version", ["1.1", "2.0"])
def test_scores_are_those_of_the_official_programs(version: str) -> None:
    """`squad_official.json` holds random predictions and what evaluate-v1.1.py and evaluate-v2.0.py
    made of them, in percent.
    """
    official = OFFICIAL[version]
    asked = official["questions"]
    exacts, f1s = question_scores(
        [one["prediction"] for one in asked],
        [one["answers"] for one in asked],
        unanswerable=version == "2.0",
    )
    np.testing.assert_allclose(100 * exacts, [one["exact"] for one in asked], atol=1e-9)
    np.testing.assert_allclose(100 * f1s, [one["f1"] for one in asked], atol=1e-9)
    if version == "1.1":
        assert 100 * exacts.mean() == pytest.approx(official["exact_match"])
        assert 100 * f1s.mean() == pytest.approx(official["f1"])
        return
    odds = np.array([one["odds"] for one in asked])
    has = np.array([bool(one["answers"]) for one in asked])
    never_empty = question_scores(
        [one["prediction"] or "filler" for one in asked],
        [one["answers"] for one in asked],
        unanswerable=True,
    )
    for name, scores in zip(("exact", "f1"), never_empty, strict=True):
        best, threshold = best_threshold(scores, odds, has, has & False)
        assert 100 * best == pytest.approx(official["best"][f"best_{name}"])
        assert threshold == official["best"][f"best_{name}_thresh"]


@given(
    st.lists(
        st.tuples(st.sampled_from(["", "the", "cat"]), st.booleans(), st.integers(-99, 99)),
        min_size=1,
        unique_by=lambda one: one[2],
    )
)
def test_thresholds_are_found_as_evaluate_v2_finds_them(drawn: list[tuple[str, bool, int]]) -> None:
    """Its walk over the questions by rising odds: a wrong text costs 1, an empty one nothing."""
    texts, has, odds = map(list, zip(*drawn, strict=True))
    answers = [["cat"] if answerable else [] for answerable in has]
    _, scores = question_scores(texts, answers, unanswerable=True)
    score = best = float(sum(not answerable for answerable in has))
    for number in np.argsort(odds):
        score += scores[number] if has[number] else -1.0 if texts[number] else 0.0
        best = max(best, score)
    empty = np.array([not text for text in texts])
    found, _ = best_threshold(scores, np.array(odds, float), np.array(has), empty)
    assert found == pytest.approx(best / len(drawn))


def test_rules_of_comparison() -> None:
    assert normalize_answer(" The  U.S.-based, an\tAnt\u3000eater ") == "usbased ant eater"
    assert exact_match("the Cat!", "a cat") == 1
    assert exact_match("cats", "cat") == 0
    assert answer_f1("red red cat", "red cat sat") == pytest.approx(2 / 3)
    assert answer_f1("", "") == answer_f1("the", "a") == 1
    assert answer_f1("", "", empty_matches=False) == answer_f1("the", "a", empty_matches=False) == 0
    assert answer_f1("", "cat") == answer_f1("cat", "the") == 0
    assert [float(scores[0]) for scores in question_scores([""], [[]], unanswerable=True)] == [1, 1]
    assert [float(scores[0]) for scores in question_scores(["cat"], [[]], unanswerable=True)] == [
        0,
        0,
    ]


def test_a_threshold_leaves_questions_of_equal_odds_together() -> None:
    scores, has = np.array([1.0, 0.0, 1.0]), np.array([True, False, True])
    assert best_threshold(scores, np.array([0.0, 0.0, 5.0]), has, ~has & False) == (2 / 3, 5.0)
    assert best_threshold(scores, np.array([0.0, 1.0, 0.5]), has, ~has & False) == (1.0, 0.5)


def test_where_nothing_should_be_answered_the_threshold_lies_below_all_odds() -> None:
    odds = np.array([0.5, -2.0])
    best, threshold = best_threshold(np.zeros(2), odds, *np.zeros((2, 2), dtype=bool))
    assert best == 1.0
    assert (odds > threshold).all()
    assert best_threshold(np.zeros(0), np.zeros(0), *np.zeros((2, 0), dtype=bool)) == (0.0, 0.0)


def test_a_misplaced_answer_is_dropped_and_counted_where_it_is_trained_on(tmp_path: Path) -> None:
    far = "x " * 200 + PASSAGE
    asked = [question("q1", ("1889", 0)), question("q2", ("1889", 423), ("Nil", 3)), question("q3")]
    for split in ("train", "dev"):
        write(tmp_path / f"{split}.json", article(*asked, context=far))
    task = load_task("squad2")
    train = task.read(str(tmp_path), "train", None)
    assert (train.ids, train.dropped, train.misplaced) == (["q2", "q3"], {"misplaced_answer": 1}, 2)
    assert train.answers == [(Answer("1889", 423),), ()]
    assert task.dataset_statistics(train)["questions"]["misplaced_answers"] == 2
    with pytest.raises(DataError, match=r"'q1', answer 1: .*drop such .* options\.irregular=drop"):
        task.read(str(tmp_path), "dev", None)
    lax = load_task("squad2", {"irregular": "drop"})
    assert lax.read(str(tmp_path), "dev", None).ids == train.ids
    write(tmp_path / "train.json", article(asked[0], context=far))
    with pytest.raises(DataError, match="only 1 whose answers are not in their passage"):
        task.read(str(tmp_path), "train", None)


@pytest.mark.parametrize(
    ("context", "text", "start", "found"),
    [
        ("the  big\nred dog", "big red", 5, Answer("big\nred", 5)),
        ("(Paris)", " Paris", 0, Answer("Paris", 1)),
        ("in Paris", "Paris ", 2, Answer("Paris", 3)),
        ("in Paris", "Paris", 5, Answer("Paris", 3)),
        ("aaa", "a", 1, Answer("a", 1)),
        ("a.b", ".", 0, Answer(".", 1)),
        ("to be", "be", -1, Answer("be", 3)),
    ],
)
def test_an_answer_beside_its_place_is_found(
    context: str, text: str, start: int, found: Answer, tmp_path: Path
) -> None:
    path = write(tmp_path / "dev.json", article(question("q1", (text, start)), context=context))
    assert read_squad(path, unanswerable=False).answers == [(found,)]
