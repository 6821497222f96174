"""Texts, or pairs of texts, with a number each: what a regression task reads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from model.tasks.formats.tables_texts import read_rows
from model.tasks.options import RegressionOptions
from pipeline.core.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoredTexts:
    """Scored texts, or pairs of texts, in the order of their file.

    Attributes:
        text_pairs: the second sequence of each example, for tasks on pairs.
        scores: float64 [n], in the file's own unit; None for a split without them.
        ids: of the examples, where their file has any.
        dropped: how many were left out on purpose, by reason.
        where: what was read, for messages.
    """

    texts: Sequence[str]
    scores: npt.NDArray[np.float64] | None
    text_pairs: Sequence[str] | None = None
    ids: Sequence[str] | None = None
    dropped: Mapping[str, int] = field(default_factory=dict)
    where: str = ""

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def labelled(self) -> bool:
        return self.scores is not None


def read_scored(path: str, split: str, options: RegressionOptions, told: str) -> ScoredTexts:
    """The examples of one split.

    Raises:
        DataError: the file is missing or malformed, a text is empty, or a score no number or out of the range; the message names
            file and line.
    """
    rows = read_rows(path, split, options, told)
    scores = None
    if rows.answers is not None:
        found = [_number(answer, place, options) for answer, place in zip(rows.answers, rows.places, strict=True)]
        scores = np.array(found, dtype=np.float64)
    return ScoredTexts(
        texts=rows.texts, text_pairs=rows.pairs, scores=scores, ids=rows.ids, dropped=rows.dropped, where=rows.path
    )


def _number(text: str, place: str, options: RegressionOptions) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataError(f"{place}: score {text!r} is no number; mend the line")
    low, high = options.lowest, options.highest
    if (low is not None and value < low) or (high is not None and value > high):
        known = f"{'-inf' if low is None else f'{low:g}'} to {'inf' if high is None else f'{high:g}'}"
        raise DataError(f"{place}: score {text} is not within {known}; mend the line, or change lowest and highest")
    return value
