"""Windows on passages, and the answers found in them: nothing is lost that fits, and the best span
is the best there is.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cloze.core.errors import UsageError
from cloze.model.tasks.formats.squad import Answer, SquadExamples
from cloze.model.tasks.kinds.span_windows import (
    ALL,
    BOUNDS,
    ENDS,
    INSIDE,
    LONG,
    STARTS,
    TORN,
    Windows,
    WindowSpans,
    finite_spans,
    windows_on,
)
from cloze.model.tasks.kinds.spans import (
    QuestionPredictions,
    Span,
    Spans,
    merge_windows,
    window_spans,
    write_official,
)
from cloze.model.tasks.table import load_task
from cloze.pipeline import tokenizer
from cloze.pipeline.tokenizer.tokenizer import Tokenizer

PASSAGE = "the film is good , the plot is very lovely and the cast is warm ."


def spans(name: str = "squad", **options: object) -> Spans:
    task = load_task(name, options)
    assert isinstance(task, Spans)
    return task


def asked(
    passage: str, *answers: str | tuple[str, ...], question: str = "very good"
) -> SquadExamples:
    """A question for each of the answers, which are looked for from the front."""
    given = [(one,) if isinstance(one, str) else one for one in answers]
    return SquadExamples(
        ids=[f"q{number}" for number in range(len(given))],
        questions=[question] * len(given),
        passages=[passage],
        passage_of=[0] * len(given),
        answers=[tuple(Answer(text, passage.index(text)) for text in texts) for texts in given],
    )


def oracle(samples: Windows, *, strength: float = 9.0) -> list[torch.Tensor]:
    """What a network says that knows it all: [L, 2] a window."""
    found = []
    for length, start, end in zip(
        samples.lengths, samples.targets[STARTS], samples.targets[ENDS], strict=True
    ):
        logits = torch.zeros(int(length), 2)
        logits[start, 0] = logits[end, 1] = strength
        found.append(logits)
    return found


def decoded(
    task: Spans, logits: list[torch.Tensor], examples: SquadExamples, samples: Windows
) -> list[QuestionPredictions]:
    answers = []
    for at in range(0, len(logits), 64):
        padded = torch.nn.utils.rnn.pad_sequence(logits[at : at + 64], batch_first=True)
        tensors = task.select_outputs(
            padded, {BOUNDS: torch.from_numpy(samples.targets[BOUNDS][at : at + 64])}
        )
        answers += zip(*(tensor.numpy() for tensor in tensors), strict=True)
    return list(task.decode(answers, examples, samples))


@given(pieces=st.integers(0, 200), room=st.integers(1, 90), step=st.integers(1, 90))
def test_windows_are_those_of_the_reference_and_every_piece_counts_once(
    pieces: int, room: int, step: int
) -> None:
    found = windows_on(pieces, room, min(step, room))
    begins, begin = [], 0
    while True:  # as convert_examples_to_features in run_squad.py
        length = min(pieces - begin, room)
        begins.append((begin, begin + length))
        if begin + length >= pieces:
            break
        begin += min(length, min(step, room))
    assert [(window.begin, window.end) for window in found] == begins
    for place in range(pieces):
        best, chosen = -1.0, -1
        for number, (low, high) in enumerate(begins):  # as _check_is_max_context
            if (
                low <= place < high
                and (score := min(place - low, high - 1 - place) + 0.01 * (high - low)) > best
            ):
                best, chosen = score, number
        assert [
            number for number, window in enumerate(found) if window.first <= place < window.last
        ] == [chosen]


def test_a_sample_is_question_and_passage_and_says_where_the_answer_is(pieces: Tokenizer) -> None:
    examples = asked(PASSAGE, "very lovely", ("warm .", "warm"))
    samples = spans().encode(examples, pieces, 32)
    assert len(samples) == 2
    names = [pieces.backend.id_to_token(int(token)) for token in samples.sequences[0]]
    assert names == ["[CLS]", "very", "good", "[SEP]", *PASSAGE.split(), "[SEP]"]
    for number, words in enumerate((["very", "lovely"], ["warm", "."])):
        assert names[samples.targets[STARTS][number] : samples.targets[ENDS][number] + 1] == words
    batch = samples.batch([1, 0])
    assert batch["token_type_ids"].tolist() == [[0] * 4 + [1] * 17] * 2
    assert batch[BOUNDS].tolist() == [[4, 20, 4, 20]] * 2
    assert samples.dropped_counts == {}
    assert samples.truncated == 0


def test_a_long_passage_is_read_in_windows_and_those_without_the_answer_point_at_the_first_piece(
    pieces: Tokenizer,
) -> None:
    passage = " ".join(["the film is"] * 20 + ["good"] + ["and"] * 30)
    samples = spans(stride=8, answer_length=4).encode(asked(passage, "good"), pieces, 24)
    assert len(samples) > 5
    held = [
        number
        for number, sequence in enumerate(samples.sequences)
        if pieces.vocab_size and 5 in sequence[4:]
    ]
    assert held == [number for number, start in enumerate(samples.targets[STARTS]) if start]
    assert 1 < len(held) < len(samples)
    assert samples.lengths.max() <= 24
    assert all(samples.sequences[number][samples.targets[STARTS][number]] == 5 for number in held)
    (found,) = decoded(spans(), oracle(samples), asked(passage, "good"), samples)
    assert found.text == "good"


def test_what_cannot_be_given_is_counted_with_its_reason(pieces: Tokenizer) -> None:
    task = spans(answer_length=3)
    assert (
        task.encode(asked("the films is good", "film"), pieces, 32).dropped_counts == {}
    )  # film and ##s are pieces of their own
    samples = task.encode(asked("the theatre is good", ("atre", "good"), "atre"), pieces, 32)
    assert samples.dropped_counts == {INSIDE: 2, ALL: 1}
    assert samples.targets[STARTS].tolist() == [
        7,
        5,
    ]  # trained on the answer that can be given, else on what holds it
    assert task.encode(asked(PASSAGE, "the plot is very"), pieces, 32).dropped_counts == {
        LONG: 1,
        ALL: 1,
    }
    torn = spans(answer_length=30).encode(
        asked(PASSAGE, "film is good , the plot is very lovely and the"), pieces, 16
    )
    assert torn.dropped_counts == {TORN: 1, ALL: 1}


def test_a_long_question_is_cut_and_counted_and_leaves_room(pieces: Tokenizer) -> None:
    examples = asked(PASSAGE, "lovely", question="very " * 40)
    for length, kept in ((32, 14), (200, 40)):
        samples = spans().encode(examples, pieces, length)
        assert samples.targets[BOUNDS][0, 0] == kept + 2
        assert samples.truncated == (kept < 40)
    assert spans(question_length=7).encode(examples, pieces, 200).targets[BOUNDS][0, 0] == 9
    with pytest.raises(
        UsageError, match=r"max_length \(8\) leaves no room for question and passage; use 16"
    ):
        spans().encode(examples, pieces, 8)


def test_an_empty_passage_has_no_answer(pieces: Tokenizer) -> None:
    examples = SquadExamples(
        ids=["a"], questions=["good"], passages=[" "], passage_of=[0], answers=None
    )
    for name in ("squad", "squad2"):
        task = spans(name)
        samples = task.encode(examples, pieces, 32)
        assert len(samples) == 1
        (found,) = decoded(task, [torch.zeros(4, 2)], examples, samples)
        assert task.texts([found]) == [""]
        assert found.ranked(None) == [(None, 1.0)]


@pytest.mark.parametrize(
    ("vocabulary", "length"),
    [
        ("bert_base_uncased_vocab.txt", 384),
        ("bert_base_cased_vocab.txt", 384),
        pytest.param("bert_base_uncased_vocab.txt", 256, marks=pytest.mark.soak),
        pytest.param("bert_base_cased_vocab.txt", 256, marks=pytest.mark.soak),
    ],
)
def test_every_answer_of_squad_that_fits_is_recovered_from_a_window(
    shared_data: Path, vocabulary: str, length: int
) -> None:
    """Of all 8,922 questions, each answer once: its very text at its very place, or a reason why
    not.
    """
    wordpiece = tokenizer.load(str(shared_data / "vocab" / vocabulary))
    task, questions, answers, recovered = spans(), 0, 0, 0
    lost: Counter[str] = Counter()
    for split in ("train", "dev"):
        examples = task.read(str(shared_data / "tasks" / "squad"), split, None)
        samples = task.encode(examples, wordpiece, length)
        assert samples.lengths.max() <= length
        assert examples.answers is not None
        windows = np.searchsorted(samples.question, np.arange(len(examples) + 1))
        for number, (low, high) in enumerate(itertools.pairwise(windows.tolist())):
            passage = examples.passages[examples.passage_of[number]]
            offsets = samples.offsets[examples.passage_of[number]]
            wanted = {
                (answer.start, answer.start + len(answer.text)): answer.text
                for answer in examples.answers[number]
            }
            found = set()
            for window in range(low, high):
                text_from, text_to, first, last = samples.targets[BOUNDS][window].tolist()
                shift = int(samples.begin[window]) - text_from
                starts = {
                    begin: place
                    for place, begin in enumerate(
                        offsets[first + shift : last + shift, 0].tolist(), start=first
                    )
                }
                ends = {
                    end: place
                    for place, end in enumerate(
                        offsets[text_from + shift : text_to + shift, 1].tolist(), start=text_from
                    )
                }
                for (begin, end), text in wanted.items():
                    if (
                        begin in starts
                        and end in ends
                        and starts[begin] <= ends[end] < starts[begin] + 30
                    ):
                        span = offsets[[starts[begin] + shift, ends[end] + shift]]
                        assert passage[span[0, 0] : span[1, 1]] == text
                        found.add((begin, end))
            recovered += len(found)
            answers += len(wanted)
        questions += len(examples)
        lost.update(samples.dropped_counts)
        if (
            split == "dev"
        ):  # and from logits that know the answer it comes back, by the decoding that scores use
            perfect = decoded(task, oracle(samples), examples, samples)
            pairs = zip(perfect, examples.answers, strict=True)
            assert (
                sum(one.text not in {answer.text for answer in given} for one, given in pairs)
                <= samples.dropped_counts[ALL]
            )
    without = lost.pop(ALL)
    assert questions == 8922
    assert answers - recovered == lost.total() < 0.01 * answers
    assert without < 0.003 * questions
    assert lost.keys() <= {INSIDE, LONG, TORN}
    assert lost[TORN] <= (length < 384)


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
