"""One training of a task's network, by the loop that pretraining runs too: put together, run, scored on the dev split."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from model import checkpoint
from model.layers.encoder import recompute_layers
from model.tasks.encode import groups_of
from model.tasks.features import STATES, FrozenNetwork, stored
from model.tasks.finetune.config import FinetuneConfig
from model.tasks.finetune.looked_up import only_looked_up, plain
from model.tasks.finetune.start import Start
from model.tasks.heads import new_network, trained_network
from model.tasks.measure import DevScore
from model.tasks.objective import TaskObjective
from model.tasks.predict import predict
from model.tasks.source import source_of
from model.tasks.split import Split
from model.tasks.table import load_task, merge_options
from model.tasks.task import Meaning, Task
from model.train import engines, sizing, state
from model.train.distributed import StopRequest, World
from model.train.interfaces import Interrupted, Recipe, Saved, Training, everywhere
from model.train.loop import Finished, train
from model.train.optimizers import optimizer_kind
from model.train.pace import StepPace
from model.train.parameters import freeze_unused, layer_rates
from model.train.precision import Precision, settle
from model.train.schedules import Schedule
from pipeline.core import storage
from pipeline.core.errors import Stopped
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
    def steps_per_epoch(self) -> int:
        return sum(math.ceil(len(group) / self.config.batch_size) for group in groups_of(self.train.samples))

    @property
    def steps(self) -> int:
        return self.config.epochs * self.steps_per_epoch

    @property
    def learning_rate(self) -> float:
        return self.config.peak_learning_rate(self.start.model.hidden_size)

    def settled(self, predictions: Any) -> Setup:
        """With the options of decoding that these predictions for the dev split decide."""
        found = self.task.settled(self.dev.examples, predictions)
        if not found:
            return self
        options = merge_options(self.config.options, found)
        return replace(self, task=load_task(self.task.name, options), meaning={**self.meaning, "options": options})

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
    """A training that came to its end.

    Attributes:
        step: whose weights are saved and scored: the last one, or the best.
        weights: of that step, whole, on the CPU; may be empty on all ranks but the first.
        predictions: of its network for the dev split, the same on every rank.
    """

    finished: Finished
    step: int
    weights: Mapping[str, Tensor]
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
    if execution.activation_checkpointing:
        recompute_layers(network)
    parameters = sum(parameter.numel() for parameter in network.parameters())  # now: an engine may cut them
    kept = execution.keep_checkpoints + config.keeps_best
    world.first_decides(lambda: sizing.check_disk(path, parameters, kept))
    sees = optimizer_kind(config.optimizer).sees
    engine = engines.choose(
        execution.engine,
        execution.zero,
        world.size,
        parameters,
        sizing.device_memory(world.device),
        offload=execution.offload,
    )
    if engine.reason:
        notes.append(f"engine {engine.name}: {engine.reason}")
    train_split, dev_split = setup.train, setup.dev
    splits = [train_split.samples, dev_split.samples]
    only_looked_up(network, splits, model.pad_token_id, resumed, whole=engine.name != "torch" or sees != "numbers")
    states = storage.join(build.scratch, STATES, os.path.basename(path))
    if isinstance(network, FrozenNetwork):
        train_split, dev_split = _stored(setup, network, states, precision, report)
    longest = int(setup.train.samples.lengths.max())
    asked = execution.micro_batch if isinstance(execution.micro_batch, int) else None
    plan = sizing.plan(config.batch_size, asked, model, longest, world)
    objective = TaskObjective(task, network, precision, world.device)
    source = source_of(
        train_split.samples,
        batch_size=config.batch_size,
        seed=config.seed,
        micro_batch=plan.micro_batch,
        layout=objective.layout,
        sampling=config.sampling,
    )
    frozen = "encoder." if isinstance(network, FrozenNetwork) else None
    unused = [name for name in freeze_unused(objective, source.blank()) if not (frozen and name.startswith(frozen))]
    if unused:
        notes.append(f"not trained, as the task does not use them: {', '.join(unused)}")
    measure = DevScore(objective, train_split, dev_split, world, source.steps_per_epoch)
    training = Training(
        path=path,
        config=config.model_dump(mode="json"),
        recipe=Recipe(
            pace=StepPace(steps=setup.steps, span=setup.steps),
            learning_rate=setup.learning_rate,
            schedule=Schedule(warmup=math.ceil(setup.steps * config.warmup)),
            seed=config.seed,
            precision=precision,
            optimizer=config.optimizer,
            weight_decay=config.weight_decay,
            clip=config.clip,
            rate=everywhere if config.layer_decay == 1 else layer_rates(network.state_dict(), config.layer_decay),
            rates={"embeddings": config.embedding_rate},
        ),
        engine=engine,
        source=source,
        trained=objective,
        saved=setup.saved,
        measure=measure,
        micro_batch=plan.micro_batch,
        accumulation=plan.accumulation,
        log_every=min(MOST_STEPS, max(setup.steps // LINES, 1)),
        patience=config.patience,
        keep_best=config.keeps_best,
        notes=notes,
    )
    finished = train(training, build, world, setup.stop, resumed, report)
    step, best = finished.progress.step, finished.progress.best
    if finished.best is None or best is None or best["step"] == step:
        directory, predictions = storage.join(path, finished.checkpoint), measure.predictions(step)
        weights = plain(checkpoint.weights(directory)) if world.first else {}
    else:
        step, directory = int(best["step"]), storage.join(path, finished.best)
        weights = plain(checkpoint.weights(directory))
        predictions = _predicted(setup, weights, path, precision)
    if world.first:
        storage.remove(states)
    return Fit(finished=finished, step=step, weights=weights, predictions=predictions, precision=precision)


def _predicted(setup: Setup, weights: Mapping[str, Tensor], path: str, precision: Precision) -> Any:
    """What the network of these weights says to the dev split; the same on every rank."""
    network = trained_network(setup.task, setup.start.model, weights, setup.meaning, path).to(setup.world.device)
    objective = TaskObjective(setup.task, network, precision, setup.world.device)
    answers = predict(objective, setup.dev.samples, setup.world)
    return setup.task.decode(answers, setup.dev.examples, setup.dev.samples)


def _stored(
    setup: Setup, network: FrozenNetwork, directory: str, precision: Precision, report: Reporter
) -> tuple[Split, Split]:
    """Both splits with what the frozen encoder says of them, computed once."""
    world, found = setup.world, []
    if world.first:
        report.progress(0, None, "steps", {"step": "reading the frozen encoder's features"})
    network.to(world.device)
    for name, split in (("train", setup.train), ("dev", setup.dev)):
        file = storage.join(directory, f"{name}.npy")
        try:
            samples = stored(network, split.samples, file, world, precision, lambda: setup.stop.asked)
        except Interrupted as error:
            raise Stopped("stopped while the frozen encoder's features were read; run again to go on") from error
        found.append(Split(examples=split.examples, samples=samples))
    network.cpu()
    return found[0], found[1]
