"""What changed between two versions of a document's paragraphs, short enough to be read."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

CONTEXT = 30  # characters shown around a change
LONGEST = 5_000  # characters of a paragraph that are compared word by word

_PIECES = re.compile(r"\s+|\w+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class Change:
    """A paragraph that is not as it was.

    Attributes:
        kind: changed, removed or added.
        paragraph: its number before the step (of an added one: after it), from 1.
        pieces: of a changed one (sign, text) in order: `=` as before, `-` gone, `+` new, `…` left out; else the whole text.
    """

    kind: str
    paragraph: int
    pieces: list[tuple[str, str]]


def changes(before: Sequence[str], after: Sequence[str]) -> list[Change]:
    """The paragraphs that differ."""
    if tuple(before) == tuple(after):
        return []
    found: list[Change] = []
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for operation, a, b, c, d in matcher.get_opcodes():
        if operation == "equal":
            continue
        for old, new in _aligned(before[a:b], after[c:d]):
            if old is not None and new is not None:
                found.append(Change("changed", a + old + 1, list(_within(before[a + old], after[c + new]))))
            elif old is not None:
                found.append(Change("removed", a + old + 1, [("-", before[a + old])]))
            elif new is not None:
                found.append(Change("added", c + new + 1, [("+", after[c + new])]))
    return found


def _aligned(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[int | None, int | None]]:
    """Which paragraph became which: in order where they are as many; else each old one that is nearly the next new one."""
    if len(old) == len(new):
        yield from ((number, number) for number in range(len(old)))
        return
    at = 0
    for number, text in enumerate(old):
        if at < len(new) and _alike(text, new[at]):
            yield number, at
            at += 1
        else:
            yield number, None
    yield from ((None, number) for number in range(at, len(new)))


def _alike(old: str, new: str) -> bool:
    one, two = (set(text.casefold().split()) for text in (old[:LONGEST], new[:LONGEST]))
    return len(one & two) >= 0.5 * max(1, min(len(one), len(two)))


def _within(old: str, new: str) -> Iterator[tuple[str, str]]:
    """The pieces of a changed paragraph, what stayed cut to some context."""
    begin = 0
    while begin < min(len(old), len(new)) and old[begin] == new[begin]:
        begin += 1
    end = 0
    while end < min(len(old), len(new)) - begin and old[-1 - end] == new[-1 - end]:
        end += 1
    while end and all(
        text[-1 - end : len(text) - end].isalnum() and text[-end].isalnum() for text in (old, new) if len(text) > end
    ):
        end -= 1  # words stay whole
    begin = max(0, begin - CONTEXT)
    old_core, new_core = old[begin : len(old) - end], new[begin : len(new) - end]
    if begin:
        yield "…", ""
    if max(len(old_core), len(new_core)) > LONGEST:
        yield "-", old_core[:CONTEXT] + "…"
        yield "+", new_core[:CONTEXT] + "…"
        return
    one, two = _PIECES.findall(old_core), _PIECES.findall(new_core)
    operations = difflib.SequenceMatcher(None, one, two, autojunk=False).get_opcodes()
    for number, (operation, a, b, c, d) in enumerate(operations):
        gone, came = "".join(one[a:b]), "".join(two[c:d])
        if operation == "equal":
            yield from _context(gone, first=number == 0, last=number == len(operations) - 1)
            continue
        if gone:
            yield "-", gone
        if came:
            yield "+", came
    if end:
        yield "=", old[len(old) - end :][:CONTEXT]
        if end > CONTEXT:
            yield "…", ""


def _context(text: str, *, first: bool, last: bool) -> Iterator[tuple[str, str]]:
    if len(text) <= 2 * CONTEXT:
        yield "=", text
        return
    if not first:
        yield "=", text[:CONTEXT]
    yield "…", ""
    if not last:
        yield "=", text[-CONTEXT:]
