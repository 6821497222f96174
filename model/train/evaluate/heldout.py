"""Held-out evaluation during training: its schedule and its metrics."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from cloze.model.data.batch import move, prefetch_batches
from cloze.model.objectives.losses import BANDS_FIELD
from cloze.model.train.distributed import World
from cloze.model.train.evaluate.heldout_set import FEWEST_ROWS, HeldoutSet
from cloze.model.train.evaluate.scoring import PretrainModule
from cloze.model.train.loop.interfaces import EvaluationInterrupted
from cloze.model.train.loop.schedules import BatchSizeSchedule, ScheduleProgress

FORWARD_COST = 1 / 3  # of training on a row: the backward pass takes twice as long
SHARE = 0.05  # maximum share of the training time
EVALUATIONS = 10  # per run, by default


@dataclass(frozen=True, slots=True)
class EvaluationSchedule:
    """Interval and size of evaluations.

    Attributes:
        every: steps between evaluations.
        rows: rows of every evaluation except the last.
        last: rows of the last evaluation.
    """

    every: int
    rows: int
    last: int

    @classmethod
    def within(
        cls, steps: int, trained: int, wanted: int, every: int | None, passes: int = 1
    ) -> EvaluationSchedule:
        """Return a schedule that costs at most `SHARE` of training on `trained` rows.

        The last evaluation gets half of that, the earlier ones the rest; short runs have fewer
        evaluations over fewer rows. A requested interval is kept, and no evaluation has fewer than
        `FEWEST_ROWS` rows.

        Args:
            wanted: maximum number of rows per evaluation.
            every: requested interval; None: `EVALUATIONS` in all, if they can be afforded.
            passes: how many times each row is scored.
        """
        min_rows, last_rows, remaining_rows = cls._rows(trained, wanted, passes)
        if every is None:
            evaluations = cls.affordable(trained, wanted, passes)
            every = max(steps // (evaluations + 1), 1)
            if (steps - 1) // every * min_rows > remaining_rows:
                every = -(-steps // (evaluations + 1))
        evaluations = (steps - 1) // every
        return cls(
            every, min(wanted, max(min_rows, remaining_rows // max(1, evaluations))), last_rows
        )

    @classmethod
    def affordable(cls, trained: int, wanted: int, passes: int = 1) -> int:
        """Return the default number of evaluations before the last one; see `within`."""
        min_rows, _, remaining_rows = cls._rows(trained, wanted, passes)
        return min(EVALUATIONS - 1, remaining_rows // max(1, min_rows))

    @classmethod
    def _rows(cls, trained: int, wanted: int, passes: int) -> tuple[int, int, int]:
        """Return minimum rows of an evaluation, rows of the last, and total of all others."""
        affordable_rows = int(SHARE / FORWARD_COST * trained / passes)
        min_rows = min(wanted, FEWEST_ROWS)
        last_rows = min(wanted, max(min_rows, affordable_rows // 2))
        return min_rows, last_rows, max(0, affordable_rows - last_rows)


@dataclass(slots=True, kw_only=True)
class HeldoutEvaluator:
    """The evaluator of a pretraining; see `cloze.model.train.loop.interfaces.Evaluator`.

    Attributes:
        heldout: all rows that may be scored.
        batches: batch size schedule.
        begun: first step of this training.
        steps: number of steps; None: unknown, and extrapolated from the schedule progress.
        every: requested interval.
        passes: how many times the rows are scored: twice with EMA.
        row_seconds: seconds per row in the newest evaluation; None: no evaluation yet.
    """

    scoring: PretrainModule
    heldout: HeldoutSet
    world: World
    batches: BatchSizeSchedule
    begun: int
    steps: int | None
    every: int | None = None
    passes: int = 1
    row_seconds: float | None = None
    best_metric: str = "heldout_loss"
    higher_is_better: bool = False

    def looks(self, steps: int) -> EvaluationSchedule:
        """Return the evaluation schedule for this number of steps."""
        return EvaluationSchedule.within(
            steps, self.batches.samples_before(steps), self.heldout.rows, self.every, self.passes
        )

    def due(self, step: int, moment: ScheduleProgress) -> bool:
        if self.steps is None and self.every is None:
            trained = self.batches.samples_before(self._all_steps(step, moment))
            return moment.crosses(
                1 + EvaluationSchedule.affordable(trained, self.heldout.rows, self.passes)
            )
        return step % (self.every or self.looks(self.steps or 1).every) == 0

    def __call__(
        self, step: int, moment: ScheduleProgress, stop_asked: Callable[[], bool]
    ) -> dict[str, float]:
        rows, start = self.rows(step, moment), time.perf_counter()
        metrics = evaluate(self.scoring, replace(self.heldout, rows=rows), self.world, stop_asked)
        self.row_seconds = (time.perf_counter() - start) / max(1, rows)
        return metrics

    def rows(self, step: int, moment: ScheduleProgress) -> int:
        """Return the number of rows to score after `step` steps."""
        schedule = self.looks(self._all_steps(step, moment))
        return schedule.last if moment.last else schedule.rows

    def _all_steps(self, step: int, moment: ScheduleProgress) -> int:
        """Return the number of steps, extrapolated from the last step's size if unknown."""
        if self.steps is not None:
            return self.steps
        remaining = moment.total - moment.done - moment.step_size
        return (
            step
            - self.begun
            + (max(0, round(remaining / moment.step_size)) if moment.step_size > 0 else 0)
        )

    def closing(self, step_seconds: float) -> float:
        """Return the maximum seconds of the last evaluation, given the seconds per step."""
        return (
            self.passes
            * self.heldout.rows
            * (self.row_seconds or FORWARD_COST * step_seconds / self.batches.last)
        )


@torch.no_grad()
def evaluate(
    scoring: PretrainModule,
    heldout: HeldoutSet,
    world: World,
    stop_asked: Callable[[], bool] = lambda: False,
    groups: list[tuple[float, float]] | None = None,
) -> dict[str, float]:
    """Score the held-out rows.

    Args:
        scoring: the trained module; left in training mode.
        stop_asked: True if this rank was asked to stop; called between batches.
        groups: if given, collects (predictions, summed loss) of the first objective for each batch
            of this rank.

    Returns:
        Of the first objective, usually mlm: heldout_loss (nats), heldout_perplexity,
        heldout_accuracy and its details (`heldout_top5_accuracy`, `heldout_loss_rare` …). Other
        objectives have their name in the metric, as in `heldout_nsp_loss`. Metrics without
        predictions are left out. Of a mixture also the losses of each dataset, as in
        `heldout_loss_wiki`.

    Raises:
        EvaluationInterrupted: a rank was asked to stop.
    """
    sums = {
        name: _sums(scoring, dataset, world, stop_asked, groups)
        for name, dataset in heldout.parts()
        if dataset.rows
    }
    if not sums:
        return {}
    metrics = _figures(scoring, torch.stack(list(sums.values())).sum(dim=0))
    for name, dataset_sums in sums.items():
        if name:
            metrics |= {
                f"{metric}_{name}": value
                for metric, value in _figures(
                    scoring, dataset_sums[:, : len(scoring.names)]
                ).items()
                if "loss" in metric
            }
    return {name: round(value, 6) for name, value in metrics.items()}


def _sums(
    scoring: PretrainModule,
    heldout: HeldoutSet,
    world: World,
    stop_asked: Callable[[], bool],
    groups: list[tuple[float, float]] | None,
) -> torch.Tensor:
    """Return sums over held-out rows and all ranks, float64 [3, objectives + details].

    Of an objective: losses, correct answers, targets. Of a detail: its sum, its count, and 0; see
    `PretrainModule.predict`. They are added up on the device, which is asked once, at the end.
    """
    device, objectives = world.device, len(scoring.names)
    constants = {"mask_id": torch.tensor(heldout.mask)}
    if heldout.bands is not None:
        constants[BANDS_FIELD] = heldout.bands
    constants = move(constants, device)
    target_counts: list[list[int]] = []
    batch_losses: list[torch.Tensor] = []
    sums: torch.Tensor | float = 0.0
    scoring.eval()
    try:
        host_batches = (heldout.load(start, stop) for start, stop in heldout.batches(world))
        with prefetch_batches(host_batches, device) as batches:
            for batch in batches:
                if world.all_reduce_sum([int(stop_asked())])[0]:
                    raise EvaluationInterrupted
                target_counts.append(scoring.count_targets(batch))
                batch_sums = torch.cat(scoring({**move(batch, device), **constants}), dim=1)
                sums = batch_sums + sums
                batch_losses.append(batch_sums[0, 0])
    finally:
        scoring.train()
    assert isinstance(sums, torch.Tensor)
    if groups is not None:
        predictions = [float(counts[0]) for counts in target_counts]
        groups += zip(predictions, torch.stack(batch_losses).tolist(), strict=True)
    counts = torch.tensor(target_counts, dtype=torch.float64).sum(dim=0)
    filled = torch.nn.functional.pad(counts, (0, sums.shape[1] - objectives))
    return world.all_reduce_tensor(torch.cat([sums.cpu(), filled[None]]))


def _figures(scoring: PretrainModule, sums: torch.Tensor) -> dict[str, float]:
    """Return the means by name of what has predictions. Args: sums: as from `_sums`."""
    names, metrics = scoring.names, dict[str, float]()
    for name, loss, correct, count in zip(names, *sums[:, : len(names)].tolist(), strict=True):
        if count:
            metrics |= {
                _heldout(f"{name}_loss", names): loss / count,
                _heldout(f"{name}_accuracy", names): correct / count,
            }
    details = sums[:2, len(names) :].tolist()
    for name, total, count in zip(scoring.detail_names, *details, strict=False):
        if count:
            metrics[_heldout(name, names)] = total / count
    if "heldout_loss" in metrics:
        metrics["heldout_perplexity"] = math.exp(min(metrics["heldout_loss"], 700.0))
    return metrics


def _heldout(name: str, objectives: Sequence[str]) -> str:
    """Return the metric's name: the first objective is the main one and is not named."""
    return f"heldout_{name.removeprefix(objectives[0] + '_')}"
