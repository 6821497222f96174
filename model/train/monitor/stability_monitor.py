"""Warnings about a loss that is not finite, diverges, spikes or stagnates.

Warnings follow from log lines alone, so they are the same after a resume, and do not affect
training.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

# By then a BERT-mini in batches of 32 has left the initial plateau, if it leaves it early.
STUCK_STEPS = 1500
STUCK_NATS = 0.3  # below the unigram loss by less than this: the model has not learned from context
ABOVE_NATS = 1.0  # above ln V; untrained weights are a few tenths above
FIRST_LOSS_TOLERANCE = 0.1  # of the expected first loss
SPIKE_NATS = 0.5
SPIKE_DEVIATIONS = 6.0
USUAL = 12  # log lines in the regression line to which a spike is compared
FLAT_LINES = 30  # log lines without progress before a warning,
FLAT_STEPS = 300  # if they span this many steps: short runs log every other step
STEEP = 12.0  # multiple of the learning rate that suits the width


class StabilityMonitor:
    """Checks log lines; every warning except spikes is given once.

    Args:
        objective: name of the first objective, whose loss is checked.
        guessing: returns the loss of context-free guessing by frequency in nats, or None; called
            once and only when needed, as it requires counting.
        batch: sequences per step.
        pairs: True if the training has a pair objective.
        chance: loss of uniform guessing, ln V; None: undefined.
        expected: first loss of untrained weights, over all objectives; None: unknown.
    """

    def __init__(
        self,
        objective: str,
        guessing: Callable[[], float | None],
        batch: int,
        pairs: bool,
        chance: float | None = None,
        expected: float | None = None,
    ) -> None:
        self._loss, self._batch, self._pairs = f"{objective}_loss", batch, pairs
        self._chance, self._expected = chance, expected
        self._guessing = functools.cache(guessing)
        self._losses: list[tuple[int, float, float]] = []  # step, loss, learning rate
        self._warned: set[str] = set()

    def check(self, line: Mapping[str, Any]) -> list[str]:
        """Return the warnings for this log line."""
        loss = line.get(self._loss)
        if not isinstance(loss, float):
            return []
        if not math.isfinite(loss):
            return [*self._not_finite(line, loss)]
        rate = float(line["learning_rate"])
        rate_rises = bool(self._losses) and rate > self._losses[-1][2]
        warnings = [*self._first(line), *self._above(line, loss)]
        if not rate_rises:  # progress is not expected during warm-up
            warnings += self._stuck(line, loss)
        warnings += self._spike(line, loss)
        self._losses.append((int(line["step"]), loss, rate))
        return [*warnings, *self._flat()]

    def _once(self, name: str) -> bool:
        is_new = name not in self._warned
        self._warned.add(name)
        return is_new

    def _not_finite(self, line: Mapping[str, Any], loss: float) -> Iterator[str]:
        if self._once("not finite"):
            yield (
                f"the loss is {loss} up to step {line['step']}; lower learning_rate"
                f" ({line['learning_rate']:.2g} now) or grad_clip, or use precision fp32"
            )

    def _first(self, line: Mapping[str, Any]) -> Iterator[str]:
        if self._losses or self._expected is None:
            return
        if abs(line["loss"] - self._expected) > FIRST_LOSS_TOLERANCE * self._expected:
            yield (
                f"THE FIRST LOSS IS {line['loss']:.3f}, untrained weights should give "
                f"{self._expected:.3f} (ln V, and ln 2 for pairs): check vocabulary, masks and "
                f"initializer_range"
            )

    def _above(self, line: Mapping[str, Any], loss: float) -> Iterator[str]:
        if (
            self._chance is not None
            and self._losses
            and loss > self._chance + ABOVE_NATS
            and self._once("above")
        ):
            yield (
                f"up to step {line['step']} the loss ({loss:.2f}) is above ln V "
                f"({self._chance:.2f}), what guessing all pieces alike costs;"
                f" usually it begins there and falls: training diverges. Lower learning_rate "
                f"({line['learning_rate']:.2g} now)"
            )

    def _stuck(self, line: Mapping[str, Any], loss: float) -> Iterator[str]:
        step = int(line["step"])
        if step < STUCK_STEPS or "stuck" in self._warned or "free" in self._warned:
            return
        # `_above` warns about this case.
        if self._chance is not None and loss > self._chance + ABOVE_NATS:
            return
        guessing_loss = self._guessing()
        if guessing_loss is None or self._learns(loss):
            self._warned.add("free")
            return
        self._warned.add("stuck")
        advice = (
            "models with norms behind their blocks (bert, roberta) stay there for 2,000 to 4,000 "
            "steps, modern for some 200"
        )
        if self._pairs and self._batch < 128:
            advice += (
                f"; with a pair task a batch of {self._batch} is small, its gradient is mostly "
                f"noise: use 128 or more, or mlm alone"
            )
        yield (
            f"after step {step} the loss ({loss:.2f}) is still about that of guessing by frequency "
            f"({guessing_loss:.2f}): nothing is read from"
            f" the context yet; {advice}. A lower learning rate or a longer warm-up may help"
        )

    def _spike(self, line: Mapping[str, Any], loss: float) -> Iterator[str]:
        losses = [previous for _, previous, _ in self._losses[-USUAL:]]
        if len(losses) < USUAL:
            return
        slope, intercept = statistics.linear_regression(range(USUAL), losses)
        expected = intercept + slope * (USUAL - 1)
        spread = (
            statistics.median(
                abs(previous - intercept - slope * index) for index, previous in enumerate(losses)
            )
            / 0.6745
        )
        if loss > expected + max(SPIKE_NATS, SPIKE_DEVIATIONS * spread):
            yield (
                f"the loss rose to {loss:.2f} up to step {line['step']}, from about "
                f"{expected:.2f}: a spike. Where it does not come back"
                " within some hundred steps, resume from an earlier checkpoint with a lower "
                "learning_rate or grad_clip, or beta2 .98"
            )

    def _flat(self) -> Iterator[str]:
        if len(self._losses) < 2 * FLAT_LINES or "flat" in self._warned:
            return
        if self._losses[-1][0] - self._losses[-FLAT_LINES][0] < FLAT_STEPS:
            return
        recent, earlier = self._losses[-FLAT_LINES:], self._losses[-2 * FLAT_LINES : -FLAT_LINES]
        highest = max(rate for _, _, rate in self._losses)
        recent_mean, earlier_mean = _mean(recent), _mean(earlier)
        noise = statistics.stdev(loss for _, loss, _ in recent) / math.sqrt(FLAT_LINES)
        if (
            recent[0][2] > 0.5 * highest
            and recent_mean > earlier_mean - noise
            and self._learns(recent_mean)
            and self._once("flat")
        ):
            yield (
                f"the loss has not fallen since step {earlier[0][0]} ({earlier_mean:.3f} then, "
                f"{recent_mean:.3f} now) at a learning rate near its peak: let it fall (a shorter "
                f"schedule, wsd's decay), or the model is too small, or the rate too high"
            )

    def _learns(self, loss: float) -> bool:
        """Return True if the loss is clearly below guessing by frequency."""
        guessing_loss = self._guessing()
        return guessing_loss is None or loss < guessing_loss - STUCK_NATS


def _mean(lines: Sequence[tuple[int, float, float]]) -> float:
    return statistics.fmean(loss for _, loss, _ in lines)


def high_learning_rate_warning(learning_rate: float, suited: float, optimizer: str) -> str | None:
    """Return a warning if an AdamW rate is far above what suits the width (Yang et al., 2022)."""
    if "adamw" not in optimizer or learning_rate <= STEEP * suited:
        return None
    return (
        f"learning_rate ({learning_rate:g}) is {learning_rate / suited:.0f} times what suits a "
        f"model of this width ({suited:.2g});"
        " such trainings often spike or stay on the plateau of the first steps"
    )
