"""Answers of spans: the best over all windows, none where its odds are high, loss and files."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cloze.model.tasks.formats.squad import Answer, SquadExamples
from cloze.model.tasks.kinds.spans import (
    QuestionPredictions,
    Span,
    merge_windows,
    window_spans,
    write_official,
)
from cloze.model.tasks.span_windows import (
    BOUNDS,
    ENDS,
    STARTS,
    Windows,
    WindowSpans,
    finite_spans,
)
from cloze.pipeline.tokenizer.tokenizer import Tokenizer
from tests.model.tasks.test_spans import PASSAGE, asked, spans


@given(
    data=st.data(), length=st.integers(4, 14), longest=st.integers(1, 6), n_best=st.integers(1, 30)
)
def test_the_best_spans_are_the_best_of_all(
    data: st.DataObject, length: int, longest: int, n_best: int
) -> None:
    numbers = st.lists(st.integers(-40, 40), min_size=2 * length, max_size=2 * length, unique=True)
    logits = torch.tensor(data.draw(numbers), dtype=torch.float32).reshape(1, length, 2) / 7
    low, first, last, high = sorted(
        data.draw(st.lists(st.integers(1, length), min_size=4, max_size=4))
    )
    tensors = window_spans(logits, torch.tensor([[low, high, first, last]]), n_best, longest)
    found = finite_spans([tensor.numpy()[0] for tensor in tensors])
    every = sorted(
        (
            (-float(logits[0, start, 0] + logits[0, end, 1]), start, end)
            for start in range(first, last)
            for end in range(start, min(high, start + longest))
        ),
    )
    assert len(found.starts) == min(n_best, len(every))
    given = zip(
        found.starts.tolist(),
        found.ends.tolist(),
        found.start_logits,
        found.end_logits,
        strict=True,
    )
    for (start, end, start_logit, end_logit), (score, *_) in zip(given, every, strict=False):
        assert first <= start < last
        assert start <= end < min(high, start + longest)
        assert start_logit == logits[0, start, 0]
        assert end_logit == logits[0, end, 1]
        assert start_logit + end_logit == pytest.approx(-score, abs=1e-5)
    assert found.null == pytest.approx(logits[0, 0].tolist())


def test_windows_of_a_question_come_together(pieces: Tokenizer) -> None:
    passage = " ".join(["good film"] * 16)
    examples = asked(passage, "good film")
    samples = spans(stride=8, answer_length=4).encode(examples, pieces, 24)
    number = len(samples)
    assert number > 2

    def window(place: int, first: float, second: float, null: float) -> WindowSpans:
        begin = int(samples.targets[BOUNDS][0, 0])
        logits = np.array([first, second], dtype=np.float32)
        starts = np.array([begin + place, begin + place + 1])
        return WindowSpans(starts, starts, logits, logits, (null, null))

    answers = [window(0, 3, 1, -1.0), window(2, 5, 4, -2.0), *[window(4, 0, 0, 7.0)] * (number - 2)]
    (found,) = merge_windows(answers, examples, samples, n_best=2)
    begin = samples.offsets[0][samples.begin[1] + 2, 0]
    assert found.spans[0] == Span("good", begin, begin + 4, 5.0, 5.0)
    assert [span.text for span in found.spans] == ["good", "film"]  # a text once, at its best place
    assert found.null == (-2.0, -2.0)
    assert found.null_odds == -14.0


def test_no_answer_where_its_odds_are_above_the_threshold_and_ranks_agree() -> None:
    found = QuestionPredictions(
        spans=(Span("good", 0, 4, 2.0, 1.0), Span("film", 5, 9, 0.0, 0.0)), null=(2.0, 2.0)
    )
    assert found.null_odds == 1.0
    for threshold, first in ((None, None), (0.5, None), (1.0, "good"), (1.5, "good")):
        task = spans("squad2") if threshold is None else spans("squad2", null_threshold=threshold)
        assert task.texts([found]) == [first or ""]
        ranked = found.ranked(threshold or 0.0)
        assert len(ranked) == 3
        assert (ranked[0][0] and ranked[0][0].text) == first
        assert sum(probability for _, probability in ranked) == pytest.approx(1)
    assert spans("squad").texts([found]) == ["good"]
    best, second = found.ranked(None)
    assert best[1] / second[1] == pytest.approx(math.exp(3))


def test_the_threshold_that_is_best_on_dev_is_settled_unless_it_was_given(
    pieces: Tokenizer,
) -> None:
    found = [
        QuestionPredictions(spans=(Span("good", 0, 4, 0.0, 0.0),), null=(odds / 2, odds / 2))
        for odds in (-3.0, 0.5, 1.5, 4.0)
    ]  # the second one has an answer that odds of 0 would withhold
    answers = [(Answer("good", 0),), (Answer("good", 0),), (), ()]
    examples = SquadExamples(
        ids=list("abcd"),
        questions=["is"] * 4,
        passages=["good"],
        passage_of=[0] * 4,
        answers=answers,
    )
    task = spans("squad2")
    assert task.tuned_options(examples, found) == {"null_threshold": 0.5}
    figures = task.score(examples, found)
    assert (figures["f1"], figures["best_f1"], figures["best_f1_thresh"]) == (0.75, 1.0, 0.5)
    assert (figures["HasAns_f1"], figures["NoAns_f1"]) == (0.5, 1.0)
    assert spans("squad2", null_threshold=0.5).score(examples, found)["exact_match"] == 1.0
    assert spans("squad2", null_threshold=2.0).tuned_options(examples, found) == {}
    assert task.dataset_statistics(examples)["questions"] == {
        "answerable": 2,
        "unanswerable": 2,
        "mended_answers": 0,
    }
    assert set(task.detailed_metrics(examples, found, seed=1, resamples=9)["interval"]) == {
        "f1",
        "exact_match",
    }


def test_loss_is_the_mean_of_both_ends_over_the_sequence_and_padding_has_no_part(
    pieces: Tokenizer,
) -> None:
    task = spans()
    samples = task.encode(asked(PASSAGE, "lovely", question="very"), pieces, 32)
    more = task.encode(asked(PASSAGE, "good", question="very " * 9), pieces, 32)
    both = Windows(
        sequences=samples.sequences + more.sequences,
        second=np.concatenate([samples.second, more.second]),
        truncated=0,
        pad=samples.pad,
        dropped_counts={},
        targets={
            name: np.concatenate([samples.targets[name], more.targets[name]])
            for name in samples.targets
        },
        question=np.arange(2),
        begin=np.zeros(2, dtype=np.int64),
        offsets=samples.offsets,
    )
    batch = both.batch([0, 1])
    torch.manual_seed(1)
    logits = torch.randn(2, batch["input_ids"].shape[1], 2)
    loss = task.loss(logits, batch)
    expected = 0.0
    for row in range(2):
        real = int(batch["attention_mask"][row].sum())
        for column, name in enumerate((STARTS, ENDS)):
            expected -= (
                float(torch.log_softmax(logits[row, :real, column], dim=0)[batch[name][row]]) / 2
            )
    assert float(loss.total) == pytest.approx(expected, rel=1e-6)
    assert task.count(batch) == 2
    logits[0, both.lengths[0] :] = 99.0
    assert float(task.loss(logits, batch).total) == pytest.approx(expected, rel=1e-6)
    right = torch.zeros_like(logits)
    for row in range(2):
        right[row, batch[STARTS][row], 0] = right[row, batch[ENDS][row], 1] = 5.0
    assert task.loss(right, batch).correct == 2
    right[0, 0, 1] = 6.0
    assert task.loss(right, batch).correct == 1


def test_the_files_are_those_of_the_reference(tmp_path: Path, pieces: Tokenizer) -> None:
    examples = asked("good — “film”", "good", "film")
    found = [
        QuestionPredictions(
            spans=(Span("good", 0, 4, 2.0, 1.0), Span("“film", 7, 12, 0.0, 0.5)), null=(1.0, 0.0)
        ),
        QuestionPredictions(spans=(Span("film”", 8, 13, 1.0, 1.0),), null=(3.0, 3.0)),
    ]

    def written(name: str, *, null: bool) -> dict[str, object]:
        directory = tmp_path / f"{null}"
        directory.mkdir(exist_ok=True)
        write_official(str(directory), examples, ["good", ""], found, null=null)
        content: dict[str, object] = json.loads((directory / name).read_text(encoding="utf-8"))
        return content

    assert written("predictions.json", null=True) == {"q0": "good", "q1": ""}
    assert written("null_odds.json", null=True) == {"q0": -2.0, "q1": 4.0}
    first, second = written("nbest_predictions.json", null=True).values()
    assert [entry["text"] for entry in first] == ["good", "", "“film"]  # type: ignore[attr-defined]
    assert second[0] == {
        "text": "",
        "probability": pytest.approx(1 / (1 + math.exp(-4))),
        "start_logit": 3.0,
        "end_logit": 3.0,
    }  # type: ignore[index]
    assert [entry["text"] for entry in written("nbest_predictions.json", null=False)["q1"]] == [
        "film”"
    ]  # type: ignore[attr-defined]
    assert not (tmp_path / "False" / "null_odds.json").exists()
