"""Down to 0 in a straight line (google-research/bert, optimization.py)."""


def linear(progress: float) -> float:
    return 1.0 - progress
