"""The training loop: steps, evaluations, log lines, checkpoints, stopping and resuming.

Every rank runs it; only rank 0 writes and reports. `train_spec.py` defines its input, `steps.py`
computes steps and synchronizes the ranks, `triggers.py` decides when to log, evaluate and save.
Everything changes one `TrainerState`, and the order of the changes makes resuming exact.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch

from cloze.core import storage
from cloze.core.artifacts import artifact
from cloze.core.errors import StoppedError
from cloze.core.figures import goodness
from cloze.core.processes import RankPhase
from cloze.core.stages.stage import BuildContext, Reporter
from cloze.model.data.batch import Prefetch
from cloze.model.train.distributed import StopRequest, World
from cloze.model.train.loop.rollback import (
    RollbackRequired,
    pass_over,
    require_finite_weights,
    roll_back,
)
from cloze.model.train.loop.steps import (
    LocalRequests,
    StepResults,
    StepRunner,
    prepare,
    sync_steps,
)
from cloze.model.train.loop.triggers import StepTriggers
from cloze.model.train.monitor.cost import CostMeter, cost_metrics
from cloze.model.train.monitor.log import TrainingReporter, memory
from cloze.model.train.monitor.profiler import Profiler
from cloze.model.train.monitor.watchdog import ShutdownTimeEstimator, StepTimer
from cloze.model.train.resume import state
from cloze.model.train.resume.saving import CheckpointSaver
from cloze.model.train.spec.interfaces import EvaluationInterrupted, StepBatches
from cloze.model.train.spec.progress import RunInfo, TrainerState
from cloze.model.train.spec.schedules import ScheduleProgress
from cloze.model.train.spec.train_spec import TrainingResult, TrainSpec
from cloze.model.train.throughput import Throughput

SCHEDULE_PROGRESS = "position"  # in a log line that waits for its evaluation, in a checkpoint


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
        execution = build.execution
        self.training, self.world, self.stop = training, world, stop
        self.progress = TrainerState() if resumed is None else resumed.progress
        self.triggers, self.next_line = StepTriggers(training, execution), 0
        self.reporter = TrainingReporter(training, world, report, self._step_numbers)
        self.results = StepResults(training, world, self.reporter)
        self.source = pass_over(training.data.source, self.progress.passed)
        self.timer = StepTimer(world, execution.hang_seconds, training.execution.compiled)
        world.timeline.begin()
        self.throughput = Throughput(world.timeline, training.logging.mfu_meter)
        self.shutdown_time = ShutdownTimeEstimator(report, training.trained.model, world)
        self.saver = CheckpointSaver(
            training.path,
            world,
            saved=training.checkpoints.metadata,
            run=_run_info(training, build),
            keep=execution.keep_checkpoints,
            sync=self.reporter.sync,
        )
        self.saved_step: int | None = None  # step of the newest checkpoint
        self.runner = StepRunner(training, world)
        self.profiler = Profiler(execution.profile_steps, build.path, world)
        self._resume(resumed)

    def _step_numbers(self) -> tuple[int, int | None]:
        """Return the newest step, and the last step or None while it is unknown."""
        return self.progress.step, self.triggers.last(self.progress)

    def _resume(self, resumed: state.ResumeState | None) -> None:
        """Load the checkpoint, drop log lines after it, and report the setting."""
        progress, logging, step = self.progress, self.training.logging, self.progress.step
        notes, own = list(logging.notes), resumed is not None and resumed.same_run
        if resumed is not None:
            self.runner.load(resumed)
        if own:
            self.results.restore(progress)
            self.saved_step = step
        self.cost = CostMeter(
            self.world,
            logging.flops_per_token,
            logging.words_per_token,
            self.reporter.costs_at(step) if own else {},
        )
        dropped = self.reporter.resume(step, progress.pending is not None)
        if own:
            notes.append(f"resuming from {state.step_path(step)}")
        elif resumed is not None:
            notes.append(f"a new phase after step {step} of {resumed.path}")
        if dropped and not own:
            notes.append(
                f"starting again from step {step}: no checkpoint was finished, {dropped} log lines "
                f"are dropped"
            )
        for note in notes:
            self.reporter.message(note)
        for warning in logging.warnings:
            self.reporter.message(warning, "warning")
        execution, ranks = self.training.execution, self.world.size
        zero = f" ZeRO {execution.engine.zero}" if execution.engine.zero else ""
        self.reporter.report_progress(
            {
                "precision": self.training.hyperparameters.precision,
                "device": str(self.world.device),
                "processes": ranks,
                "engine": execution.engine.name + zero,
                "threads": torch.get_num_threads(),
                "compiled": execution.compiled,
                "micro_batch": f"{execution.micro_batch} x {execution.accumulation} x {ranks}",
                **logging.figures,
            }
        )

    def run(self) -> TrainingResult:
        """Train to the end; see `train`."""
        training, triggers = self.training, self.triggers
        self._finish_pending()
        while not triggers.should_stop(self.progress):
            try:
                self._steps()
                self.timer.end()
                self._save()
                break
            except RollbackRequired as request:
                self.timer.end()
                self._roll_back(request)
        progress = self.progress
        self._note(self.profiler.close(progress.step))
        last_step = triggers.last(progress)
        if last_step is not None and progress.step < last_step:
            self.reporter.message(
                f"stopped early after step {progress.step} of {last_step}: the best is "
                f"{progress.best or 'none, as no figure was finite'}"
            )
        self._save()
        self._wait_for_save()
        if self.world.is_rank_zero:
            with self.world.fence.locked():
                self.reporter.sync()  # a line finished after a resume comes after the checkpoint
                state.prune_finished(training.path, triggers.retained_steps(progress))
        best = triggers.best_step(progress)
        return TrainingResult(
            progress=progress,
            last=self.reporter.metrics.last() if self.world.is_rank_zero else {},
            checkpoint=state.step_path(progress.step),
            best=None if best is None else state.step_path(best),
            milestones=state.milestone_checkpoints(training.path, training.checkpoints.milestones),
            session={
                **self.throughput.session(),
                **self.saver.metrics(),
                **cost_metrics(self.cost.totals()),
            },
        )

    def _steps(self) -> None:
        """Run all steps to the last one, or until patience ends the training."""
        progress, pulse = self.progress, self.world.pulse
        duration = self.training.hyperparameters.duration
        requests = LocalRequests(
            stop=lambda: self.stop.requested or self.saver.failed,
            save=self.triggers.save_timer_expired,
            fix=lambda step: 0 if progress.budget else duration.fix(step),
            over=lambda: self.triggers.should_stop(progress),
        )
        with Prefetch(prepare(self.training, self.source, self.world, progress.step)) as prepared:
            self.throughput.begin()
            self.timer.begin(progress.step + 1)
            for work in sync_steps(self.timer.wait_for(prepared), self.world, requests):
                if work.stop:
                    self._stop()
                # A save among skipped steps could prune the checkpoint that a rollback needs.
                if work.save and not progress.skipped_in_a_row:
                    self._save()
                if work.last and not progress.budget:
                    progress.budget = [progress.step, work.last]
                schedule_progress = duration.progress_at(
                    progress.step, progress.tokens, work.tokens, progress.budget
                )
                with pulse.phase(RankPhase.COMPUTING):
                    record = self._step(work, schedule_progress)
                if self.triggers.should_keep(progress, work.tokens, schedule_progress):
                    progress.kept.append(progress.step)
                self.throughput.step(work.tokens, work.sizes)
                self.cost.add(work.tokens, work.by_source, work.sizes)
                if record is None:
                    self.reporter.report_progress_throttled()
                else:
                    with pulse.phase(RankPhase.LOGGING):
                        self._finish_line({**record, **self.throughput.line()}, schedule_progress)
                if self.triggers.should_save(progress):
                    self._save()
                if self.profiler.active:
                    with self.timer.exclude("save"):
                        self._note(self.profiler.stepped(progress.step))
                self._report_saved()
                self.timer.begin(progress.step + 1)
                self.shutdown_time.observe_step(self.timer.median_step_seconds)

    def _step(
        self, work: StepBatches, schedule_progress: ScheduleProgress
    ) -> dict[str, Any] | None:
        """Run one step and return the first part of its log line, if it gets one."""
        hyperparameters, progress = self.training.hyperparameters, self.progress
        step = progress.step + 1
        if asked := step >= self.next_line:
            self.next_line = self.triggers.next_line(step)
        logs = asked and self.triggers.should_log(step, schedule_progress)
        # The engine sets it, times the `rate` of each group of parameters.
        rate = hyperparameters.learning_rate * hyperparameters.schedule.factor(
            schedule_progress.done, schedule_progress.total, schedule_progress.step_size
        )
        pending = self.runner.run(work, rate)
        progress.step, progress.tokens = progress.step + 1, progress.tokens + work.tokens
        if work.by_source:  # of a mixture
            before = progress.by_source or [0] * len(work.by_source)
            progress.by_source = [sum(pair) for pair in zip(before, work.by_source, strict=True)]
        keep = 0 if logs or self.world.device.type == "cpu" else 1  # a GPU still computes
        self.results.process(progress, self.source, pending, keep=keep)
        if not logs:
            return None
        record = {
            "step": progress.step,
            **self.results.window.means(self.world),
            **hyperparameters.learning_rates_at(schedule_progress),
            "tokens": progress.tokens,
            "skipped": progress.skipped,
            **({} if pending.scale is None else {"loss_scale": pending.scale.value}),
        }
        if (mixture := self.training.data.mixture) is not None:
            record |= mixture.figures(self.source.samples(progress.step), progress.by_source)
        self.results.reset_window()
        if progress.step == self.training.data.start_position.step + 1:
            progress.first_loss = record.get("loss")
        return record

    def _note(self, note: str | None) -> None:
        if note is not None:
            self.reporter.message(note)

    def _roll_back(self, request: RollbackRequired) -> None:
        """Roll back to the last good checkpoint and skip the rows of the steps since then."""
        self._wait_for_save()
        checkpoint, warning = roll_back(
            request, self.training, self.progress, self.world, self.reporter.skipped_steps
        )
        self.runner.load(checkpoint)
        self.progress, self.next_line = checkpoint.progress, 0
        self.source = pass_over(self.training.data.source, self.progress.passed)
        self.results.restore(self.progress)
        self.saved_step = self.progress.step
        self.reporter.metrics.truncate(self.progress.step - (self.progress.pending is not None))
        self.reporter.message(warning, "warning")
        self._finish_pending()

    def _finish_pending(self) -> None:
        """Finish the log line of the checkpoint's step if a stop interrupted its evaluation."""
        if (record := self.progress.pending) is not None:
            self.progress.pending = None
            self._finish_line(record, ScheduleProgress(**record.pop(SCHEDULE_PROGRESS)))

    def _finish_line(self, line: dict[str, Any], schedule_progress: ScheduleProgress) -> None:
        """Add the evaluation if one is due, then write and report the log line."""
        progress = self.progress
        if self.triggers.should_evaluate(progress.step, schedule_progress):
            try:
                with self.timer.exclude("evaluation"):
                    self._evaluate(line, schedule_progress)
            except EvaluationInterrupted:
                progress.pending = {**line, SCHEDULE_PROGRESS: asdict(schedule_progress)}
                self._stop()
        line |= {**self.world.timeline.line(), **memory(self.world.device)}
        self.reporter.log({**line, "time": round(time.time(), 3)})

    def _evaluate(self, line: dict[str, Any], schedule_progress: ScheduleProgress) -> None:
        """Add the metrics of the weights to `line`, and update the best step."""
        evaluator, progress = self.training.evaluator, self.progress
        assert evaluator is not None
        require_finite_weights(self.training.trained.model, self.world, progress)
        line |= evaluator(progress.step, schedule_progress, self._stop_requested)
        metric, best = evaluator.best_metric, progress.best or {}
        if goodness(line.get(metric), metric) > goodness(best.get(metric), metric):
            progress.best = {"step": progress.step, metric: line[metric]}

    def _stop_requested(self) -> bool:
        """Called before each batch of an evaluation, so that the time limit is that of a batch."""
        self.world.pulse.set_phase(RankPhase.EVALUATING_OR_SAVING)
        return self.stop.requested

    def _save(self) -> None:
        """Start to write this step's checkpoint unless it exists. Every rank must call it."""
        progress = self.progress
        # First, so that the checkpoint counts every step, and a rollback comes before the save.
        self.results.process(progress, self.source, keep=0)
        if self.saved_step == progress.step:
            return
        require_finite_weights(self.training.trained.model, self.world, progress)
        with self.timer.exclude("save"):
            progress.window = self.results.window.state(self.world)
            progress.loss_scale = self.runner.loss_scale_state()
            progress.samples = self.source.samples(progress.step)
            self.reporter.costs.add({"step": progress.step, **self.cost.totals()})
            progress.places, datasets = {}, list[Mapping[str, Any]]()
            if (mixture := self.training.data.mixture) is not None:
                progress.places = mixture.next_samples(progress.samples)
                datasets += mixture.summary(progress.samples, progress.by_source)
            self.saver.save_async(
                progress, self.triggers.retained_steps(progress), self.runner.engine, datasets
            )
        self.saved_step = progress.step

    def _wait_for_save(self) -> None:
        """Wait until the last checkpoint is complete."""
        with self.timer.exclude("save"):
            self.saver.wait()
        self._report_saved()

    def _report_saved(self) -> None:
        """Report newly completed checkpoints."""
        for step, seconds in self.saver.pop_completed():
            self.shutdown_time.observe_save(seconds)
            self.reporter.checkpoint(step)

    def _stop(self) -> None:
        self._save()
        self._wait_for_save()
        step, last_step = self._step_numbers()
        path, total = self.training.path, "" if last_step is None else f" of {last_step}"
        raise StoppedError(
            f"training was stopped after step {step}{total}; "
            f"{storage.join(path, state.step_path(step))} is saved: run again to continue"
        )


def _run_info(training: TrainSpec, build: BuildContext) -> RunInfo:
    engine = training.execution.engine
    return RunInfo(
        fingerprint=build.fingerprint,
        build=build.build_id,
        config=training.config,
        precision=training.hyperparameters.precision,
        compiled=training.execution.compiled,
        engine=engine.name,
        zero=engine.zero,
        packages=artifact.package_versions(),
        start_position=training.data.start_position,
        data=training.data.fingerprint,
    )
