"""What the stage finetune does, once torch is there: read, train, score the dev split, compare with the baselines, save."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model import checkpoint
from model.tasks.files import METRICS, write_json
from model.tasks.finetune.config import FinetuneConfig
from model.tasks.finetune.fit import Fit, Setup, fit
from model.tasks.finetune.start import starting_point
from model.tasks.options import Frozen
from model.tasks.split import check_labelled, encoded
from model.tasks.table import load_task
from model.tasks.task import Figures, task_source
from model.train.distributed import StopRequest, World, join
from model.train.metrics import METRICS as LINES
from pipeline.core import checkpoints, storage
from pipeline.core.errors import UsageError
from pipeline.core.reporting import Reporter
from pipeline.core.stage import Build, Outcome

CHECKPOINT, SCRATCH = "checkpoint", "from_scratch"
RECIPE = (
    "epochs",
    "batch_size",
    "optimizer",
    "layer_decay",
    "embedding_rate",
    "warmup",
    "weight_decay",
    "clip",
    "seed",
)  # of the config, in metrics.json


class _Part(Reporter):
    """Passes on what one of several trainings reports, as a part of the whole: its steps stand after those before it."""

    def __init__(self, reporter: Reporter, name: str, before: int, total: int) -> None:
        self._reporter, self._name, self._before, self._total = reporter, name, before, total

    def progress(self, done: float, total: float | None, unit: str, figures: Mapping[str, Any]) -> None:
        del total
        named = {"run": self._name} if self._name else {}
        self._reporter.progress(self._before + done, self._total, unit, {**named, **figures})

    def grace(self, seconds: float) -> None:
        self._reporter.grace(seconds)

    def metrics(self, values: Mapping[str, Any]) -> None:
        prefix = f"{self._name}_" if self._name else ""
        line = {name if name in ("step", "time") else prefix + name: value for name, value in values.items()}
        self._reporter.metrics({**line, "step": self._before + int(values["step"])})


def run(config: FinetuneConfig, build: Build) -> Outcome:
    """Fine-tune on the task's train split and score its dev split, on this rank.

    Returns:
        The true outcome on rank 0, an empty one on the others.

    Raises:
        Stopped: SIGTERM or SIGINT came to any rank; a checkpoint is saved.
        UsageError: an input that the task needs was not named, or config and machine do not fit together.
        DataError: the checkpoint or the data is missing or damaged.
        ClozeError: the disk is full, or too many steps in a row had no finite gradient.
    """
    if config.frozen is not None and not storage.is_local(build.path):
        raise UsageError(
            f"{build.path} is not on a local disk, where the features of a frozen encoder (frozen: {config.frozen}) are kept while it"
            " trains; use one and copy"
        )
    with StopRequest.heeded() as stop:
        world = join(build.execution)
        if world.first:
            build.report.progress(0, None, "steps", {"step": "reading the task, building the model"})
        setup = _prepare(config, build, world, stop)
        compared = config.baselines and setup.start.state is not None
        total = setup.steps * (2 if compared else 1)
        main = fit(setup, setup.start.state, build.path, _Part(build.report, "", 0, total))
        settled = setup.settled(main.predictions)
        if world.first:
            _save(settled, main)
        metrics = _scores(settled, main)
        if config.baselines:
            metrics |= setup.task.baselines(setup.dev.examples)
        if compared:
            path = storage.join(build.scratch, SCRATCH)
            other = fit(setup, None, path, _Part(build.report, SCRATCH, setup.steps, total))
            metrics[SCRATCH] = _scores(setup.settled(other.predictions), other)[setup.task.metrics[0]]
            if world.first:
                storage.write_bytes(build.file(f"{SCRATCH}.jsonl"), storage.read_text(storage.join(path, LINES)).encode())
        return _outcome(setup, main, metrics) if world.first else Outcome()


def _prepare(config: FinetuneConfig, build: Build, world: World, stop: StopRequest) -> Setup:
    """Read the start and both splits."""
    task = load_task(config.task, config.given_options())
    source = task_source(task, config.some_data, build.inputs.get("corpus"))
    start = starting_point(config, build, world)
    read = {name: task.read(source, name, config.limit_per_class) for name in ("train", "dev")}
    for name, examples in read.items():
        check_labelled(examples, name)
    if config.class_weights == "balanced":
        read["train"] = task.balance(read["train"])
    longest = config.max_length or min(task.max_length, start.model.max_position_embeddings)
    meaning = {
        **task.meaning(read["train"]),
        "name": task.name,
        "options": config.options,
        "max_length": longest,
        "metric": task.metrics[0],
        "limit_per_class": config.limit_per_class,
    }
    if config.frozen is not None:
        how = Frozen(layers=config.frozen, lstm_size=config.lstm_size, lstm_layers=config.lstm_layers)
        meaning["frozen"] = how.model_dump()
    splits = {name: encoded(task, examples, meaning, start.pieces, longest) for name, examples in read.items()}
    if world.first:
        for name, split in splits.items():
            split.count(build, name)
    return Setup(
        config=config,
        build=build,
        world=world,
        stop=stop,
        task=task,
        start=start,
        meaning=meaning,
        train=splits["train"],
        dev=splits["dev"],
    )


def _scores(setup: Setup, found: Fit) -> Figures:
    return setup.task.score(setup.dev.examples, found.predictions)


def _save(setup: Setup, found: Fit) -> None:
    """Write the checkpoint to use, without what resuming needs, and the predictions."""
    path, saved = setup.build.file(CHECKPOINT), setup.saved
    checkpoint.save_weights(
        path,
        model=saved.model,
        state=found.weights,
        tokenizer=saved.tokenizer,
        heads=saved.heads,
        task=saved.task,
        dataset=saved.dataset,
        step=found.step,
    )
    checkpoint.complete(path)
    setup.task.write(setup.build.path, setup.dev.examples, found.predictions)


def _outcome(setup: Setup, main: Fit, metrics: Figures) -> Outcome:
    """Write metrics.json, remove what only resuming needs, and sum up."""
    build, config, finished = setup.build, setup.config, main.finished
    splits = {"train": setup.train, "dev": setup.dev}
    facts = {name: setup.task.facts(split.examples) for name, split in splits.items()}
    common = {
        "task": setup.task.name,
        "metric": setup.task.metrics[0],
        "metrics": metrics,
        "examples": {name: len(split.examples) for name, split in splits.items()},
        **{fact: {name: facts[name][fact] for name in splits} for fact in facts["train"]},
    }
    content = {
        **common,
        "split": "dev",
        "truncated": {name: split.samples.truncated for name, split in splits.items()},
        "recipe": {name: getattr(config, name) for name in RECIPE} | {"learning_rate": setup.learning_rate},
        "best": main.best,
    }
    write_json(build.file(METRICS), content)
    build.counters["steps/skipped"] += finished.progress.skipped
    build.counters["steps/applied"] += finished.progress.updates
    summary = {
        **common,
        "checkpoint": CHECKPOINT,
        "predictions": setup.task.predictions,
        "steps": finished.progress.step,
        "epochs": round(finished.progress.step / setup.steps_per_epoch, 4),
        "kept": main.step,
        "best": main.best,
        "learning_rate": setup.learning_rate,
        "precision": main.precision,
        "world_size": setup.world.size,
        **finished.session,
    }
    # Last of all: a kill from here to the manifest, written a moment later, costs the training but no wrong result.
    storage.remove(build.file(checkpoints.STEPS))
    return Outcome(rows=len(setup.train.examples), tokens=int(setup.train.samples.lengths.sum()), summary=summary)
