"""Limits of `night.promote_if` on latency, energy and size. No torch.

A limit holds if it holds in every combination that the suite's section `latency` measures, with the
whole interval: so a candidate that is too slow passes at most as often as the confidence says.
Intervals are those of order statistics, which assume nothing about the distribution of times.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isnan
from typing import Any

from cloze.core import storage
from cloze.core.artifacts.artifact import read_manifest
from cloze.core.errors import UsageError
from cloze.labs.costs.stage import METRICS_FILE, describe

OWN, THEIRS, TIMES = "own", "champion", "times_ms"


def quantile(values: Sequence[float], share: float, confidence: float = 0.0) -> Any:
    """Return a quantile, or with a confidence its interval; an end without bound is infinite."""
    import numpy as np
    from scipy.stats import quantile_test  # slow import

    if not confidence:
        return float(np.quantile(values, share))
    ends = quantile_test(values, p=share).confidence_interval(confidence)
    return [
        bound if isnan(end) else float(end) for end, bound in zip(ends, (-inf, inf), strict=True)
    ]


def ratios(cell: Mapping[str, Any]) -> list[float]:
    """Return the model's time in times of the champion's, of each pair of passes."""
    pairs = zip(cell[f"{OWN}_{TIMES}"], cell[f"{THEIRS}_{TIMES}"], strict=True)
    return [own / theirs for own, theirs in pairs]


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceLimit:
    """A limit, written as `<= NUMBER`.

    Attributes:
        stage: stage of the artifacts that it reads.
        share: quantile of the times, or of their ratios; 0: a figure without an interval.
    """

    name: str
    unit: str
    share: float = 0.0
    stage: str = "latency"

    def __call__(self, limit: str, paths: Sequence[str], confidence: float) -> tuple[bool, str]:
        """Return whether a candidate's artifacts keep the limit, and a sentence.

        Raises:
            UsageError: `limit` is malformed.
        """
        if not (match := re.fullmatch(r"<=\s*(\d+(?:\.\d*)?|\.\d+)", limit.strip())):
            raise UsageError(f'{self.name} ({limit!r}) is no limit; write it as "<= 12"')
        most, holds, texts = float(match[1]), True, []
        for place, figure, low, high in self._figures(paths, confidence):
            text = f"{self.name} {figure:.3g} {self.unit}".rstrip()
            text += f" ({low:.3g} to {high:.3g})" if low < high else ""
            verdict = "keeps" if high <= most else "is above" if low > most else "is too noisy for"
            texts.append(f"{text} {verdict} <= {most:g}{place}")
            holds &= high <= most
        if not texts:
            reason = "no champion" if self.name.endswith("_ratio") else "not measured"
            return reason == "no champion", f"{self.name} is not compared: {reason}"
        return holds, ", ".join(texts)

    def _figures(
        self, paths: Sequence[str], confidence: float
    ) -> Iterator[tuple[str, float, float, float]]:
        """Yield the place, figure and interval of each combination that has the figure."""
        for path in paths:
            if read_manifest(path).stage != self.stage:
                continue
            content = json.loads(storage.read_text(storage.join(path, METRICS_FILE)))
            if self.name == "size_mb":
                yield "", *[content["bytes"] / 1e6] * 3
                continue
            for cell in content["cells"]:
                if self.name not in cell:
                    continue
                ends = [cell[self.name]] * 2
                if self.share:
                    values = (
                        ratios(cell) if self.name == "latency_ratio" else cell[f"{OWN}_{TIMES}"]
                    )
                    ends = quantile(values, self.share, confidence)
                yield f" at {describe(cell)}", cell[self.name], *ends


LATENCY_MS = PriceLimit(name="latency_ms", unit="ms", share=0.5)
LATENCY_P99_MS = PriceLimit(name="latency_p99_ms", unit="ms", share=0.99)
LATENCY_RATIO = PriceLimit(name="latency_ratio", unit="times the champion's", share=0.5)
ENERGY_MJ = PriceLimit(name="energy_mj", unit="mJ")
SIZE_MB = PriceLimit(name="size_mb", unit="MB")
