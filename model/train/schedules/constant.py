"""The peak learning rate to the end."""


def constant(progress: float) -> float:
    return 1.0
