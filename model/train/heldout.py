"""Held-out scoring while training: sums over the held-out rows, exact on any number of ranks.

It draws no random numbers and touches no weights, so evaluating more or less often does not change training. How many rows are
scored, and how often, follows from the config alone, so that it takes at most a twentieth of the time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from model.data.batch import Batch, move
from model.data.collate import blank, collate
from model.data.directions import WHOLE, Directions
from model.data.layouts import Kind
from model.data.mixture import MixedShards
from model.data.prefetch import prefetched
from model.data.sampler import share
from model.data.shards import Rows
from model.objectives.bands import FIELD as BANDS_FIELD
from model.train.batches import Batches
from model.train.distributed import World
from model.train.interfaces import Interrupted
from model.train.pace import Moment
from model.train.scoring import Scoring

COUNT_ROWS = 4096  # rows that are read at once to count targets
UNIGRAM_ROWS = 20_000  # training rows that a distribution without context is counted from
I64 = npt.NDArray[np.int64]


FORWARD_COST = 1 / 3  # of a row's training: the backward pass takes twice as long
SHARE = 0.05  # of the training's time
FEWEST_ROWS = 64  # a mean over fewer says little
EVALUATIONS = 10  # of a run, where nothing else is asked for


@dataclass(frozen=True, slots=True)
class Looks:
    """How often and how much is scored.

    Attributes:
        every: steps between evaluations.
        rows: of each but the last.
        last: rows of the last.
    """

    every: int
    rows: int
    last: int

    @classmethod
    def within(cls, steps: int, trained: int, wanted: int, every: int | None, passes: int = 1) -> Looks:
        """What costs at most `SHARE` of training on `trained` rows in so many steps.

        Half of that is for the last evaluation, the rest for those on the way: of short runs fewer, over fewer rows. An interval
        that was asked for is kept, and no evaluation is of fewer than `FEWEST_ROWS`.

        Args:
            wanted: the most rows of an evaluation.
            every: the interval that was asked for; None: `EVALUATIONS` in all, if they can be afforded.
            passes: how often each row is scored.
        """
        least, last, rest = cls._rows(trained, wanted, passes)
        if every is None:
            number = cls.affordable(trained, wanted, passes)
            every = max(steps // (number + 1), 1)
            if (steps - 1) // every * least > rest:
                every = -(-steps // (number + 1))
        number = (steps - 1) // every
        return cls(every, min(wanted, max(least, rest // max(1, number))), last)

    @classmethod
    def affordable(cls, trained: int, wanted: int, passes: int = 1) -> int:
        """How many evaluations there are before the last one, where no interval was asked for; arguments as of `within`."""
        least, _, rest = cls._rows(trained, wanted, passes)
        return min(EVALUATIONS - 1, rest // max(1, least))

    @classmethod
    def _rows(cls, trained: int, wanted: int, passes: int) -> tuple[int, int, int]:
        """The fewest rows of an evaluation, those of the last, and what all the others have together."""
        room = int(SHARE / FORWARD_COST * trained / passes)
        least = min(wanted, FEWEST_ROWS)
        last = min(wanted, max(least, room // 2))
        return least, last, max(0, room - last)


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The first `rows` held-out rows, with mask copy 0, read in the directions of training, row r as sample r.

    Shards are sorted by a hash, so any first rows are a fair sample.

    Attributes:
        bands: of the vocabulary's pieces, see `model.train.bands`; None: the loss is not told by them.
    """

    shards: Rows
    rows: int
    batch: int
    pad: int
    mask: int
    longest: int
    layout: Kind = "rows"
    directions: Directions = WHOLE
    bands: torch.Tensor | None = None

    def parts(self) -> list[tuple[str, HeldOut]]:
        """Those of each dataset by name; of one alone itself, without a name. A mixture's rows are shared out by its weights, but each
        dataset has at least `FEWEST_ROWS` divided by the number of datasets.
        """
        if not isinstance(self.shards, MixedShards):
            return [("", self)]
        parts, shares = self.shards.parts, self.shards.shares
        least = min(self.rows, FEWEST_ROWS) // len(parts)
        rows = {name: min(len(part), max(least, round(shares[name] * self.rows))) for name, part in parts.items()}
        return [(name, replace(self, shards=part, rows=rows[name])) for name, part in parts.items()]

    def batches(self, world: World) -> list[tuple[int, int]]:
        """This rank's batches as ranges of rows: the same number on every rank, some perhaps empty."""
        most = -(-self.rows // world.size)
        number = -(-most // self.batch)
        mine = share(0, self.rows, world.rank, world.size)
        return [share(*mine, part, number) for part in range(number)]

    def load(self, start: int, stop: int) -> Batch:
        if start == stop:
            return blank(pad=self.pad, directions=self.directions)
        rows = np.arange(start, stop)
        taken = self.shards.take(rows, np.zeros_like(rows))
        return collate(taken, pad=self.pad, longest=self.longest, layout=self.layout, directions=self.directions, samples=rows)

    def target_counts(self, vocabulary: int) -> I64:
        """How often each id is a target, int64 [V]."""
        counts = np.zeros(vocabulary, np.int64)
        for _, part in self.parts():
            for start in range(0, part.rows, COUNT_ROWS):
                labels = part.load(start, min(start + COUNT_ROWS, part.rows))["masked_labels"].numpy()
                counts += np.bincount(labels[labels >= 0], minlength=vocabulary)
        return counts


def counted(heldout: HeldOut, train: Rows) -> HeldOut:
    """The training rows whose targets are counted, read as the held-out ones are."""
    return replace(heldout, shards=train, rows=min(len(train), UNIGRAM_ROWS))


def unigram_baselines(train: HeldOut, heldout: HeldOut, vocabulary: int) -> dict[str, float]:
    """What a guesser that sees no context would lose, in nats a held-out target. A model must come below.

    Returns:
        unigram_entropy: of the held-out targets' own distribution: a bound that no such guesser can beat, and far below
            what one can reach where there are few held-out rows. unigram_loss: of the training targets' distribution, each
            count raised by one: what a guesser reaches that knows the training rows.
    """
    targets, seen = heldout.target_counts(vocabulary), train.target_counts(vocabulary) + 1.0
    if not targets.sum():
        return {}
    shares = targets / targets.sum()
    return {
        "unigram_entropy": round(entropy(targets), 6),
        "unigram_loss": round(float(-(shares * np.log(seen / seen.sum())).sum()), 6),
    }


def entropy(counts: I64) -> float:
    """The entropy of a distribution with these counts, which are not all 0, in nats."""
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


@dataclass(slots=True, kw_only=True)
class HeldOutMeasure:
    """The held-out loss on the way; see `model.train.interfaces.Measure`.

    Attributes:
        heldout: all rows that may be scored.
        batches: rows of each step.
        begun: the step that training began with.
        steps: how many it has; None: that is not known before it ends, and follows from how far it is.
        every: the interval that was asked for.
        passes: how often the rows are scored, as once with the weights and once with their average.
        row_seconds: what a row took in the newest evaluation; None: there was none yet.
    """

    scoring: Scoring
    heldout: HeldOut
    world: World
    batches: Batches
    begun: int
    steps: int | None
    every: int | None = None
    passes: int = 1
    row_seconds: float | None = None
    best: str = "heldout_loss"
    higher_is_better: bool = False

    def looks(self, steps: int) -> Looks:
        """How often and how much is scored in so many steps."""
        return Looks.within(steps, self.batches.before(steps), self.heldout.rows, self.every, self.passes)

    def due(self, step: int, moment: Moment) -> bool:
        if self.steps is None and self.every is None:
            trained = self.batches.before(self._all_steps(step, moment))
            return moment.ends(1 + Looks.affordable(trained, self.heldout.rows, self.passes))
        return step % (self.every or self.looks(self.steps or 1).every) == 0

    def __call__(self, step: int, moment: Moment, stop_asked: Callable[[], bool]) -> dict[str, float]:
        rows, began = self.rows(step, moment), time.perf_counter()
        found = evaluate(self.scoring, replace(self.heldout, rows=rows), self.world, stop_asked)
        self.row_seconds = (time.perf_counter() - began) / max(1, rows)
        return found

    def rows(self, step: int, moment: Moment) -> int:
        """How many are scored after `step` steps, the last of them at that moment."""
        looks = self.looks(self._all_steps(step, moment))
        return looks.last if moment.last else looks.rows

    def _all_steps(self, step: int, moment: Moment) -> int:
        """How many there are, or will be if they go on like the last one; where nobody knows what that takes, no more."""
        if self.steps is not None:
            return self.steps
        rest = moment.whole - moment.done - moment.size
        return step - self.begun + (max(0, round(rest / moment.size)) if moment.size > 0 else 0)

    def closing(self, step_seconds: float) -> float:
        """What the last evaluation will take at most, in seconds, where a step takes so many."""
        return self.passes * self.heldout.rows * (self.row_seconds or FORWARD_COST * step_seconds / self.batches.last)


@torch.no_grad()
def evaluate(
    scoring: Scoring, heldout: HeldOut, world: World, stop_asked: Callable[[], bool] = lambda: False
) -> dict[str, float]:
    """Score the held-out rows.

    Args:
        scoring: left in training mode.
        stop_asked: whether this rank was asked to stop; called between batches.

    Returns:
        Of the first objective, mlm as a rule: heldout_loss (nats), heldout_perplexity, heldout_accuracy, and its finer figures
        (`heldout_top5_accuracy`, `heldout_loss_rare` …); for any other objective the same with its name before, as in
        `heldout_nsp_loss`. What has nothing to predict is left out. Of a mixture also the losses of each dataset, as in
        `heldout_loss_wiki`.

    Raises:
        Interrupted: a rank was asked to stop.
    """
    parts = [(name, _sums(scoring, part, world, stop_asked)) for name, part in heldout.parts()]
    found = _figures(
        scoring, sum((part.sums for _, part in parts[1:]), parts[0][1].sums), _added([part.details for _, part in parts])
    )
    for name, part in parts:
        if name:
            found |= {
                f"{figure}_{name}": value for figure, value in _figures(scoring, part.sums, None).items() if "loss" in figure
            }
    return {name: round(value, 6) for name, value in found.items()}


@dataclass(frozen=True, slots=True)
class _Sums:
    """Over held-out rows, on all ranks: float64 [3, objectives], losses, right answers, targets; and `Scoring`'s finer ones."""

    sums: torch.Tensor
    details: torch.Tensor | None


def _sums(scoring: Scoring, heldout: HeldOut, world: World, stop_asked: Callable[[], bool]) -> _Sums:
    names = scoring.names
    sums = torch.zeros(3, len(names), dtype=torch.float64)
    details: torch.Tensor | None = None
    more = {"mask_id": torch.tensor(heldout.mask), **({} if heldout.bands is None else {BANDS_FIELD: heldout.bands})}
    scoring.eval()
    try:
        loaded = ({**heldout.load(start, stop), **more} for start, stop in heldout.batches(world))
        with prefetched(loaded, world.device) as batches:
            for batch in batches:
                if world.total([int(stop_asked())])[0]:
                    raise Interrupted
                sums[2] += torch.tensor(scoring.targets(batch), dtype=torch.float64)
                figures, finer = scoring(move(batch, world.device))
                sums[:2] += figures.cpu()
                details = finer.cpu() if details is None else details + finer.cpu()
    finally:
        scoring.train()
    return _Sums(world.total_of(sums), None if details is None else world.total_of(details))


def _added(tensors: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    there = [tensor for tensor in tensors if tensor is not None]
    return sum(there[1:], there[0]) if there else None


def _figures(scoring: Scoring, sums: torch.Tensor, details: torch.Tensor | None) -> dict[str, float]:
    """The means, by name, of what there is something to predict for."""
    names, found = scoring.names, dict[str, float]()
    for name, loss, correct, count in zip(names, *sums.tolist(), strict=True):
        if count:
            found |= {_heldout(f"{name}_loss", names): loss / count, _heldout(f"{name}_accuracy", names): correct / count}
    if details is not None:
        for name, total, count in zip(scoring.detail_names, *details.tolist(), strict=True):
            if count:
                found[_heldout(name, names)] = total / count
    if "heldout_loss" in found:
        found["heldout_perplexity"] = math.exp(min(found["heldout_loss"], 700.0))
    return found


def _heldout(name: str, objectives: Sequence[str]) -> str:
    """The first objective's figures are the main ones: it is not named."""
    return f"heldout_{name.removeprefix(objectives[0] + '_')}"
