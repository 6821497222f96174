"""Down to 0 as one minus the square root of what is done (Hägele et al., "Scaling Laws and Compute-Optimal Training Beyond Fixed
Training Durations", 2024, section 3): the decay after a constant learning rate.
"""

import math


def sqrt(progress: float) -> float:
    return 1.0 - math.sqrt(progress)
