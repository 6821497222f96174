"""The training loop: steps, held-out scores, log lines, checkpoints, stopping and resuming.

Every rank runs it; only the first writes and reports. At the start of each step all ranks add up, in one small message, how
many targets each objective has in the whole step and whether anybody was asked to stop: so gradients are weighted by
global counts however the batch is cut, and all ranks stop after the same step.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from model import checkpoint
from model.data.batch import Batch, move, pin
from model.data.collate import blank, collate
from model.data.prefetch import Prefetch
from model.train import state
from model.train.compiling import compiling_seconds
from model.train.config import PretrainConfig
from model.train.distributed import StopRequest, World, join
from model.train.heldout import Interrupted, evaluate, unigram_baselines
from model.train.metrics import METRICS, SKIPPED, Lines, Window
from model.train.schedules import factor
from model.train.setup import Setup, prepare
from pipeline.core import random_keys
from pipeline.core.errors import ClozeError, Stopped
from pipeline.core.stage import Build, Outcome

_DROPOUT = 3  # random stream, beside the sampler's and the weights'
REPORT_SECONDS = 1.0
UNIGRAM_ROWS = 20_000  # training rows that the context-free baseline is counted from
FIRST_LOSS_TOLERANCE = 0.1  # of the expected first loss

log = logging.getLogger(__name__)


def run(config: PretrainConfig, build: Build) -> Outcome:
    """Train on this rank, from the newest checkpoint of the same run below `build.path` if there is one.

    Returns:
        The true outcome on rank 0, an empty one on the others.

    Raises:
        Stopped: SIGTERM or SIGINT came to any rank; a checkpoint is saved.
        DataError: the dataset or every checkpoint is damaged.
        UsageError: config, machine and dataset do not fit together.
        ClozeError: the disk is full, or too many steps in a row had no finite gradient.
    """
    with StopRequest.heeded() as stop:
        world = join(build.execution)
        if world.first:
            build.report.progress(
                0, config.steps, "steps", {"note": "reading the dataset, building the model, starting DeepSpeed"}
            )
        setup = prepare(config, build, world)
        trainer = Trainer(config.model_copy(update={"model": setup.model}), build, setup, stop)
        return trainer.run()


@dataclass(frozen=True, slots=True)
class Prepared:
    """A step's micro-batches on this rank, with the first global sample of each, and what they hold."""

    batches: list[tuple[int, Batch]]
    tokens: int
    counts: list[int]  # targets by objective


class Trainer:
    """One rank's run. `progress` is all that a checkpoint must say of it beside weights and optimizer."""

    def __init__(self, config: PretrainConfig, build: Build, setup: Setup, stop: StopRequest) -> None:
        from model.train.engine import Engine  # DeepSpeed takes seconds to import, and reads the environment that `join` sets

        self.config, self.build, self.setup, self.stop = config, build, setup, stop
        self.world: World = setup.world
        self.progress = state.Progress() if setup.resumed is None else setup.resumed.progress
        self.metrics = Lines(build.file(METRICS), self.world)
        self.skips = Lines(build.file(SKIPPED), self.world)
        self.window = Window(setup.scoring.names, self.world.device)
        self.engine = Engine(
            setup.scoring,
            config,
            self.world,
            zero=setup.zero,
            micro_batch=setup.plan.micro_batch,
            accumulation=setup.plan.accumulation,
        )
        self._saved: int | None = None  # the step of the newest checkpoint
        self._seconds = self._tokens = 0.0  # of training since the last log line
        self._all_seconds = self._all_tokens = 0.0  # of training since the first step of this session
        self._warm = False
        self._reported = 0.0
        self._resume()

    def _resume(self) -> None:
        resumed, progress = self.setup.resumed, self.progress
        if resumed is not None:
            self.engine.load_optimizer_state(resumed.optimizer, progress.updates)
            self.window.restore(progress.window, self.world)
            self._saved = progress.step
            resumed.weights.clear()
            resumed.optimizer.clear()
        dropped = self.metrics.cut(progress.step - (progress.pending is not None))
        self.skips.cut(progress.step)
        if self.world.first:
            for line in self.metrics.read():  # a kill may have come between a line and its record
                self.build.report.metrics(line)
        if resumed is not None:
            self.setup.notes.append(f"going on from {checkpoint.STEPS}/{checkpoint.step_name(progress.step)}")
        elif dropped:
            self.setup.notes.append(f"starting again from step 0: no checkpoint was finished, {dropped} log lines are dropped")
        plan, size = self.setup.plan, self.world.size
        figures = {
            "precision": self.setup.precision,
            "device": str(self.world.device),
            "processes": size,
            "zero": self.setup.zero,
            "threads": torch.get_num_threads(),
            "compiled": self.setup.compiled,
            "micro_batch": f"{plan.micro_batch} x {plan.accumulation} x {size}",
        }
        for note in self.setup.notes:
            self._note(note)
        if self.setup.compiled:
            figures["note"] = f"compiling the training step, about {compiling_seconds(self.setup.model):.0f} s"
        self._report(figures)

    def _report(self, figures: Mapping[str, Any]) -> None:
        if self.world.first:
            self._reported = time.monotonic()
            self.build.report.progress(self.progress.step, self.config.steps, "steps", figures)

    def _note(self, note: str, kind: str = "note") -> None:
        log.warning("%s", note)
        self._report({kind: note})

    def run(self) -> Outcome:
        """Train to the end; see `run` above."""
        progress = self.progress
        if progress.pending is not None:
            unfinished, progress.pending = progress.pending, None
            self._finish_line(unfinished)
        with Prefetch(self._prepare_steps(progress.step)) as steps:
            for prepared in steps:
                started = time.perf_counter()
                stop, tokens, *counts = self.world.total([int(self.stop.asked), prepared.tokens, *prepared.counts])
                if stop:
                    self._stop()
                line = self._step(prepared, tokens, counts)
                self._measure(time.perf_counter() - started, tokens)
                if line is not None:
                    self._finish_line({**line, "tokens_per_second": self._speed()})
                every = self.build.execution.checkpoint_every
                if every and progress.step % every == 0 and progress.step < self.config.steps:
                    self._save()
        self._save()
        return self._outcome()

    def _prepare_steps(self, first: int) -> Iterator[Prepared]:
        """Every step's micro-batches from step `first` on. Runs in the prefetch thread."""
        setup = self.setup
        pad, fixed = setup.info.special.pad, setup.fixed_predictions
        for step in range(first, self.config.steps):
            batches: list[tuple[int, Batch]] = []
            tokens = 0
            for start, stop in setup.plan.pieces(step, self.world.rank, self.world.size):
                if start == stop:
                    batch = blank(pad=pad)
                else:
                    rows = setup.train.take(*setup.sampler.locate(np.arange(start, stop)))
                    batch = collate(rows, pad=pad, longest=setup.info.length, fixed_predictions=fixed, layout=setup.layout)
                    tokens += int(rows.lengths.sum())
                batches.append((start, pin(batch, self.world.device)))
            yield Prepared(
                batches=batches,
                tokens=tokens,
                counts=np.sum([setup.scoring.targets(batch) for _, batch in batches], axis=0).tolist(),
            )

    def _step(self, prepared: Prepared, tokens: int, totals: list[int]) -> dict[str, Any] | None:
        """One step; returns the beginning of its log line if it gets one."""
        config, progress, device = self.config, self.progress, self.world.device
        step = progress.step  # from 0
        counts = torch.tensor([max(1, total) for total in totals], dtype=torch.float32, device=device)
        figures = torch.zeros(2, len(totals), dtype=torch.float64, device=device)
        for number, (start, batch) in enumerate(prepared.batches):
            torch.manual_seed(int(random_keys.derive(config.seed, _DROPOUT, step, start)))
            figures += self.engine.backward(move(batch, device), counts, last=number + 1 == len(prepared.batches))
        rate = config.peak_learning_rate * factor(config.schedule, step, config.steps, config.warmup)
        update = self.engine.step(rate)
        progress.step, progress.tokens, progress.updates = step + 1, progress.tokens + tokens, self.engine.updates
        if update.applied:
            progress.skipped_in_a_row = 0
            self.window.add(figures, counts, update.norm)
        else:
            self._skipped()
        if not config.logs(progress.step):
            if time.monotonic() - self._reported > REPORT_SECONDS:
                self._report({})
            return None
        line = {
            "step": progress.step,
            **self.window.means(self.world),
            "learning_rate": rate,
            "tokens": progress.tokens,
            "skipped": progress.skipped,
        }
        self.window = Window(self.setup.scoring.names, device)
        if progress.step == 1:
            self._check_first_loss(line.get("loss"))
        return line

    def _skipped(self) -> None:
        """Count a step without an update, say what it was made of, and give up after too many in a row."""
        progress, batch = self.progress, self.config.global_batch
        progress.skipped += 1
        progress.skipped_in_a_row += 1
        rows, copies = self.setup.sampler.locate(np.arange((progress.step - 1) * batch, progress.step * batch))
        self.skips.add({"step": progress.step, "rows": rows.tolist(), "copies": copies.tolist()})
        self._note(f"step {progress.step} was skipped: its gradient is not finite (rows in {SKIPPED})", "warning")
        if progress.skipped_in_a_row >= self.config.max_skipped:
            raise ClozeError(
                f"{progress.skipped_in_a_row} steps in a row up to step {progress.step} had a gradient that is not finite"
                f" (their rows are in {self.build.file(SKIPPED)}); lower learning_rate ({self.config.peak_learning_rate:g}),"
                " or use precision fp32"
            )

    def _check_first_loss(self, loss: float | None) -> None:
        self.progress.first_loss = loss
        expected = self.setup.expected_first_loss
        if loss is not None and expected is not None and abs(loss - expected) > FIRST_LOSS_TOLERANCE * expected:
            self._note(
                f"THE FIRST LOSS IS {loss:.3f}, untrained weights should give {expected:.3f} (ln V, and ln 2 for pairs):"
                " check vocabulary, masks and initializer_range",
                "warning",
            )

    def _measure(self, seconds: float, tokens: int) -> None:
        self._seconds += seconds
        self._tokens += tokens
        if self._warm:  # the first step of a session allocates and compiles
            self._all_seconds += seconds
            self._all_tokens += tokens
        self._warm = True

    def _speed(self) -> float:
        """Real tokens a second since the last log line, without evaluations and checkpoints."""
        speed = self._tokens / max(self._seconds, 1e-9)
        self._seconds = self._tokens = 0.0
        return round(speed, 1)

    def _finish_line(self, line: dict[str, Any]) -> None:
        """Add the held-out scores if they are due, write the line, report it."""
        progress = self.progress
        if self.config.evaluates(progress.step) and self.setup.heldout.rows:
            try:
                line |= evaluate(self.setup.scoring, self.setup.heldout, self.world, lambda: self.stop.asked)
            except Interrupted:
                progress.pending = line
                self._stop()
            loss = line.get("heldout_loss")
            if loss is not None and (progress.best is None or loss < progress.best["heldout_loss"]):
                progress.best = {"step": progress.step, "heldout_loss": loss}
        line["time"] = round(time.time(), 3)
        self.metrics.add(line)
        if self.world.first:
            self.build.report.metrics(line)
        self._report({name: value for name, value in line.items() if name not in ("step", "time")})

    def _save(self) -> None:
        """Write this step's checkpoint, unless it is there. Every rank calls it."""
        if self._saved == self.progress.step:
            return
        self.progress.window = self.window.state(self.world)
        weights, optimizer = self.engine.weights(), self.engine.optimizer_state()
        self.metrics.sync()

        def write() -> int:
            state.save(
                self.build.path,
                progress=self.progress,
                fingerprint=self.build.fingerprint,
                model=self.setup.model,
                dataset=self.setup.info,
                tokenizer=self.setup.tokenizer,
                heads=self.setup.model.heads,
                weights=weights,
                optimizer=optimizer,
                keep=self.build.execution.keep_checkpoints,
            )
            return 0

        self.world.first_decides(write)
        self._saved = self.progress.step

    def _stop(self) -> None:
        self._save()
        raise Stopped(
            f"training was stopped after step {self.progress.step} of {self.config.steps};"
            f" {self.build.file(checkpoint.STEPS, checkpoint.step_name(self.progress.step))} is saved: run again to go on"
        )

    def _outcome(self) -> Outcome:
        if not self.world.first:
            return Outcome()
        setup, progress, last = self.setup, self.progress, self.metrics.last()
        state.tidy(self.build.path)
        counted = replace(setup.heldout, shards=setup.train, rows=min(len(setup.train), UNIGRAM_ROWS))
        baselines: dict[str, float | None] = {"unigram_entropy": None}
        if "mlm" in setup.scoring.names:  # they are of the masked tokens
            baselines |= unigram_baselines(counted, setup.heldout, setup.model.vocab_size)
        speed = self._all_tokens / self._all_seconds if self._all_seconds else last.get("tokens_per_second")
        self.build.counters["steps/skipped"] += progress.skipped
        self.build.counters["steps/applied"] += progress.updates
        summary = {
            "steps": progress.step,
            "objectives": list(setup.scoring.names),
            "loss": last.get("loss"),
            "first_loss": progress.first_loss,
            **{name: last.get(name) for name in ("heldout_loss", "heldout_accuracy", "heldout_perplexity")},
            **{name: value for name, value in last.items() if name.startswith("heldout_")},
            "heldout_rows": setup.heldout.rows,
            "best_heldout": progress.best,
            **baselines,
            "tokens_per_second": None if speed is None else round(speed, 1),
            "checkpoint": f"{checkpoint.STEPS}/{checkpoint.step_name(progress.step)}",
            "precision": setup.precision,
            "compiled": setup.compiled,
            "device": str(self.world.device.type),
            "world_size": self.world.size,
            "zero": setup.zero,
            "micro_batch": setup.plan.micro_batch,
            "accumulation": setup.plan.accumulation,
            "learning_rate": self.config.peak_learning_rate,
            "parameters": setup.parameters,
            "tokens": progress.tokens,
            "skipped_steps": progress.skipped,
        }
        return Outcome(rows=progress.step * self.config.global_batch, tokens=progress.tokens, summary=summary)
