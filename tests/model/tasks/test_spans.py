"""Windows on passages, and the answers found in them: nothing is lost that fits, and the best span
is the best there is.
"""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cloze.core.errors import UsageError
from cloze.model.tasks.formats.squad import Answer, SquadExamples
from cloze.model.tasks.kinds.spans import (
    QuestionPredictions,
    Spans,
)
from cloze.model.tasks.span_windows import (
    ALL,
    BOUNDS,
    ENDS,
    INSIDE,
    LONG,
    STARTS,
    TORN,
    Windows,
    windows_on,
)
from cloze.model.tasks.table import load_task
from cloze.pipeline import tokenizer
from cloze.pipeline.tokenizer.tokenizer import Tokenizer
from tests.slices import few

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
    few(
        [
            pytest.param(f"bert_base_{case}_vocab.txt", length, id=f"{case}-{length}")
            for case in ("uncased", "cased")
            for length in (256, 384)
        ],
        "cased-384",
    ),
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
