"""The rule for figures that are not finite: wherever figures are compared, they lose.

NaN compares as neither better nor worse, so `max` and `min` may choose it. An evaluation with such
a figure has failed: `check_figures` raises.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from numbers import Real
from statistics import fmean
from typing import Any, TypeGuard

from cloze.core.errors import NotFiniteError


def is_finite(value: Any) -> TypeGuard[float]:
    """Return whether `value` is a number, no truth value, and neither NaN nor infinite."""
    try:  # Real: also NumPy's numbers
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        return is_number and math.isfinite(value)
    except OverflowError:  # an integer above every float
        return False


def lower_is_better(metric: str) -> bool:
    """Return whether a lower value of the metric is better."""
    return re.search(_ERRORS, metric) is not None


_ERRORS = r"perplexity|entropy|bits_per_byte|(^|[^a-z])(loss|errors?|r?mse|mae|[wc]er)($|[^a-z])"


def goodness(value: Any, metric: str = "") -> float:
    """Return the key by which figures are ranked, highest first; missing and not finite: -inf."""
    if not is_finite(value):
        return -math.inf
    return -float(value) if lower_is_better(metric) else float(value)


def mean(values: Iterable[float]) -> float:
    """Return the mean of finite figures, also where no float holds their sum."""
    every = list(values)
    try:
        return fmean(every)
    except OverflowError:
        return math.fsum(value / len(every) for value in every)


def check_figures(subject: str, figures: Mapping[str, Any]) -> None:
    """Check that no number among the figures is NaN or infinite; what is missing passes.

    Raises NotFiniteError: one is.
    """
    for name, value in figures.items():
        if isinstance(value, Real) and not is_finite(value) and value not in (True, False):
            raise NotFiniteError(
                f"{subject}: {name} is {value}, so this evaluation has failed; use an earlier "
                f"checkpoint, or train again with a lower learning_rate"
            )
