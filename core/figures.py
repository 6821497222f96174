"""The rule for figures that are not finite: wherever figures are compared, they lose.

NaN compares as neither better nor worse, so `max` and `min` may choose it. An evaluation with such
a figure has failed: `check_figures` raises.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard

from cloze.core.errors import NotFiniteError


def is_finite(value: Any) -> TypeGuard[float]:
    """Return whether `value` is a number, no truth value, and neither NaN nor infinite."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isfinite(value)


def are_finite(values: Iterable[Any]) -> bool:
    return all(map(is_finite, values))


def goodness(value: Any, *, lower_is_better: bool = False) -> float:
    """Return the key by which figures are ranked, highest first; missing and not finite: -inf."""
    if not is_finite(value):
        return -math.inf
    return -float(value) if lower_is_better else float(value)


def describe_not_finite(figures: Mapping[str, Any]) -> str:
    """Return `heldout_loss is nan`, for the first number that is not finite; empty: none."""
    wrong = (name for name, value in figures.items() if _is_wrong(value))
    return next((f"{name} is {figures[name]}" for name in wrong), "")


def check_figures(subject: str, figures: Mapping[str, Any]) -> None:
    """Check that no number among the figures is NaN or infinite; what is missing passes.

    Raises:
        NotFiniteError: one is.
    """
    if wrong := describe_not_finite(figures):
        raise NotFiniteError(
            f"{subject}: {wrong}, so this evaluation has failed; the model's weights or outputs "
            f"are not finite: use an earlier checkpoint, or train again with a lower learning_rate"
        )


def _is_wrong(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
