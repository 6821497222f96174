"""What somebody who watches a loss curve would say: sentences on a training that does not go as trainings do.

Nothing follows from them but a note. They look at log lines alone, so they are the same whether training was resumed or not.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

STUCK_STEPS = 1500  # a BERT-mini in batches of 32 has left the plateau by then, where it leaves it soon
STUCK_NATS = 0.3  # so much below a guesser that knows frequencies alone is no learning yet
NOWHERE_STEPS = 100  # by then a loss has left ln V
NOWHERE = 0.1  # of the way from ln V to that guesser
ABOVE_NATS = 1.0  # above ln V; untrained weights are some tenths
NOTHING = 0.1  # nats: what no text leaves that is worth training on
MOVES = (1e-4, 1e-2)  # the median part's update ratio: below, and above, the learning rate is to blame
SPIKE_NATS = 0.5
SPIKE_DEVIATIONS = 6.0
USUAL = 12  # lines whose course a spike is held beside
FLAT_LINES = 30  # so many log lines without any progress are told,
FLAT_STEPS = 300  # if they are as many steps: short runs tell every other step
EVALUATING = 0.05  # of the time, the most that evaluations should take
TOLERATED = 1.5  # times that: how many rows an evaluation may score is planned from an estimate
STEEP = 12.0  # times the rate that suits the width


class Alarms:
    """Told once each, but for spikes.

    Args:
        objective: the first one's name, whose loss is watched.
        guessing: the loss of a guesser that knows frequencies alone, in nats, where there is one; asked for once, when it is needed, since
            it has to be counted.
        batch: sequences a step.
        chance: the loss of a guesser that knows nothing, ln V; None: it has no such figure.
    """

    def __init__(
        self, objective: str, guessing: Callable[[], float | None], batch: int, pairs: bool, chance: float | None = None
    ) -> None:
        self._loss, self._batch, self._pairs, self._chance = f"{objective}_loss", batch, pairs, chance
        self._guessing = functools.cache(guessing)
        self._losses: list[tuple[int, float, float]] = []  # step, loss, learning rate
        self._told: set[str] = set()

    def seen(self, line: Mapping[str, Any]) -> list[str]:
        """What is to be said after this log line."""
        found = [*self._evaluating(line)]
        loss = line.get(self._loss)
        if not isinstance(loss, float) or not math.isfinite(loss):
            return found
        rate = float(line["learning_rate"])
        rises = bool(self._losses) and rate > self._losses[-1][2]
        found += [*self._above(line, loss), *self._nothing(line, loss)]
        if not rises:  # in a warm-up nothing is expected yet
            found += [*self._nowhere(line, loss), *self._stuck(line, loss)]
        found += self._spike(line, loss)
        self._losses.append((int(line["step"]), loss, rate))
        return [*found, *self._flat()]

    def _once(self, name: str) -> bool:
        new = name not in self._told
        self._told.add(name)
        return new

    def _above(self, line: Mapping[str, Any], loss: float) -> Iterator[str]:
        if self._chance is not None and self._losses and loss > self._chance + ABOVE_NATS and self._once("above"):
            yield (
                f"up to step {line['step']} the loss ({loss:.2f}) is above ln V ({self._chance:.2f}), what guessing all pieces alike costs;"
                f" usually it begins there and falls: training diverges. {_moved(line)}"
            )

    def _nothing(self, line: Mapping[str, Any], loss: float) -> Iterator[str]:
        if loss < NOTHING and self._once("nothing"):
            self._told |= {"stuck", "flat"}
            guessing = self._guessing()
            told = "" if guessing is None else f" (guessing by frequency costs {guessing:.2f} nats; in natural text 5 to 7)"
            yield (
                f"up to step {line['step']} the loss ({loss:.3f}) is about nothing, the best encoders reach 1 to 1.5 in natural text: either"
                f" the text is always the same{told}, or its rows are learned by heart: look at heldout_loss"
            )

    def _nowhere(self, line: Mapping[str, Any], loss: float) -> Iterator[str]:
        step = int(line["step"])
        if self._chance is None or step < NOWHERE_STEPS or "nowhere" in self._told or "above" in self._told:
            return
        self._told.add("nowhere")  # one line decides
        guessing = self._guessing()
        if guessing is None or loss < self._chance - NOWHERE * (self._chance - guessing):
            return
        yield (
            f"after step {step} the loss ({loss:.2f}) is still about ln V ({self._chance:.2f}), what guessing all pieces alike costs; usually"
            f" it falls to that of guessing by frequency ({guessing:.2f}) within some hundred steps. {_moved(line)}"
        )

    def _stuck(self, line: Mapping[str, Any], loss: float) -> Iterator[str]:
        step = int(line["step"])
        if step < STUCK_STEPS or "stuck" in self._told or "free" in self._told:
            return
        if self._chance is not None and loss > self._chance + ABOVE_NATS:  # of which something else is said
            return
        guessing = self._guessing()
        if guessing is None or self._learns(loss):
            self._told.add("free")
            return
        self._told.add("stuck")
        advice = (
            "models with norms behind their blocks (bert, roberta) stay there for 2,000 to 4,000 steps, modern for some 200"
        )
        if self._pairs and self._batch < 128:
            advice += f"; beside a pair task a batch of {self._batch} is small, its gradient is mostly noise: use 128 or more, or mlm alone"
        yield (
            f"after step {step} the loss ({loss:.2f}) is still about that of guessing by frequency ({guessing:.2f}): nothing is read from"
            f" the context yet; {advice}. A lower learning rate or a longer warm-up may help"
        )

    def _evaluating(self, line: Mapping[str, Any]) -> Iterator[str]:
        share = line.get("evaluation_share", 0.0)
        if share > TOLERATED * EVALUATING and self._once("evaluating"):
            yield (
                f"evaluations have taken {share:.0%} of the time so far, {EVALUATING:.0%} is meant: score fewer rows (heldout_rows), or"
                " score less often (evaluate_every)"
            )

    def _spike(self, line: Mapping[str, Any], loss: float) -> Iterator[str]:
        before = [known for _, known, _ in self._losses[-USUAL:]]
        if len(before) < USUAL:
            return
        slope, start = statistics.linear_regression(range(USUAL), before)
        usual = start + slope * (USUAL - 1)
        spread = statistics.median(abs(known - start - slope * number) for number, known in enumerate(before)) / 0.6745
        if loss > usual + max(SPIKE_NATS, SPIKE_DEVIATIONS * spread):
            yield (
                f"the loss rose to {loss:.2f} up to step {line['step']}, from about {usual:.2f}: a spike. Where it does not come back"
                " within some hundred steps, go on from an earlier checkpoint with a lower learning_rate or clip, or beta2 .98"
            )

    def _flat(self) -> Iterator[str]:
        if len(self._losses) < 2 * FLAT_LINES or "flat" in self._told:
            return
        if self._losses[-1][0] - self._losses[-FLAT_LINES][0] < FLAT_STEPS:
            return
        recent, earlier = self._losses[-FLAT_LINES:], self._losses[-2 * FLAT_LINES : -FLAT_LINES]
        highest = max(rate for _, _, rate in self._losses)
        now, then = _mean(recent), _mean(earlier)
        noise = statistics.stdev(loss for _, loss, _ in recent) / math.sqrt(FLAT_LINES)
        if recent[0][2] > 0.5 * highest and now > then - noise and self._learns(now) and self._once("flat"):
            yield (
                f"the loss has not fallen since step {earlier[0][0]} ({then:.3f} then, {now:.3f} now) at a learning rate near its peak:"
                " let it fall (a shorter schedule, wsd's decay), or the model is too small, or the rate too high"
            )

    def _learns(self, loss: float) -> bool:
        """Whether it has left the plateau of the frequencies, of which something else is said."""
        guessing = self._guessing()
        return guessing is None or loss < guessing - STUCK_NATS


def _moved(line: Mapping[str, Any]) -> str:
    """A sentence on the learning rate, by how far the step moved the weights."""
    ratios = [value for name, value in line.items() if name.startswith("update_ratio_")]
    rate = f"learning_rate ({line['learning_rate']:.2g} now)"
    if not ratios:
        return f"Try another {rate}"
    moved = statistics.median(ratios)
    told = f"This step moved the weights by {moved:.2g} of their length, about 1e-3 is usual"
    if moved < MOVES[0]:
        return f"{told}: raise the {rate}"
    if moved > MOVES[1]:
        return f"{told}: lower the {rate}"
    return f"{told}, so look at text and masks before the {rate}"


def _mean(lines: Sequence[tuple[int, float, float]]) -> float:
    return statistics.fmean(loss for _, loss, _ in lines)


def too_steep(learning_rate: float, suited: float, optimizer: str) -> str | None:
    """A sentence where a learning rate is far above the one that suits the width (Yang et al. 2022); of AdamW and its like alone."""
    if "adamw" not in optimizer or learning_rate <= STEEP * suited:
        return None
    return (
        f"learning_rate ({learning_rate:g}) is {learning_rate / suited:.0f} times what suits a model of this width ({suited:.2g});"
        " such trainings often spike or stay on the plateau of the first steps"
    )
