"""Corpus stage: small files are read into one part, for each part costs files, fsyncs and a place in every later step.

Which slices go together follows from the sources alone, never from workers, so an interrupted build finds its parts again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pipeline.core import fingerprints
from pipeline.corpus.sources import PlannedSlice, Source

BUNDLE_BYTES = 1 << 20  # what one of several may have, so that a source of many small files has work for many workers
BUNDLE_SLICES = 1 << 10


@dataclass(frozen=True, slots=True)
class Bundle:
    """Slices of one kind that stand for the same sources, and go to one part."""

    slices: tuple[PlannedSlice, ...]

    @property
    def kind(self) -> str:
        """Of its slices."""
        return self.slices[0].slice.kind

    @property
    def sources(self) -> tuple[Source, ...]:
        """That its slices stand for."""
        return self.slices[0].sources

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(one.slice.size for one in self.slices)

    @property
    def part(self) -> str:
        """The name of its part, which says what is read."""
        if len(self.slices) == 1:
            return self.slices[0].part
        names = ((f"{number:04d}/{one.slice.name}", one.part) for number, one in enumerate(self.slices))
        return f"{fingerprints.combine(names)[:16]}-{len(self.slices)}"

    def unit(self) -> dict[str, Any]:
        """What `ReadBundle` takes."""
        return {"name": self.part, "slices": [one.slice.as_json() for one in self.slices]}


def bundled(slices: Iterable[PlannedSlice]) -> list[Bundle]:
    """The slices in their order, small ones that follow each other together."""
    found: list[list[PlannedSlice]] = []
    size = 0
    for one in slices:
        size += one.slice.size
        last = found[-1] if found else []
        fits = size <= BUNDLE_BYTES and len(last) < BUNDLE_SLICES
        if last and fits and (one.slice.kind, one.sources) == (last[0].slice.kind, last[0].sources):
            last.append(one)
        else:
            found.append([one])
            size = one.slice.size
    return [Bundle(tuple(together)) for together in found]
