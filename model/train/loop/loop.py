"""The training loop: steps, evaluations, log lines, checkpoints, stopping and resuming.

Every rank runs it; only rank 0 writes and reports. `interfaces.py` defines its input,
`step_sync.py` prepares steps and synchronizes the ranks, `cloze.model.train.engines` runs steps,
`triggers.py` decides when to log, evaluate and save, `step_results.py` records whether a step was
applied. Step, log line, evaluation and checkpoint all change one `TrainerState`, and their order
makes resuming exact.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import repeat
from typing import Any

import torch

from cloze.core import random_keys, storage
from cloze.core.artifacts import artifact, checkpoints
from cloze.core.errors import StoppedError
from cloze.core.processes import RankPhase
from cloze.core.stages.stage import BuildContext, Reporter
from cloze.model.data.batch import Prefetch, move
from cloze.model.train.distributed import StopRequest, World
from cloze.model.train.engines import create_engine
from cloze.model.train.engines.device_scalars import AsyncScalar, to_device_async
from cloze.model.train.engines.weight_copies import ema_decay_at
from cloze.model.train.loop.duration import ScheduleProgress
from cloze.model.train.loop.interfaces import EvaluationInterrupted, TrainSpec
from cloze.model.train.loop.rollback import (
    RollbackRequired,
    SkippingSource,
    all_weights_finite,
    roll_back,
)
from cloze.model.train.loop.step_results import PendingStep, StepResults
from cloze.model.train.loop.step_sync import (
    LocalRequests,
    PreparedStep,
    SyncedStep,
    prepare,
    sync_steps,
)
from cloze.model.train.loop.triggers import StepTriggers
from cloze.model.train.monitor.gradient_norms import GradientStatistics
from cloze.model.train.monitor.metrics import memory
from cloze.model.train.monitor.profiler import Profiler
from cloze.model.train.monitor.throughput import Part, Throughput
from cloze.model.train.monitor.training_logger import TrainingReporter
from cloze.model.train.monitor.watchdog import ShutdownTimeEstimator, Watchdog
from cloze.model.train.resume import state
from cloze.model.train.resume.saving import CheckpointSaver

_DROPOUT = 3  # random stream, distinct from the sampler's and the weights'
MOMENT = "moment"
# Prefix of evaluation metrics; those of the EMA begin with `heldout_ema_`.
HELDOUT = "heldout_"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingResult:
    """The result of a finished training.

    Attributes:
        progress: steps, tokens, skipped steps, first loss, best evaluation.
        last: the last log line.
        checkpoint: path of the last checkpoint, relative to `TrainSpec.path`.
        best: path of the best step's checkpoint, relative to `TrainSpec.path`; None: not kept.
        milestones: step -> path of a permanently kept checkpoint.
        session: speed and time shares, see `Throughput.session` and `CheckpointSaver.metrics`.
    """

    progress: state.TrainerState
    last: Mapping[str, Any]
    checkpoint: str
    best: str | None
    milestones: Mapping[str, str]
    session: Mapping[str, float | None]


def train(
    training: TrainSpec,
    build: BuildContext,
    world: World,
    stop: StopRequest,
    resumed: state.ResumeState | None,
    report: Reporter,
) -> TrainingResult:
    """Train to the end on this rank, from `resumed` if it is not None.

    Raises:
        StoppedError: a rank received SIGTERM or SIGINT; a checkpoint is saved.
        ClozeError: the disk is full, or too many consecutive steps had no finite gradient.
    """
    loop = _TrainingLoop(training, build, world, stop, resumed, report)
    try:
        return loop.run()
    finally:
        loop.saver.close()


class _TrainingLoop:
    """The run of a rank. `progress` is all of its state except weights and optimizer."""

    def __init__(
        self,
        training: TrainSpec,
        build: BuildContext,
        world: World,
        stop: StopRequest,
        resumed: state.ResumeState | None,
        report: Reporter,
    ) -> None:
        self.training, self.world, self.stop = training, world, stop
        self.recipe, self.execution = training.recipe, build.execution
        record = state.RunInfo(
            fingerprint=build.fingerprint,
            build=build.build_id,
            config=training.config,
            precision=self.recipe.precision,
            compiled=training.compiled,
            engine=training.engine.name,
            zero=training.engine.zero,
            packages=artifact.package_versions(),
            begun=training.begun,
            data=training.data,
        )
        self.progress = state.TrainerState() if resumed is None else resumed.progress
        self.telling = TrainingReporter(
            training, world, report, lambda: (self.progress.step, self.due.last(self.progress))
        )
        self.due = StepTriggers(training, self.execution)
        self.outcomes = StepResults(training, world, self.telling)
        self.source = SkippingSource(training.source, self.progress.passed)
        self.pulse = world.pulse
        self.watchdog = Watchdog(world.pulse, self.execution.hang_seconds, training.compiled)
        self.world.timeline.begin()
        self.throughput = Throughput(world.timeline, training.utilisation)
        self.grace = ShutdownTimeEstimator(report, training.trained.model, world)
        self._saved: int | None = None  # step of the newest checkpoint
        self.saver = CheckpointSaver(
            training.path,
            world,
            saved=training.saved,
            run=record,
            keep=self.execution.keep_checkpoints,
            averages=self.recipe.ema is not None,
            sync=self.telling.sync,
        )
        self.engine = create_engine(
            training.engine,
            training.trained,
            self.recipe,
            world,
            micro_batch=training.micro_batch,
            accumulation=training.accumulation,
        )
        self.profiler = Profiler(self.execution.profile_steps, build.path, world)
        self.look = GradientStatistics(self.engine, training.trained.model, world)
        self._resume(resumed)

    def _resume(self, resumed: state.ResumeState | None) -> None:
        progress, notes = self.progress, list(self.training.notes)
        if resumed is not None:
            self._load(resumed)
            self._restore_scale()
            if resumed.same_run:
                self.outcomes.restore(progress)
                self._saved = progress.step
        dropped = self.telling.resume(progress.step, progress.pending is not None)
        if resumed is not None and resumed.same_run:
            notes.append(
                f"going on from {checkpoints.STEPS}/{checkpoints.step_name(progress.step)}"
            )
        elif resumed is not None:
            notes.append(f"a new phase after step {progress.step} of {resumed.path}")
        if dropped and (resumed is None or not resumed.same_run):
            notes.append(
                f"starting again from step {progress.step}: no checkpoint was finished, {dropped} "
                f"log lines are dropped"
            )
        for note in notes:
            self.telling.message(note)
        for warning in self.training.warnings:
            self.telling.message(warning, "warning")
        engine = self.training.engine
        self.telling.report_progress(
            {
                "precision": self.recipe.precision,
                "device": str(self.world.device),
                "processes": self.world.size,
                "engine": engine.name + (f" ZeRO {engine.zero}" if engine.zero else ""),
                "threads": torch.get_num_threads(),
                "compiled": self.training.compiled,
                "micro_batch": (
                    f"{self.training.micro_batch} x {self.training.accumulation} x "
                    f"{self.world.size}"
                ),
                **self.training.figures,
            }
        )

    def _load(self, found: state.ResumeState) -> None:
        """Load weights, EMA and optimizer state of a checkpoint."""
        self.engine.load_weights(found.weights)
        if self.recipe.ema is not None and found.average is not None:
            self.engine.load_ema(found.average)
        self.engine.load_optimizer_state(found.optimizer, found.progress.updates)
        for tensors in (found.weights, found.optimizer, found.average):
            if tensors is not None:
                tensors.clear()

    def run(self) -> TrainingResult:
        """Train to the end; see `train`."""
        progress, training = self.progress, self.training
        due = self.due
        if progress.pending is not None:
            unfinished, progress.pending = progress.pending, None
            moment = unfinished.pop(MOMENT, None)
            self._finish_line(
                unfinished,
                due.progress_at(progress.step) if moment is None else ScheduleProgress(**moment),
            )
        while not due.should_stop(self.progress):
            try:
                self._steps()
                self.watchdog.end()
                self._save()
                break
            except RollbackRequired as found:
                self.watchdog.end()
                self._go_back(found)
        if note := self.profiler.close(self.progress.step):
            self.telling.message(note)
        progress = self.progress
        last = due.last(progress)
        if last is not None and progress.step < last:
            self.telling.message(
                f"stopped early after step {progress.step} of {last}: the best is {progress.best}"
            )
        self._save()
        self._settle()
        if self.world.is_rank_zero:
            with self.world.fence.held():
                state.prune_finished(training.path, due.retained_steps(progress))
        best = due.best_step(progress)
        return TrainingResult(
            progress=progress,
            last=self.telling.metrics.last() if self.world.is_rank_zero else {},
            checkpoint=f"{checkpoints.STEPS}/{checkpoints.step_name(progress.step)}",
            best=None if best is None else f"{checkpoints.STEPS}/{checkpoints.step_name(best)}",
            milestones=state.milestone_checkpoints(training.path, training.milestones),
            session={**self.throughput.session(), **self.saver.metrics()},
        )

    def _steps(self) -> None:
        """Run all steps to the last one, or until patience ends the training."""
        progress, pace = self.progress, self.recipe.pace
        asks = LocalRequests(
            stop=lambda: self.stop.asked or self.saver.failed,
            save=self.due.save_timer_expired,
            fix=lambda step: 0 if progress.budget else pace.fix(step),
            over=lambda: self.due.should_stop(progress),
        )
        with Prefetch(prepare(self.training, self.source, self.world, progress.step)) as prepared:
            self.throughput.begin()
            self.watchdog.begin(progress.step + 1)
            for work, agreed in sync_steps(self._waiting(prepared), self.world, asks):
                if agreed.stop:
                    self._stop()
                if agreed.save and not progress.skipped_in_a_row:
                    self._save()
                if agreed.last and not progress.budget:
                    progress.budget = [progress.step, agreed.last]
                moment = pace.progress_at(
                    progress.step, progress.tokens, agreed.tokens, progress.budget
                )
                with self.pulse.phase(RankPhase.COMPUTING):
                    line = self._step(work, agreed, moment)
                if self.due.ends_tenth(progress.step, moment):
                    progress.kept.append(progress.step)
                self.throughput.step(agreed.tokens, work.sizes)
                if line is not None:
                    with self.pulse.phase(RankPhase.LOGGING):
                        self._finish_line({**line, **self.throughput.line()}, moment)
                if self.due.should_save(progress):
                    self._save()
                if self.profiler.active:
                    with self._aside("save"):
                        note = self.profiler.stepped(progress.step)
                    if note:
                        self.telling.message(note)
                self._tell_saved()
                self.watchdog.begin(progress.step + 1)
                self.grace.observe_step(self.watchdog.median_step_seconds)

    @contextmanager
    def _aside(self, what: Part) -> Iterator[None]:
        """Exclude the block from the step's time limit, as it may take any time."""
        began = time.perf_counter()
        try:
            with self.pulse.phase(RankPhase.ASIDE), self.world.timeline.section(what):
                yield
        finally:
            self.watchdog.exclude(time.perf_counter() - began)

    def _waiting(self, items: Iterable[PreparedStep]) -> Iterator[PreparedStep]:
        """Yield the items; the time spent waiting for them counts as waiting for data."""
        iterator = iter(items)
        while True:
            with self.pulse.phase(RankPhase.DATA), self.world.timeline.section("data"):
                item = next(iterator, None)
            if item is None:
                return
            yield item

    def _step(
        self, work: PreparedStep, agreed: SyncedStep, moment: ScheduleProgress
    ) -> dict[str, Any] | None:
        """Run one step and return the first part of its log line, if it gets one."""
        recipe, progress, device = self.recipe, self.progress, self.world.device
        step = progress.step  # from 0
        counts = to_device_async([max(1, total) for total in agreed.counts], torch.float32, device)
        figures = torch.zeros(2, len(agreed.counts), dtype=torch.float64, device=device)
        for number, item in enumerate(work.micro_batches):
            torch.manual_seed(int(random_keys.fold_in(recipe.seed, _DROPOUT, step, item.first)))
            figures += self.engine.backward(
                move(item.batch, device), counts, last=number + 1 == len(work.micro_batches)
            )
        rate = recipe.learning_rate_at(moment)
        logs = self.due.should_log(step + 1, moment)
        scale = (
            None if self.engine.loss_scaler is None else AsyncScalar(self.engine.loss_scaler.value)
        )
        with self.look.collect(logs):
            norm = AsyncScalar(self.engine.step(rate))
        if recipe.ema is not None:
            self.engine.update_ema(ema_decay_at(recipe.ema, step))
        progress.step, progress.tokens = step + 1, progress.tokens + agreed.tokens
        progress.by_source = [
            ours + now
            for ours, now in zip(progress.by_source or repeat(0), agreed.by_source, strict=False)
        ]
        self.outcomes.add(PendingStep(step + 1, norm, figures, counts, scale))
        self._read(keep=0 if logs or device.type == "cpu" else 1)
        if not logs:
            self.telling.report_progress_throttled()
            return None
        line = {
            "step": progress.step,
            **self.outcomes.window.means(self.world),
            **self.look.metrics(norm.value),
            **recipe.learning_rates_at(moment),
            "tokens": progress.tokens,
            "skipped": progress.skipped,
            **({} if scale is None else {"loss_scale": scale.value}),
            **self._mixed_figures(),
        }
        self.outcomes.reset_window()
        if progress.step == self.training.begun.step + 1:
            progress.first_loss = line.get("loss")
            self.telling.first_loss(progress.first_loss)
        return line

    def _mixed_figures(self) -> dict[str, float]:
        mixed, progress = self.training.mixed, self.progress
        return (
            {}
            if mixed is None
            else mixed.figures(self.source.samples(progress.step), progress.by_source)
        )

    def _read(self, keep: int) -> None:
        self.outcomes.process(self.progress, self.source, keep=keep)

    def _restore_scale(self) -> None:
        if self.engine.loss_scaler is not None:
            self.engine.loss_scaler.restore(self.progress.loss_scale)

    def _go_back(self, found: RollbackRequired) -> None:
        """Roll back to the last good checkpoint and skip the rows of the steps since then."""
        self._settle()
        before, bad = roll_back(
            found, self.training, self.progress, self.world, self.telling.skipped_steps
        )
        self._load(before)
        self.progress = before.progress
        self._restore_scale()
        self.source = SkippingSource(self.training.source, self.progress.passed)
        self.outcomes.restore(self.progress)
        self._saved = self.progress.step
        self.telling.metrics.truncate(self.progress.step)
        self.telling.message(bad, "warning")

    def _finish_line(self, line: dict[str, Any], moment: ScheduleProgress) -> None:
        """Add the evaluation if one is due, then write and report the log line."""
        measure, progress = self.training.measure, self.progress
        if measure is not None and self.due.should_evaluate(progress.step, moment):
            try:
                with self._aside("evaluation"):
                    line |= measure(progress.step, moment, lambda: self.stop.asked)
                    if self.recipe.ema is not None:
                        with self.engine.ema_weights():
                            found = measure(progress.step, moment, lambda: self.stop.asked)
                        line |= {
                            name.replace(HELDOUT, f"{HELDOUT}ema_", 1): value
                            for name, value in found.items()
                        }
            except EvaluationInterrupted:
                progress.pending = {**line, MOMENT: asdict(moment)}
                self._stop()
            now, best = line.get(measure.best_metric), progress.best
            if now is not None and (
                best is None
                or (
                    now > best[measure.best_metric]
                    if measure.higher_is_better
                    else now < best[measure.best_metric]
                )
            ):
                progress.best = {"step": progress.step, measure.best_metric: now}
        line |= {
            **self.world.timeline.line(),
            **memory(self.world.device),
            "time": round(time.time(), 3),
        }
        self.telling.log(line)

    def _save(self) -> None:
        """Start to write this step's checkpoint unless it exists. Every rank must call it."""
        self._read(keep=0)
        if self._saved == self.progress.step:
            return
        if not all_weights_finite(self.training.trained.model, self.world):
            raise RollbackRequired(self.progress.step, max(1, self.progress.skipped_in_a_row))
        with self._aside("save"):
            self.progress.window = self.outcomes.window.state(self.world)
            self.progress.loss_scale = (
                [] if self.engine.loss_scaler is None else self.engine.loss_scaler.state()
            )
            self.progress.samples = samples = self.source.samples(self.progress.step)
            datasets: Sequence[Mapping[str, Any]] = ()
            self.progress.places = {}
            if (mixed := self.training.mixed) is not None:
                self.progress.places, datasets = (
                    mixed.places(samples),
                    mixed.summary(samples, self.progress.by_source),
                )
            self.saver.save_async(
                self.progress, self.due.retained_steps(self.progress), self.engine, datasets
            )
        self._saved = self.progress.step

    def _settle(self) -> None:
        """Wait until the last checkpoint is complete."""
        with self._aside("save"):
            self.saver.wait()
        self._tell_saved()

    def _tell_saved(self) -> None:
        """Report newly completed checkpoints."""
        for step, seconds in self.saver.pop_completed():
            # A stop may come while another checkpoint is being written.
            self.grace.observe_save(2 * seconds)
            self.telling.checkpoint(step)

    def _stop(self) -> None:
        self._save()
        self._settle()
        saved = storage.join(
            self.training.path, checkpoints.STEPS, checkpoints.step_name(self.progress.step)
        )
        last = self.due.last(self.progress)
        of = "" if last is None else f" of {last}"
        raise StoppedError(
            f"training was stopped after step {self.progress.step}{of}; {saved} is saved: run "
            f"again to go on"
        )
