"""Windows of questions and passages: [CLS] question [SEP] part of the passage [SEP].

The rules are those of `convert_examples_to_features` in google-research/bert's run_squad.py. A long
passage has overlapping windows; one without the complete answer is trained to point at [CLS]. A
token counts in the window that shows most context on both sides. Unlike in that program, windows
move closer for a short `max_length`, so that one window contains the complete answer.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cloze.core.errors import UsageError
from cloze.core.ragged import I64
from cloze.model.tasks.encode import TextSamples
from cloze.model.tasks.formats.squad import Answer, SquadExamples
from cloze.model.tasks.options import SpanOptions
from cloze.model.tasks.task import Samples
from cloze.pipeline.tokenizer.tokenizer import Tokenizer

BOUNDS, STARTS, ENDS = "bounds", "start_positions", "end_positions"  # batch entries
# Reasons why an answer cannot be given.
INSIDE, LONG = "inside_a_piece", "over_answer_length"
TORN, NOTHING = "outside_windows", "without_pieces"
ALL = "all_answers_of_a_question"
LENGTH_BONUS = 0.01  # bonus per token of window length, which decides ties of context


class WindowSpans(NamedTuple):
    """Best spans of a window, best first: positions in the sequence, logits, and [CLS] logits."""

    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    start_logits: npt.NDArray[np.float32]
    end_logits: npt.NDArray[np.float32]
    null: tuple[float, float]


def finite_spans(rows: Sequence[npt.NDArray[Any]]) -> WindowSpans:
    """Return the spans of a window from its rows of `window_spans`."""
    real = np.isfinite(rows[2])
    start_null, end_null = rows[4].tolist()
    return WindowSpans._make([*(row[real] for row in rows[:4]), (start_null, end_null)])


def real_logits(outputs: Tensor, batch: Mapping[str, Any]) -> Tensor:
    """Return logits [B, L, 2] with the lowest number at padding."""
    lowest = torch.finfo(outputs.dtype).min
    return outputs.masked_fill(~batch["attention_mask"][:, :, None], lowest)


class PassageWindow(NamedTuple):
    """Window of a passage: tokens [begin, end), of which [first, last) count in this window."""

    begin: int
    end: int
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows(TextSamples):
    """Samples that are windows, with these int64 targets.

    - `bounds` [n, 4]: start and end positions of the passage, and of the part that counts.
    - `start_positions`, `end_positions` [n]: first and last token of the answer, 0 if not in the
      window.

    Attributes:
        question: int64 [n], question number of each window, ascending.
        begin: int64 [n], number of each window's first token in its passage.
        offsets: start and end characters of each passage's tokens, int64 [tokens, 2].
    """

    question: I64
    begin: I64
    offsets: Sequence[I64]

    def check_equal(self, others: Sequence[Samples]) -> None:
        """Raise UsageError if another model of an ensemble reads other windows or tokens."""
        for other in others:
            assert isinstance(other, Windows)
            if len(other) != len(self) or not all(
                map(np.array_equal, other.sequences, self.sequences)
            ):
                raise UsageError(
                    "the models of checkpoint read the questions in different windows of tokens, "
                    "whose logits have no mean; name models with one vocabulary and max_length"
                )


# Questions on one passage share their windows, and so do passages of one length.
@functools.lru_cache(maxsize=4096)
def windows_on(pieces: int, room: int, step: int) -> tuple[PassageWindow, ...]:
    """Return the windows of a passage with `pieces` tokens; one empty window for an empty passage.

    Args:
        room: maximum tokens of a window.
        step: distance of window starts.
    """
    begins = [0]
    while begins[-1] + room < pieces:
        begins.append(begins[-1] + step)
    ends = [min(begin + room, pieces) for begin in begins]
    low, high, positions = np.array(begins)[:, None], np.array(ends)[:, None], np.arange(pieces)
    context = np.minimum(positions - low, high - 1 - positions)
    scores = np.where(context >= 0, context + LENGTH_BONUS * (high - low), -np.inf)
    owner = scores.argmax(axis=0)  # the first on ties; the tokens of a window are contiguous
    first, last = (
        np.searchsorted(owner, np.arange(len(begins)), side=side) for side in ("left", "right")
    )
    return tuple(map(PassageWindow, begins, ends, first.tolist(), last.tolist()))


def pieces_of(answer: Answer, offsets: I64) -> tuple[int, int, bool]:
    """Return the first and last token of an answer, and whether they contain nothing else.

    Args:
        offsets: int64 [tokens, 2], see `Windows`.

    Returns:
        The last token is before the first if no token overlaps the answer.
    """
    end = answer.start + len(answer.text)
    first = int(np.searchsorted(offsets[:, 1], answer.start, side="right"))
    last = int(np.searchsorted(offsets[:, 0], end, side="left")) - 1
    if first > last:
        return first, last, False
    return first, last, bool(offsets[first, 0] == answer.start and offsets[last, 1] == end)


def encode_questions(
    examples: SquadExamples, tokenizer: Tokenizer, max_length: int, options: SpanOptions
) -> Windows:
    """Return the windows of all questions, in order.

    Of several answers, training uses the first that can be given exactly, or else the first.
    """
    special, frame = tokenizer.special, tokenizer.pair_frame
    passages = tokenizer.encode_with_offsets(examples.passages)
    questions = tokenizer.encode_batch(examples.questions)
    longest_question = min(
        options.question_length, (max_length - tokenizer.frame_size(pair=True)) // 2
    )
    sequences: list[npt.NDArray[np.int32]] = []
    numbers: list[tuple[int, ...]] = []  # question, begin, bounds, start and end of the answer
    lost: Counter[str] = Counter()
    for number, passage in enumerate(examples.passage_of):
        ids, offsets = passages[passage]
        head = [*special.begins, *questions[number][:longest_question], *frame.separator]
        room = max_length - len(head) - 1
        windows = windows_on(
            # Windows overlap by two answer lengths, if that leaves a quarter of `room`.
            len(ids),
            room,
            min(options.stride, max(room - 2 * options.answer_length, room // 4, 1)),
        )
        span: tuple[int, int] | None = None
        if examples.answers is not None:
            span = _trained(examples.answers[number], offsets, windows, options.answer_length, lost)
        for window in windows:
            shift = len(head) - window.begin
            own = [*head, *ids[window.begin : window.end], special.sep]
            sequences.append(np.array(own, dtype=np.int32))
            complete = span is not None and window.begin <= span[0] and span[1] < window.end
            start, end = (position + shift for position in span) if span and complete else (0, 0)
            bounds = len(head), *(position + shift for position in window[1:])
            numbers.append((number, window.begin, *bounds, start, end))
    columns = np.array(numbers, dtype=np.int64).reshape(-1, 8)
    targets = {BOUNDS: columns[:, 2:6]}
    # The question is global in a Longformer, [CLS] included (Beltagy et al. 2020, section 6).
    questions_end = columns[:, 2] - len(frame.separator)
    if examples.answers is not None:
        targets |= {STARTS: columns[:, 6], ENDS: columns[:, 7]}
    return Windows(
        sequences=tuple(sequences),
        second=columns[:, 2],
        truncated=sum(len(tokens) > longest_question for tokens in questions),
        pad=tokenizer.special.pad,
        typed=frame.typed,
        targets=targets,
        dropped_counts=dict(+lost),
        global_tokens=np.stack([0 * questions_end, questions_end], axis=1),
        question=columns[:, 0],
        begin=columns[:, 1],
        offsets=[offsets for _, offsets in passages],
    )


def _trained(
    answers: Sequence[Answer],
    offsets: I64,
    windows: Sequence[PassageWindow],
    longest: int,
    lost: Counter[str],
) -> tuple[int, int] | None:
    """Return the answer's tokens for training, and count impossible answers by reason."""
    if not answers:
        return None
    exact: tuple[int, int] | None = None
    fallback: tuple[int, int] | None = None
    for answer in dict.fromkeys(answers):
        begin, end, aligned = pieces_of(answer, offsets)
        reason = next(_reasons(begin, end, aligned, windows, longest), None)
        if reason is not None:
            lost[reason] += 1
        elif exact is None:
            exact = begin, end
        if fallback is None and begin <= end:
            fallback = begin, end
    lost[ALL] += exact is None
    return exact or fallback


def _reasons(
    begin: int, end: int, whole: bool, windows: Sequence[PassageWindow], longest: int
) -> Iterator[str]:
    """Iterate over the reasons why an answer with these tokens cannot be given."""
    if begin > end:
        yield NOTHING
    if not whole:
        yield INSIDE
    if end - begin + 1 > longest:
        yield LONG
    if not any(window.first <= begin < window.last and end < window.end for window in windows):
        yield TORN
