"""What the stage finetune does, once torch is there: read, train, score the dev split, compare with the baselines, save."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from model import checkpoint
from model.data.layouts import layout_for
from model.families.config import ModelConfig
from model.families.presets import model_config
from model.tasks.encode import Encoded, blank, encode
from model.tasks.finetune_config import FinetuneConfig
from model.tasks.heads import new_classifier
from model.tasks.predictions import FILE as PREDICTIONS
from model.tasks.predictions import write_predictions
from model.tasks.source import ExamplesSource
from model.tasks.table import Examples, Task, load_task, task_source
from model.tasks.training import Classification, DevScores, Probabilities
from model.train import engines, sizing, state
from model.train.distributed import StopRequest, World, join
from model.train.interfaces import Recipe, Saved, Training
from model.train.loop import Finished, train
from model.train.parameters import freeze_unused
from model.train.precision import DTYPES, Precision, settle
from pipeline import tokenizer
from pipeline.core import storage
from pipeline.core.errors import DataError, UsageError
from pipeline.core.reporting import Reporter
from pipeline.core.stage import Build, Outcome
from pipeline.dataset.schema import DatasetInfo
from pipeline.tokenizer.tokenizer import Tokenizer

CHECKPOINT, METRICS = "checkpoint", "metrics.json"
PRETRAINED, SCRATCH = "finetune", "from_scratch"  # the trainings, in progress and metrics
SMALL, SMALL_RATE, USUAL_RATE = 512, 3e-4, 5e-5
LINES = 100  # log lines of a training, at most


@dataclass(frozen=True, slots=True, kw_only=True)
class StartingPoint:
    """What fine-tuning starts from. `state` is None for random weights."""

    model: ModelConfig
    state: Mapping[str, Tensor] | None
    tokenizer: str
    dataset: DatasetInfo | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """One split of the task, as read and as encoded."""

    examples: Examples
    encoded: Encoded


def finetune(config: FinetuneConfig, build: Build) -> Outcome:
    """Fine-tune on the task's train split and score its dev split. Every rank calls it.

    Returns:
        The true outcome on rank 0, an empty one on the others.

    Raises:
        UsageError: an input that the task needs was not named, or max_length exceeds the model's positions.
        DataError: the checkpoint or the data is missing or damaged.
        Stopped: SIGTERM or SIGINT came to any rank; a checkpoint is saved.
    """
    with StopRequest.heeded() as stop:
        world = join(build.execution)
        task = load_task(config.task)
        start = starting_point(config, build, world)
        if config.max_length > start.model.max_position_embeddings:
            raise UsageError(
                f"max_length ({config.max_length}) exceeds the model's max_position_embeddings"
                f" ({start.model.max_position_embeddings}); use {start.model.max_position_embeddings} or less"
            )
        splits = _read(config, build, task, start)
        names = [PRETRAINED]
        if config.baselines and start.state is not None:
            names.append(SCRATCH)
        session = _Session(config, build, world, stop, task, start, splits, names)
        tuned = session.run(PRETRAINED)
        metrics: dict[str, float] = dict(tuned.scores)
        if config.baselines:
            metrics["majority"] = splits["dev"].examples.majority_share()
        if SCRATCH in names:
            metrics[SCRATCH] = session.run(SCRATCH).scores[task.metrics[0]]
        return _outcome(session, tuned, metrics) if world.first else Outcome()


def _read(config: FinetuneConfig, build: Build, task: Task, start: StartingPoint) -> dict[str, Split]:
    """The splits train and dev, counted."""
    source = task_source(task, config.data, build.inputs.get("corpus"))
    pieces = tokenizer.load(start.tokenizer)
    splits = {}
    for name in ("train", "dev"):
        examples = task.read(source, name, config.limit_per_class)
        splits[name] = Split(examples=examples, encoded=encode(examples, pieces, config.max_length))
        _count(build, name, splits[name])
    if splits["dev"].encoded.labels is None:
        raise DataError(f"{splits['dev'].examples.where} has no labels; give the dev split its labels")
    return splits


def _outcome(session: _Session, tuned: Tuned, metrics: Mapping[str, float]) -> Outcome:
    """Write the checkpoint and the other files of the artifact."""
    build, splits, training = session.build, session.splits, tuned.training
    checkpoint.save_weights(
        build.file(CHECKPOINT),
        model=training.saved.model,
        state=tuned.weights,
        tokenizer=training.saved.tokenizer,
        heads=training.saved.heads,
        task=training.saved.task,
        dataset=training.saved.dataset,
        step=training.recipe.steps,
    )
    checkpoint.complete(build.file(CHECKPOINT))
    write_predictions(build.file(PREDICTIONS), splits["dev"].examples, tuned.probabilities)
    content = {
        "task": session.task.name,
        "split": "dev",
        "metrics": dict(metrics),
        "examples": {name: len(split.examples) for name, split in splits.items()},
        "classes": {name: split.examples.class_counts() for name, split in splits.items()},
        "truncated": {name: split.encoded.truncated for name, split in splits.items()},
        "learning_rate": training.recipe.learning_rate,
        "steps": training.recipe.steps,
    }
    write_json(build.file(METRICS), content)
    summary = {
        "task": session.task.name,
        "metrics": dict(metrics),
        "checkpoint": CHECKPOINT,
        "predictions": PREDICTIONS,
        "examples": content["examples"],
        "classes": content["classes"],
        "steps": training.recipe.steps,
        "loss": tuned.finished.last.get("loss"),
        "best": tuned.finished.progress.best,
        "learning_rate": training.recipe.learning_rate,
        "precision": training.recipe.precision,
        "engine": training.engine.name,
        "zero": training.engine.zero,
        "world_size": session.world.size,
        **tuned.finished.session,
    }
    storage.remove(build.file(checkpoint.STEPS))  # last: until here a killed fine-tuning goes on from them
    return Outcome(rows=len(splits["train"].examples), tokens=int(splits["train"].encoded.lengths.sum()), summary=summary)


def starting_point(config: FinetuneConfig, build: Build, world: World) -> StartingPoint:
    """The checkpoint that the inputs name; with from_scratch its shape alone, or a preset's shape and a vocabulary."""
    path = build.inputs.get("pretrain")
    if path is not None:
        loaded = checkpoint.load(path)
        state = None if config.from_scratch else loaded.state
        return StartingPoint(
            model=_with_lstm(loaded.model, config.bilstm), state=state, tokenizer=loaded.tokenizer, dataset=loaded.dataset
        )
    if not config.from_scratch:
        raise UsageError("finetune needs a checkpoint (found none); name one that `cloze pretrain` made, or set from_scratch")
    vocabulary = build.inputs.get("vocab")
    if config.model is None or vocabulary is None:
        missing = "model" if config.model is None else "vocab"
        raise UsageError(
            f"finetune from scratch without a checkpoint needs {missing} (found none); name a preset and a vocabulary"
        )
    pieces = tokenizer.load(vocabulary)
    saved = storage.join(build.scratch, "tokenizer")
    world.first_decides(lambda: _save_pieces(pieces, saved))
    shape = model_config(config.model, vocab_size=pieces.vocab_size, pad_token_id=pieces.special.pad)
    return StartingPoint(model=_with_lstm(shape, config.bilstm), state=None, tokenizer=saved, dataset=None)


def _with_lstm(model: ModelConfig, wanted: bool) -> ModelConfig:
    if not wanted:
        return model
    if "bilstm" not in type(model).model_fields:
        raise UsageError(f"bilstm (true) is for left-to-right encoders, this one is {model.family}; leave it out")
    return model.model_copy(update={"bilstm": True})


def _save_pieces(pieces: Tokenizer, path: str) -> int:
    pieces.save(path)
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """A training that came to its end: its weights on the CPU, the dev split's probabilities and scores."""

    training: Training
    finished: Finished
    weights: Mapping[str, Tensor]
    probabilities: Probabilities
    scores: dict[str, float]


class _Part(Reporter):
    """Reports one of several trainings of a stage: its steps follow those of the ones before, its metrics have its name."""

    def __init__(self, report: Reporter, name: str, number: int, count: int) -> None:
        self._report, self._name, self._number, self._count = report, name, number, count

    def progress(self, done: float, total: float | None, unit: str, figures: Mapping[str, Any]) -> None:
        steps = total or 0
        whole = {"run": self._name, **figures} if self._count > 1 else figures
        self._report.progress(self._number * steps + done, self._count * steps, unit, whole)

    def metrics(self, values: Mapping[str, Any]) -> None:
        prefix = f"{self._name}_" if self._number else ""  # the first one is the stage's own
        self._report.metrics({name if name in ("step", "time") else prefix + name: value for name, value in values.items()})


class _Session:
    """The trainings of one stage: the wanted one, and its baseline."""

    def __init__(
        self,
        config: FinetuneConfig,
        build: Build,
        world: World,
        stop: StopRequest,
        task: Task,
        start: StartingPoint,
        splits: Mapping[str, Split],
        names: list[str],
    ) -> None:
        self.config, self.build, self.world, self.stop = config, build, world, stop
        self.task, self.start, self.splits, self.names = task, start, splits, names

    def run(self, name: str) -> Tuned:
        """Train once, from where a killed try stopped. The first training writes into the artifact, others into its scratch."""
        number = self.names.index(name)
        path = storage.join(self.build.scratch, name) if number else self.build.path
        notes: list[str] = []
        resumed = state.resume(path, self.build.fingerprint, self.world, notes)
        precision = settle(self.config.precision, resumed.run.precision if resumed else None, self.world.device, notes)
        training, measure = self._training(path, self.start.state if number == 0 else None, precision, notes)
        report = _Part(self.build.report, name, number, len(self.names))
        finished = train(training, self.build, self.world, self.stop, resumed, report)
        probabilities = measure.probabilities()
        return Tuned(
            training=training,
            finished=finished,
            weights=finished.weights,
            probabilities=probabilities,
            scores=measure.scores(probabilities),
        )

    def _training(
        self, path: str, weights: Mapping[str, Tensor] | None, precision: Precision, notes: list[str]
    ) -> tuple[Training, DevScores]:
        config, world, model = self.config, self.world, self.start.model
        examples, encoded = self.splits["train"].examples, self.splits["train"].encoded
        labels = examples.label_names
        classifier = Classification(new_classifier(model, weights, len(labels), config.dropout, config.seed), precision)
        parameters = sum(parameter.numel() for parameter in classifier.parameters())
        freeze_unused(classifier, blank(encoded))
        execution = self.build.execution
        plan = sizing.plan(config.batch_size, execution.micro_batch, model, config.max_length, world)
        layout = layout_for([classifier.model], world.device, DTYPES[precision])
        source = ExamplesSource(
            data=encoded,
            batch_size=config.batch_size,
            accumulation=plan.accumulation,
            seed=config.seed,
            layout=layout,
        )
        steps = config.epochs * source.steps_an_epoch
        engine = engines.choose(execution.engine, execution.zero, world.size, parameters, sizing.device_memory(world.device))
        if engine.reason:
            notes.append(f"engine {engine.name}: {engine.reason}")
        measure = DevScores(
            trained=classifier,
            data=self.splits["dev"].encoded,
            metrics=self.task.metrics,
            world=world,
            steps=steps,
            every=source.steps_an_epoch,
            examples=len(examples),
        )
        task = {
            "name": self.task.name,
            "labels": list(labels),
            "max_length": config.max_length,
            "metric": self.task.metrics[0],
            "limit_per_class": config.limit_per_class,
        }
        training = Training(
            path=path,
            config=config.model_dump(mode="json"),
            recipe=Recipe(
                steps=steps,
                learning_rate=config.learning_rate or (SMALL_RATE if model.hidden_size < SMALL else USUAL_RATE),
                warmup=math.ceil(steps * config.warmup),
                seed=config.seed,
                precision=precision,
                weight_decay=config.weight_decay,
                clip=config.clip,
            ),
            engine=engine,
            source=source,
            trained=classifier,
            saved=Saved(
                model=model,
                heads={"classifier": {"num_labels": len(labels)}},
                tokenizer=self.start.tokenizer,
                task=task,
                dataset=self.start.dataset,
            ),
            measure=measure,
            micro_batch=plan.micro_batch,
            accumulation=plan.accumulation,
            log_every=max(1, steps // LINES),
            notes=notes,
        )
        return training, measure


def _count(build: Build, name: str, split: Split) -> None:
    build.counters[f"read/{name}"] += len(split.examples) + sum(split.examples.dropped.values())
    build.counters[f"kept/{name}"] += len(split.examples)
    build.counters[f"truncated/{name}"] += split.encoded.truncated
    for reason, number in split.examples.dropped.items():
        build.counters[f"dropped/{reason}"] += number


def write_json(path: str, content: Mapping[str, Any]) -> None:
    storage.write_bytes(path, (json.dumps(content, indent=1) + "\n").encode())
