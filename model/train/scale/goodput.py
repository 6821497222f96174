"""How much of a long training is progress, where machines fail, and how often it should be saved. No torch.

Goodput is the time of the steps that count over the time that passes. Saving stops training for a moment; an interruption costs the
steps since the last save and a restart. Young's rule (1974, "A first order approximation to the optimum checkpoint interval") says
sqrt(2 · stall · mean time between interruptions); Daly's (2006, "A higher order estimate of the optimum checkpoint interval for restart
dumps", equation 37) adds what matters where interruptions are frequent. `simulate` draws them instead.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

# Interruptions that nobody planned: 419 in 54 days on 16,384 H100 (Grattafiori et al., "The Llama 3 Herd of Models", 2024, section
# 3.3.4 and Table 5): once in 50,700 hours of a GPU.
LLAMA_3 = 54 * 24 * 16_384 / 419
GPU_HOURS = LLAMA_3
NOTICE = 30.0  # seconds until the others notice: a killed process is seen at once, a silent machine by a time-out
SMALLEST_INTERVAL = 1.0
HOPELESS = 100.0  # times the work: what takes longer does not end


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What interrupts a training, and what that costs.

    Attributes:
        between: seconds between interruptions, on average.
        restart: seconds from an interruption to the next step: noticing, starting, reading the checkpoint.
        stall: seconds that training stands still for a save.
        writing: seconds from the beginning of a save until it counts; training goes on after the stall.
    """

    between: float
    restart: float
    stall: float
    writing: float = 0.0


def between_interruptions(gpus: int, gpu_hours: float = GPU_HOURS) -> float:
    """Seconds between interruptions of so many GPUs, of which one fails once in `gpu_hours`."""
    return gpu_hours * 3600.0 / max(1, gpus)


def young(faults: Faults) -> float:
    """Young's best number of seconds between saves."""
    return max(SMALLEST_INTERVAL, math.sqrt(2.0 * faults.stall * faults.between))


def daly(faults: Faults) -> float:
    """Daly's: seconds of training between the end of a save and the beginning of the next."""
    stall, between = faults.stall, faults.between
    if stall >= 2.0 * between:
        return max(SMALLEST_INTERVAL, between)
    ratio = stall / (2.0 * between)
    found = math.sqrt(2.0 * stall * between) * (1.0 + math.sqrt(ratio) / 3.0 + ratio / 9.0) - stall
    return max(SMALLEST_INTERVAL, found)


def expected(faults: Faults, interval: float) -> float:
    """The goodput of saving every so many seconds of training, by arithmetic (Daly, 2006, equation 20; interruptions come at random).

    What is being written when an interruption comes does not count: that costs `writing` seconds of steps more each time.
    """
    between = faults.between
    segment = interval + faults.stall
    cost = between * math.exp(faults.restart / between) * math.expm1(segment / between)
    again = max(0.0, faults.writing - faults.stall) / between
    return max(0.0, interval / (cost * (1.0 + again)))


def simulate(faults: Faults, interval: float, *, work: float, seed: int) -> float:
    """The goodput of a training of `work` seconds of steps that is saved every `interval` of them, with interruptions drawn at random.

    Interruptions come at exponentially distributed times, during restarts and saves too. A save counts once it is written; what was
    under way when an interruption came is lost with the steps since the save before.
    """
    draw = random.Random(seed)
    clock, done, saved = 0.0, 0.0, 0.0
    pending: tuple[float, float] | None = None  # a save that is being written: when it will count, and what it holds
    fails = draw.expovariate(1.0 / faults.between)

    def settle(now: float) -> None:
        nonlocal saved, pending
        if pending is not None and pending[0] <= now:
            saved, pending = pending[1], None

    while done < work:
        stretch = min(interval, work - done)
        last = done + stretch >= work
        end = clock + stretch + (0.0 if last else faults.stall)
        if fails < end:
            settle(fails)
            clock, done, pending = fails, saved, None
            fails = clock + draw.expovariate(1.0 / faults.between)
            while fails < clock + faults.restart:  # again, before it stands
                clock = fails
                fails = clock + draw.expovariate(1.0 / faults.between)
            clock += faults.restart
            if clock > HOPELESS * work:
                return done / clock
            continue
        clock, done = end, done + stretch
        settle(clock)
        if not last:
            begun = clock - faults.stall if pending is None else pending[0]  # one save waits for the one before
            settle(begun)
            clock = max(clock, begun + faults.stall)
            pending = (begun + max(faults.writing, faults.stall), done)
            settle(clock)
        if clock > HOPELESS * work:
            return done / clock
    return work / clock


def simulated(faults: Faults, interval: float, *, work: float, seeds: Sequence[int]) -> float:
    """The mean goodput over several draws."""
    return sum(simulate(faults, interval, work=work, seed=seed) for seed in seeds) / len(seeds)


def best_simulated(faults: Faults, *, work: float, seeds: Sequence[int], around: float) -> tuple[float, float]:
    """The interval of the highest mean goodput among steps of a tenth around `around`, and that goodput."""
    tried = [around * 1.1**power for power in range(-16, 17)]
    found = {
        interval: simulated(faults, interval, work=work, seeds=seeds) for interval in tried if interval >= SMALLEST_INTERVAL
    }
    best = max(found, key=found.__getitem__)
    return best, found[best]
