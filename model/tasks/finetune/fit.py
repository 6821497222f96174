"""One training of a task's network, by the loop that pretraining runs too: put together, run, scored on the dev split."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from model.tasks.finetune.config import FinetuneConfig
from model.tasks.finetune.start import Start
from model.tasks.heads import new_network
from model.tasks.measure import DevScore
from model.tasks.objective import TaskObjective
from model.tasks.source import Epochs
from model.tasks.split import Split
from model.tasks.task import Meaning, Task
from model.train import engines, sizing, state
from model.train.distributed import StopRequest, World
from model.train.interfaces import Recipe, Saved, Training
from model.train.loop import Finished, train
from model.train.parameters import freeze_unused
from model.train.precision import Precision, settle
from pipeline.core.reporting import Reporter
from pipeline.core.stage import Build

LINES, MOST_STEPS = 100, 100  # log lines a training, and the most steps between two


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What the trainings of one stage have in common.

    Attributes:
        meaning: of the network's outputs; it goes into the checkpoint.
    """

    config: FinetuneConfig
    build: Build
    world: World
    stop: StopRequest
    task: Task[Any, Any]
    start: Start
    meaning: Meaning
    train: Split
    dev: Split

    @property
    def steps(self) -> int:
        return self.config.epochs * math.ceil(len(self.train.samples) / self.config.batch_size)

    @property
    def learning_rate(self) -> float:
        return self.config.peak_learning_rate(self.start.model.hidden_size)

    @property
    def saved(self) -> Saved:
        """What a checkpoint says of the network."""
        return Saved(
            model=self.start.model,
            heads=self.task.heads(self.meaning),
            tokenizer=self.start.tokenizer,
            task=self.meaning,
            dataset=self.start.dataset,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A training that came to its end, and the predictions of its network for the dev split, the same on every rank."""

    finished: Finished
    predictions: Any
    precision: Precision

    @property
    def best(self) -> dict[str, float]:
        """The best score on the way, and its step first, however the training was resumed."""
        found = dict(self.finished.progress.best or {})
        return {name: found[name] for name in sorted(found, key=lambda name: (name != "step", name))}


def fit(setup: Setup, weights: Mapping[str, Tensor] | None, path: str, report: Reporter) -> Fit:
    """Train once, from the newest checkpoint below `path` if there is one. Every rank calls it.

    Args:
        weights: encoder and pooler to begin with; None: random ones.

    Raises:
        Stopped: SIGTERM or SIGINT came to any rank; a checkpoint is saved.
        DataError: the checkpoints below `path` are damaged.
        ClozeError: the disk is full, or too many steps in a row had no finite gradient.
    """
    config, build, world, task = setup.config, setup.build, setup.world, setup.task
    execution, model, notes = build.execution, setup.start.model, list[str]()
    resumed = state.resume(path, build.fingerprint, world, notes)
    precision = settle(config.precision, resumed.run.precision if resumed else None, world.device, notes)
    network = new_network(task, model, weights, setup.meaning, config.dropout, config.seed)
    parameters = sum(parameter.numel() for parameter in network.parameters())  # now: an engine may cut them
    world.first_decides(lambda: sizing.check_disk(path, parameters, execution.keep_checkpoints))
    engine = engines.choose(execution.engine, execution.zero, world.size, parameters, sizing.device_memory(world.device))
    if engine.reason:
        notes.append(f"engine {engine.name}: {engine.reason}")
    longest = int(setup.train.samples.lengths.max())
    plan = sizing.plan(config.batch_size, execution.micro_batch, model, longest, world)
    objective = TaskObjective(task, network, precision, world.device)
    source = Epochs(
        setup.train.samples,
        batch_size=config.batch_size,
        seed=config.seed,
        micro_batch=plan.micro_batch,
        layout=objective.layout,
    )
    unused = freeze_unused(objective, source.blank())
    if unused:
        notes.append(f"not trained, as the task does not use them: {', '.join(unused)}")
    measure = DevScore(objective, setup.train, setup.dev, world, source.steps_per_epoch)
    training = Training(
        path=path,
        config=config.model_dump(mode="json"),
        recipe=Recipe(
            steps=setup.steps,
            learning_rate=setup.learning_rate,
            warmup=math.ceil(setup.steps * config.warmup),
            seed=config.seed,
            precision=precision,
            weight_decay=config.weight_decay,
            clip=config.clip,
        ),
        engine=engine,
        source=source,
        trained=objective,
        saved=setup.saved,
        measure=measure,
        micro_batch=plan.micro_batch,
        accumulation=plan.accumulation,
        log_every=min(MOST_STEPS, max(setup.steps // LINES, 1)),
        notes=notes,
    )
    finished = train(training, build, world, setup.stop, resumed, report)
    return Fit(finished=finished, predictions=measure.predictions(setup.steps), precision=precision)
