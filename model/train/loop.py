"""The training loop, whatever is trained: steps, measurements, log lines, checkpoints, stopping and resuming.

Every rank runs it; only the first writes and reports. `model.train.interfaces` says what it is given, `model.train.steps` how
a step is prepared and agreed on, `model.train.engines` how it is run, `model.train.due` when what is due, `model.train.outcomes` what became
of it. The rest is one thing: a step, its line, its measurement and its checkpoint change one `Progress`, and their order is what makes a
resume exact.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import repeat
from typing import Any

import torch

from model.data.batch import move
from model.data.prefetch import Prefetch
from model.train import state
from model.train.arriving import Arriving, departing
from model.train.clock import Clock
from model.train.distributed import StopRequest, World
from model.train.due import Due
from model.train.engines.average import decay_at
from model.train.engines.create import create
from model.train.grace import Grace
from model.train.interfaces import Interrupted, Training
from model.train.look import Look
from model.train.metrics import memory
from model.train.outcomes import Outcomes, Stepped
from model.train.pace import Moment
from model.train.profiler import Profiler
from model.train.rollback import Passing, RollBack, go_back, sound
from model.train.saving import Saver
from model.train.steps import Agreed, Asks, Prepared, agree, prepare
from model.train.telling import Telling
from model.train.waits import Waits
from model.train.watchdog import Watchdog
from pipeline.core import artifact, checkpoints, random_keys, storage
from pipeline.core.errors import Stopped
from pipeline.core.pulse import Phase
from pipeline.core.reporting import Reporter
from pipeline.core.stage import Build

_DROPOUT = 3  # random stream, beside the sampler's and the weights'
MOMENT = "moment"
HELDOUT = "heldout_"  # opens the name of what is measured; that of the weights' average is `heldout_ema_…`


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A training that came to its end.

    Attributes:
        progress: steps, tokens, skipped steps, the first loss, the best measurement.
        last: the last log line.
        checkpoint: the path of the last checkpoint, relative to `Training.path`.
        best: likewise, of the step that measured best, where that is kept.
        milestones: step -> path of the checkpoint that is kept for good.
        session: speed and shares of the time, see `Clock.session`, and `Saver.figures`.
    """

    progress: state.Progress
    last: Mapping[str, Any]
    checkpoint: str
    best: str | None
    milestones: Mapping[str, str]
    session: Mapping[str, float | None]


def train(
    training: Training, build: Build, world: World, stop: StopRequest, resumed: state.Resumed | None, report: Reporter
) -> Finished:
    """Train to the end on this rank, from `resumed` if that is not None.

    Raises:
        Stopped: SIGTERM or SIGINT came to any rank; a checkpoint is saved.
        ClozeError: the disk is full, or too many steps in a row had no finite gradient.
    """
    loop = _Loop(training, build, world, stop, resumed, report)
    try:
        return loop.run()
    finally:
        loop.saver.close()


class _Loop:
    """One rank's run. `progress` is all that a checkpoint must say of it beside weights and optimizer."""

    def __init__(
        self,
        training: Training,
        build: Build,
        world: World,
        stop: StopRequest,
        resumed: state.Resumed | None,
        report: Reporter,
    ) -> None:
        self.training, self.world, self.stop = training, world, stop
        self.recipe, self.execution = training.recipe, build.execution
        record = state.Run(
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
        self.progress = state.Progress() if resumed is None else resumed.progress
        self.telling = Telling(training, world, report, lambda: (self.progress.step, self.due.last))
        self.due = Due(training, self.execution)
        self.outcomes = Outcomes(training, world, self.telling)
        self.source = Passing(training.source, self.progress.passed)
        self.pulse = world.pulse
        self.watchdog = Watchdog(world.pulse, self.execution.hang_seconds, training.compiled)
        self.clock = Clock(world.pulse, self.watchdog, world.timeline, training.utilisation)
        self.waits = Waits(world)
        self.grace = Grace(report, training.trained.model, world)
        self._saved: int | None = None  # the step of the newest checkpoint
        self.saver = Saver(
            training.path,
            world,
            saved=training.saved,
            run=record,
            keep=self.execution.keep_checkpoints,
            averages=self.recipe.ema is not None,
            sync=self._sync,
        )
        self.engine = create(
            training.engine,
            training.trained,
            self.recipe,
            world,
            micro_batch=training.micro_batch,
            accumulation=training.accumulation,
        )
        self.profiler = Profiler(self.execution.profile, build.path, world)
        self.look = Look(self.engine, training.trained.model, world)
        self._resume(resumed)

    def _resume(self, resumed: state.Resumed | None) -> None:
        progress, notes = self.progress, list(self.training.notes)
        if resumed is not None:
            self._load(resumed)
            self._restore_scale()
            if resumed.own:
                self.outcomes.restore(progress)
                self._saved = progress.step
        dropped = self.telling.resume(progress.step, progress.pending is not None)
        if resumed is not None and resumed.own:
            notes.append(f"going on from {checkpoints.STEPS}/{checkpoints.step_name(progress.step)}")
        elif resumed is not None:
            notes.append(f"a new phase after step {progress.step} of {resumed.path}")
        if dropped and (resumed is None or not resumed.own):
            notes.append(
                f"starting again from step {progress.step}: no checkpoint was finished, {dropped} log lines are dropped"
            )
        for note in notes:
            self.telling.note(note)
        for warning in self.training.warnings:
            self.telling.note(warning, "warning")
        engine = self.training.engine
        self.telling.figures(
            {
                "precision": self.recipe.precision,
                "device": str(self.world.device),
                "processes": self.world.size,
                "engine": engine.name + (f" ZeRO {engine.zero}" if engine.zero else ""),
                "threads": torch.get_num_threads(),
                "compiled": self.training.compiled,
                "micro_batch": f"{self.training.micro_batch} x {self.training.accumulation} x {self.world.size}",
                **self.training.figures,
            }
        )

    def _load(self, found: state.Resumed) -> None:
        """Weights, their average and the optimizer's state of a checkpoint."""
        self.engine.load_weights(found.weights)
        if self.recipe.ema is not None and found.average is not None:
            self.engine.load_average(found.average)
        self.engine.load_optimizer_state(found.optimizer, found.progress.updates)
        for tensors in (found.weights, found.optimizer, found.average):
            if tensors is not None:
                tensors.clear()

    def run(self) -> Finished:
        """Train to the end; see `train` above."""
        progress, training = self.progress, self.training
        pace, due = self.recipe.pace, self.due
        if due.last is None and self.world.first_decides(lambda: int(pace.over(progress.step, progress.tokens))):
            due.last = progress.step
        if progress.pending is not None:
            unfinished, progress.pending = progress.pending, None
            moment = unfinished.pop(MOMENT, None)
            self._finish_line(unfinished, due.course(progress.step) if moment is None else Moment(**moment))
        while not due.over(self.progress):
            try:
                self._steps()
                self.watchdog.end()
                self._save()
                break
            except RollBack as found:
                self.watchdog.end()
                self._go_back(found)
        if note := self.profiler.close(self.progress.step):
            self.telling.note(note)
        progress = self.progress
        if due.last is not None and progress.step < due.last:
            self.telling.note(f"stopped early after step {progress.step} of {due.last}: the best is {progress.best}")
        self._save()
        self._settle()
        if self.world.first:
            state.tidy(training.path, due.kept(progress))
        best = due.best(progress)
        return Finished(
            progress=progress,
            last=self.telling.metrics.last() if self.world.first else {},
            checkpoint=f"{checkpoints.STEPS}/{checkpoints.step_name(progress.step)}",
            best=None if best is None else f"{checkpoints.STEPS}/{checkpoints.step_name(best)}",
            milestones=state.kept(training.path, training.milestones),
            session={**self.clock.session(), **self.saver.figures()},
        )

    def _steps(self) -> None:
        """Step by step to the last one, or until patience ends."""
        progress, pace = self.progress, self.recipe.pace
        asks = Asks(
            stop=lambda: self.stop.asked or self.saver.failed,
            save=self.due.clock,
            tell=pace.tell,
            over=lambda: self.due.over(progress),
            own=self.waits.tell,
        )
        with Prefetch(prepare(self.training, self.source, self.world, progress.step)) as prepared:
            self.clock.begin()
            self.watchdog.begin(progress.step + 1)
            for work, agreed in agree(self.clock.waited_for(prepared), self.world, asks):
                if agreed.stop:
                    self._stop()
                if agreed.save and not progress.skipped_in_a_row:
                    self._save()
                moment = pace.moment(progress.step, progress.tokens, agreed.tokens, agreed.told)
                if moment.last:
                    self.due.last = progress.step + 1
                with self.pulse.within(Phase.COMPUTING):
                    line = self._step(work, agreed, moment)
                if self.due.closes(progress.step, moment):
                    progress.kept.append(progress.step)
                self.clock.step(agreed.tokens, work.sizes)
                if note := self.waits.heard(agreed.own):
                    self.telling.note(note, "warning")
                if line is not None:
                    with self.pulse.within(Phase.LOGGING):
                        self._finish_line({**line, **self.clock.line(), **self.waits.line()}, moment)
                if self.due.keeps(progress):
                    self._save()
                if self.profiler.asked:
                    with self.clock.aside():
                        note = self.profiler.stepped(progress.step)
                    if note:
                        self.telling.note(note)
                self._tell_saved()
                self.watchdog.begin(progress.step + 1)
                self.grace.stepped(self.watchdog.usual)

    def _step(self, work: Prepared, agreed: Agreed, moment: Moment) -> dict[str, Any] | None:
        """One step; returns the beginning of its log line if it gets one."""
        recipe, progress, device = self.recipe, self.progress, self.world.device
        step = progress.step  # from 0
        counts = departing([max(1, total) for total in agreed.counts], torch.float32, device)
        figures = torch.zeros(2, len(agreed.counts), dtype=torch.float64, device=device)
        for number, item in enumerate(work.micro_batches):
            torch.manual_seed(int(random_keys.derive(recipe.seed, _DROPOUT, step, item.first)))
            figures += self.engine.backward(move(item.batch, device), counts, last=number + 1 == len(work.micro_batches))
        rate = recipe.learning_rate_at(moment)
        logs = self.due.logs(step + 1, moment)
        scale = None if self.engine.scale is None else Arriving(self.engine.scale.value)
        with self.look.at(logs):
            norm = Arriving(self.engine.step(rate))
        if recipe.ema is not None:
            self.engine.average(decay_at(recipe.ema, step))
        progress.step, progress.tokens = step + 1, progress.tokens + agreed.tokens
        progress.by_source = [ours + now for ours, now in zip(progress.by_source or repeat(0), agreed.by_source, strict=False)]
        self.outcomes.add(Stepped(step + 1, norm, figures, counts, scale))
        self._read(keep=0 if logs or device.type == "cpu" else 1)
        if not logs:
            self.telling.still_there()
            return None
        line = {
            "step": progress.step,
            **self.outcomes.window.means(self.world),
            **self.look.figures(norm.value),
            **recipe.learning_rates_at(moment),
            "tokens": progress.tokens,
            "skipped": progress.skipped,
            **({} if scale is None else {"loss_scale": scale.value}),
            **self._mixed_figures(),
        }
        self.outcomes.begin()
        if progress.step == self.training.begun.step + 1:
            progress.first_loss = line.get("loss")
            self.telling.first_loss(progress.first_loss)
        return line

    def _mixed_figures(self) -> dict[str, float]:
        mixed, progress = self.training.mixed, self.progress
        return {} if mixed is None else mixed.figures(self.source.samples(progress.step), progress.by_source)

    def _read(self, keep: int) -> None:
        self.outcomes.read(self.progress, self.source, keep=keep)

    def _restore_scale(self) -> None:
        if self.engine.scale is not None:
            self.engine.scale.restore(self.progress.loss_scale)

    def _go_back(self, found: RollBack) -> None:
        """Go on from the last good checkpoint, past the rows of the steps since then."""
        self._settle()
        before, bad = go_back(found, self.training, self.progress, self.world, self.telling.skips)
        self._load(before)
        self.progress = before.progress
        self._restore_scale()
        self.source = Passing(self.training.source, self.progress.passed)
        self.outcomes.restore(self.progress)
        self._saved, self.due.last = self.progress.step, self.recipe.pace.steps
        self.telling.metrics.cut(self.progress.step)
        self.telling.note(bad, "warning")

    def _finish_line(self, line: dict[str, Any], moment: Moment) -> None:
        """Add the measurement if it is due, write the line, report it."""
        measure, progress = self.training.measure, self.progress
        if measure is not None and self.due.measures(progress.step, moment):
            try:
                with self.clock.aside("evaluation"):
                    line |= measure(progress.step, moment, lambda: self.stop.asked)
                    if self.recipe.ema is not None:
                        with self.engine.averaged():
                            found = measure(progress.step, moment, lambda: self.stop.asked)
                        line |= {name.replace(HELDOUT, f"{HELDOUT}ema_", 1): value for name, value in found.items()}
            except Interrupted:
                progress.pending = {**line, MOMENT: asdict(moment)}
                self._stop()
            now, best = line.get(measure.best), progress.best
            if now is not None and (
                best is None or (now > best[measure.best] if measure.higher_is_better else now < best[measure.best])
            ):
                progress.best = {"step": progress.step, measure.best: now}
            line |= self.world.timeline.evaluations()
        line |= {**self.world.timeline.line(), **memory(self.world.device), "time": round(time.time(), 3)}
        self.telling.line(line)

    def _save(self) -> None:
        """Begin to write this step's checkpoint, unless it is there. Every rank calls it."""
        self._read(keep=0)
        if self._saved == self.progress.step:
            return
        if not sound(self.training.trained.model, self.world):
            raise RollBack(self.progress.step, max(1, self.progress.skipped_in_a_row))
        with self.clock.aside("save"):
            self.progress.window = self.outcomes.window.state(self.world)
            self.progress.loss_scale = [] if self.engine.scale is None else self.engine.scale.state()
            self.progress.samples = samples = self.source.samples(self.progress.step)
            datasets: Sequence[Mapping[str, Any]] = ()
            self.progress.places = {}
            if (mixed := self.training.mixed) is not None:
                self.progress.places, datasets = mixed.places(samples), mixed.told(samples, self.progress.by_source)
            self.saver.begin(self.progress, self.due.kept(self.progress), self.engine, datasets)
        self._saved = self.progress.step

    def _sync(self) -> None:
        """Have the lines so far on disk, in the thread that saves."""
        self.telling.sync()
        self.recipe.pace.sync()

    def _settle(self) -> None:
        """Wait until the last checkpoint is complete."""
        with self.clock.aside("save"):
            self.saver.wait()
        self._tell_saved()

    def _tell_saved(self) -> None:
        """Report the checkpoints that are complete by now and stay."""
        for step, seconds in self.saver.landed():
            self.grace.saved(2 * seconds)  # a stop may come while another one is being written
            self.telling.checkpoint(step)

    def _stop(self) -> None:
        self._save()
        self._settle()
        saved = storage.join(self.training.path, checkpoints.STEPS, checkpoints.step_name(self.progress.step))
        raise Stopped(
            f"training was stopped after step {self.progress.step}{'' if self.due.last is None else f' of {self.due.last}'}; {saved} is saved:"
            " run again to go on"
        )
