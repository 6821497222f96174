"""Down to 0 along half a cosine (Loshchilov and Hutter, "SGDR", 2017, equation 5)."""

import math


def cosine(progress: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * progress))
