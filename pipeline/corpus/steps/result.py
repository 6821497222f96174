"""Corpus stage: what a step says about a document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pipeline.corpus.document import Document


@dataclass(frozen=True, slots=True)
class Removed:
    """A line, paragraph or sentence that was taken out of a document, or a piece of it that was replaced.

    Attributes:
        reason: becomes a counter.
        text: what was there; of personal data only what stands in its place.
    """

    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class Result:
    """What a step made of a document.

    Attributes:
        document: what is left; None if and only if it is dropped.
        reason: why it is dropped; None if and only if it stays.
        removed: what was taken out of it, in reading order.
    """

    document: Document | None
    reason: str | None = None
    removed: tuple[Removed, ...] = ()


class Step(Protocol):
    """A pure function on a document."""

    @property
    def name(self) -> str: ...

    def __call__(self, document: Document) -> Result: ...
