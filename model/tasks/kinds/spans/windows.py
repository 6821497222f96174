"""From questions and passages to windows: [CLS] question [SEP] part of the passage [SEP], and where the answer stands in each.

The rules are those of `convert_examples_to_features` in google-research/bert's run_squad.py. A passage that is too long is read in
windows that overlap; one that does not hold the whole answer is trained to point at [CLS], which means: not here. A piece
stands in several windows, and an answer begins there in the one that shows most on both sides of it. Other than in that program
windows come closer where `max_length` is short, so that this window holds the whole answer.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from model.tasks.encode import TextSamples
from model.tasks.formats.squad import Answer, Questions
from model.tasks.options import SpanOptions
from model.tasks.task import Ints
from pipeline.tokenizer.tokenizer import Tokenizer

BOUNDS, STARTS, ENDS = "bounds", "start_positions", "end_positions"  # of a batch
INSIDE, LONG, TORN, NOTHING = "inside_a_piece", "over_answer_length", "outside_windows", "without_pieces"
ALL = "all_answers_of_a_question"
FRAME = 3  # [CLS], and [SEP] twice
LENGTH_BONUS = 0.01  # a piece in the window that is longer, of two that show as much around it


class Window(NamedTuple):
    """A part of a passage, in numbers of its pieces: [begin, end), and [first, last) of them, which count here."""

    begin: int
    end: int
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows(TextSamples):
    """A sample is a window; its targets, int64 each, are

    - `bounds` [n, 4]: positions in the sequence, from and to: of the passage, and of what counts here,
    - `start_positions`, `end_positions` [n]: the answer's first and last piece, 0 where the window does not hold it.

    Attributes:
        question: the number of each window's question, ascending, [n].
        begin: the number of each window's first piece in its passage, [n].
        offsets: of each passage the characters of its pieces, from and to, int64 [pieces, 2].
    """

    question: Ints
    begin: Ints
    offsets: Sequence[Ints]


@functools.lru_cache(maxsize=4096)  # questions on one passage, and passages of one length, share them
def windows_on(pieces: int, room: int, step: int) -> tuple[Window, ...]:
    """The windows on a passage of that many pieces; one empty window on an empty passage.

    Args:
        room: the most pieces of a window.
        step: between the beginnings of two windows.
    """
    begins = [0]
    while begins[-1] + room < pieces:
        begins.append(begins[-1] + step)
    ends = [min(begin + room, pieces) for begin in begins]
    low, high, places = np.array(begins)[:, None], np.array(ends)[:, None], np.arange(pieces)
    around = np.minimum(places - low, high - 1 - places)
    shown = np.where(around >= 0, around + LENGTH_BONUS * (high - low), -np.inf)
    owner = shown.argmax(axis=0)  # of equals the first; those of one window are neighbours
    first, last = (np.searchsorted(owner, np.arange(len(begins)), side=side) for side in ("left", "right"))
    return tuple(map(Window, begins, ends, first.tolist(), last.tolist()))


def pieces_of(answer: Answer, offsets: Ints) -> tuple[int, int, bool]:
    """The first and the last piece of a passage that hold the answer, and whether they hold nothing else.

    Args:
        offsets: int64 [pieces, 2], see `Windows`.

    Returns:
        The last before the first where no piece does.
    """
    end = answer.start + len(answer.text)
    first = int(np.searchsorted(offsets[:, 1], answer.start, side="right"))
    last = int(np.searchsorted(offsets[:, 0], end, side="left")) - 1
    if first > last:
        return first, last, False
    return first, last, bool(offsets[first, 0] == answer.start and offsets[last, 1] == end)


def encode_questions(examples: Questions, tokenizer: Tokenizer, max_length: int, options: SpanOptions) -> Windows:
    """All windows of all questions, in their order.

    Of several answers to a question the first one is trained on that can be given exactly, else the first.
    """
    cls, sep = tokenizer.special.cls, tokenizer.special.sep
    passages = tokenizer.encode_with_offsets(examples.passages)
    asked = tokenizer.encode_batch(examples.questions)
    longest_question = min(options.question_length, (max_length - FRAME) // 2)
    sequences: list[npt.NDArray[np.int32]] = []
    question: list[int] = []
    begin: list[int] = []
    bounds: list[tuple[int, int, int, int]] = []
    targets: list[tuple[int, int]] = []
    lost: Counter[str] = Counter()
    for number, passage in enumerate(examples.passage_of):
        ids, offsets = passages[passage]
        head = [cls, *asked[number][:longest_question], sep]
        room = max_length - len(head) - 1
        found = windows_on(len(ids), room, min(options.stride, _widest_step(room, options.answer_length)))
        span: tuple[int, int] | None = None
        if examples.answers is not None:
            span = _trained(examples.answers[number], offsets, found, options.answer_length, lost)
        for window in found:
            shift = len(head) - window.begin
            sequences.append(np.array([*head, *ids[window.begin : window.end], sep], dtype=np.int32))
            question.append(number)
            begin.append(window.begin)
            bounds.append((len(head), window.end + shift, window.first + shift, window.last + shift))
            held = span is not None and window.begin <= span[0] and span[1] < window.end
            targets.append((span[0] + shift, span[1] + shift) if span is not None and held else (0, 0))
    places = np.array(targets, dtype=np.int64).reshape(-1, 2)
    rows = np.array(bounds, dtype=np.int64).reshape(-1, 4)
    known = {} if examples.answers is None else {STARTS: places[:, 0], ENDS: places[:, 1]}
    return Windows(
        sequences=tuple(sequences),
        second=rows[:, 0],
        truncated=sum(len(pieces) > longest_question for pieces in asked),
        pad=tokenizer.special.pad,
        targets={BOUNDS: rows, **known},
        lost=dict(+lost),
        question=np.array(question, dtype=np.int64),
        begin=np.array(begin, dtype=np.int64),
        offsets=[offsets for _, offsets in passages],
    )


def _widest_step(room: int, answer_length: int) -> int:
    """Of two windows that overlap, the second counts from the middle of what they share: that must be two answers long.

    At least a quarter of a window, as windows would be too many.
    """
    return max(room - 2 * answer_length, room // 4, 1)


def _trained(
    answers: Sequence[Answer], offsets: Ints, windows: Sequence[Window], longest: int, lost: Counter[str]
) -> tuple[int, int] | None:
    """The pieces to train on; counts the answers that no window can give, by reason."""
    if not answers:
        return None
    given: tuple[int, int] | None = None
    first: tuple[int, int] | None = None
    for answer in dict.fromkeys(answers):
        begin, end, whole = pieces_of(answer, offsets)
        reason = next(_reasons(begin, end, whole, windows, longest), None)
        if reason is not None:
            lost[reason] += 1
        elif given is None:
            given = begin, end
        if first is None and begin <= end:
            first = begin, end
    lost[ALL] += given is None
    return given or first


def _reasons(begin: int, end: int, whole: bool, windows: Sequence[Window], longest: int) -> Iterator[str]:
    """Why an answer of these pieces cannot be given."""
    if begin > end:
        yield NOTHING
    if not whole:
        yield INSIDE
    if end - begin + 1 > longest:
        yield LONG
    if not any(window.first <= begin < window.last and end < window.end for window in windows):
        yield TORN
