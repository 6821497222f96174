"""Trying again: what can pass by itself, and how long to wait for that."""

from __future__ import annotations

from pipeline.core.errors import DataError, Stopped, UsageError

LONGEST_SECONDS = 600.0


def can_pass(error: BaseException) -> bool:
    """Whether a second try may end otherwise: not after bad usage or config, bad input data, or a stop that was asked for."""
    return isinstance(error, Exception) and not isinstance(error, (UsageError, DataError, Stopped))


def delay(attempt: int, first: float) -> float:
    """Seconds to wait after try number `attempt` (from 1): twice as long each time, at most ten minutes."""
    return float(min(first * 2 ** (attempt - 1), LONGEST_SECONDS))
